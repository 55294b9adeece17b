"""EAGLE-2: the same drafter, whose tree grows where it is surest of itself (Li et al. 2024)."""

from __future__ import annotations

from family import Family

FAMILY = Family(train="eagle", tree="dynamic:16,4,4")

if __name__ == "__main__":
    FAMILY.main(__file__)
