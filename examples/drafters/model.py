"""An independent small model drafts a chain (Leviathan et al. 2023; Chen et al. 2023)."""

from __future__ import annotations

from family import MODEL, Family

FAMILY = Family(MODEL, draft_length=3)

if __name__ == "__main__":
    FAMILY.main(__file__)
