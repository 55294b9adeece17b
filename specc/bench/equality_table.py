"""The table of equality: which texts parted, and how near the choice was there."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from ..console import new_table


def equality_table(result: dict[str, Any]) -> Table:
    """First differences of every pair of texts, near-ties among them, and the gap of the two likeliest tokens there."""
    columns = ("tokens compared", "first differences", "near-ties among them", "top-2 gaps there")
    table = new_table("same text", "texts", *columns)
    for name, found in result["equality"].items():
        differences = found["differences"]
        gaps = ", ".join("unknown" if d["gap"] is None else f"{d['gap']:.2g}" for d in differences)
        ties = sum(d["near_tie"] for d in differences)
        table.add_row(
            name.replace("transformers ", "").replace("compiled ", ""),
            str(found["tokens"]),
            str(len(differences)),
            str(ties),
            gaps or "-",
        )
    return table
