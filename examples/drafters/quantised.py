"""A drafter with weights of 8 bits; the target is untouched."""

from __future__ import annotations

from family import MODEL, Family

FAMILY = Family(MODEL, draft_quant="int8", draft_length=3)

if __name__ == "__main__":
    FAMILY.main(__file__)
