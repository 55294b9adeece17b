"""A drafter whose head is cut to frequent ids, so that a level of its draft is cheaper."""

from __future__ import annotations

from family import MODEL, Family

FAMILY = Family(MODEL, draft_vocab=2000, draft_length=3)

if __name__ == "__main__":
    FAMILY.main(__file__)
