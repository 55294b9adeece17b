"""EAGLE: a layer that drafts from the target's features, over a tree of fixed shape (Li et al. 2024)."""

from __future__ import annotations

from family import Family

FAMILY = Family(train="eagle", tree="3,2,1")

if __name__ == "__main__":
    FAMILY.main(__file__)
