"""Static trees that were published with their drafters, by name."""

from __future__ import annotations

from .tree import DraftTree


def _paths(text: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, path)) for path in text.split()]  # every child number has one digit


PUBLISHED = {
    "medusa_63": DraftTree.from_paths(
        _paths(
            "0 00 1 01 2 000 10 02 3 03 4 04 20 05 001 5 06 6 07 010 11 7 08 002 30 09 8 9 "
            "100 020 12 003 40 21 004 005 0000 011 006 030 50 13 007 008 009 60 040 14 70 "
            "012 200 31 22 80 050 15 101 021 90 060 0001 16 070"
        )
    ),
    "eagle_25": DraftTree.from_paths(
        _paths("0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001")
    ),
}
"""`medusa_63`: `mc_sim_7b_63` of Medusa; `eagle_25`: the tree of EAGLE-1, which its code calls by the same name."""
