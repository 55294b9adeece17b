"""A tree whose children are drawn without replacement (SpecInfer; recursive rejection, Jeon et al. 2024)."""

from __future__ import annotations

from family import MODEL, Family

FAMILY = Family(MODEL, tree="3,2", children="sampled", acceptance="coupled,rejection")

if __name__ == "__main__":
    FAMILY.main(__file__)
