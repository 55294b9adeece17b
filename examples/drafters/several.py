"""Several models draft, and the target verifies the tree of what they say (SpecInfer, Miao et al. 2024)."""

from __future__ import annotations

from family import MODEL, Family

FAMILY = Family(f"{MODEL}+{MODEL}", draft_length=2)

if __name__ == "__main__":
    FAMILY.main(__file__)
