"""Early exit: the target's first layers draft for the whole, over the same weights and caches."""

from __future__ import annotations

from family import Family

FAMILY = Family("self:8", draft_length=3)

if __name__ == "__main__":
    FAMILY.main(__file__)
