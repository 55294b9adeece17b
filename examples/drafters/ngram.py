"""N-gram lookup: what followed the same tokens earlier in the text is drafted again (Saxena 2023)."""

from __future__ import annotations

from family import Family

FAMILY = Family("ngram:3,4")

if __name__ == "__main__":
    FAMILY.main(__file__)
