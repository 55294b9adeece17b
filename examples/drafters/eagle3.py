"""EAGLE-3: drafts from three of the target's layers (Li et al. 2025)."""

from __future__ import annotations

from family import EAGLE3, Family

FAMILY = Family(f"eagle3:{EAGLE3}", tree="3,1")

if __name__ == "__main__":
    FAMILY.main(__file__)
