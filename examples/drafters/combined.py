"""Lookup where the text repeats itself, else a neural drafter, in one graph."""

from __future__ import annotations

from family import EAGLE3, Family

FAMILY = Family(f"ngram,eagle3:{EAGLE3}", tree="3,1")

if __name__ == "__main__":
    FAMILY.main(__file__)
