"""Lookahead: the target drafts for itself, by Jacobi windows and a pool of n-grams (Fu et al. 2024)."""

from __future__ import annotations

from family import Family

FAMILY = Family("lookahead:5,4,5")

if __name__ == "__main__":
    FAMILY.main(__file__)
