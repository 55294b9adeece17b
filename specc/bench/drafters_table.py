"""The tables of a comparison of drafters, and its verdict."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from ..console import SteadyConsole, new_table
from .equality_table import equality_table
from .table import conditions


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print a result of several engines: one table of speeds, one of equality, the verdict last."""
    console = console or SteadyConsole()
    target = result["target"]
    console.print(f"{target['source']} in {target['dtype']}, {len(result['engines'])} engines")
    console.print(conditions(result, "greedy, batch 1, "))
    console.print(comparison_table(result))
    console.print(equality_table(result))
    console.print(result["comparison"]["verdict"], soft_wrap=True)


def comparison_table(result: dict[str, Any]) -> Table:
    """The rows of the comparison, baselines first."""
    kinds = list(result["kinds"])
    columns = ("drafter", "draft", "acceptance", "tokens/step", "tokens/s", "against plain", "against eager", *kinds)
    table = new_table("speed after prefill; by kind of prompt, against plain", "engine", *columns)
    for column in table.columns[1:3]:
        column.justify = "left"
    for row in result["comparison"]["rows"]:
        table.add_row(
            row["engine"],
            row["drafter"],
            row["draft"],
            "-" if row["acceptance"] is None else f"{row['acceptance']:.2f}",
            f"{row['tokens_per_step']:.2f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['against_plain']:.2f}x",
            "-" if row["against_eager"] is None else f"{row['against_eager']:.2f}x",
            *(f"{row['kinds'][kind]:.2f}x" for kind in kinds),
        )
    return table
