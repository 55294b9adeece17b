"""The tables of a plan, and its verdicts."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from ..console import SteadyConsole, new_table


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print a result of `plan`: what could be drafted, what other acceptances give, batches, and verdicts last."""
    console = console or SteadyConsole()
    console.print(f"{_head(result)}\n")
    if result["drafts"]:
        console.print(_drafts("what could be drafted, one text at a time", result["drafts"], result["best"]))
    if result.get("tuned"):
        title = "by the drafter's first, second, ... choice and the times of products, as --tune measured them"
        console.print(_drafts(title, result["tuned"], result["best"]))
    if result["grid"]:
        console.print(_grid(result))
    if result["batch"]:
        console.print(_batch(result["batch"]))
    for line in result["verdicts"]:
        console.print(line, soft_wrap=True)


def _head(result: dict[str, Any]) -> str:
    if "engine" not in result:
        return f"acceptance {result['acceptance']:.0%}, a drafted token costs {result['cost']:g} plain passes"
    models = result["models"]
    levels = ", ".join(f"{level:.0%}" for level in result["acceptance_per_level"])
    accepted = f"; acceptance by level, given those before: {levels}" if levels else ""
    return f"{result['engine']}: {models['target']} with {models['drafter']}{accepted}"


def _drafts(title: str, drafts: list[dict[str, Any]], best: dict[str, Any]) -> Table:
    columns = ("tokens a step", "step in plain steps", "speed-up", "pays above acceptance", "numbers", "")
    table = new_table(title, "draft", *columns)
    for draft in drafts:
        needed = draft["break_even"]
        table.add_row(
            draft["draft"],
            f"{draft['tokens_per_step']:.2f}",
            f"{draft['step_cost']:.2f}",
            f"{draft['speedup']:.2f}x",
            "never" if needed is None else f"{needed:.0%}",
            draft["source"],
            "best" if draft == best else "",
        )
    return table


def _grid(result: dict[str, Any]) -> Table:
    """Every second acceptance, so that the table is a screen long."""
    grid = result["grid"]
    given = "cost" in result
    title = "best draft length and speed-up" + (", by acceptance and cost c of a drafted token" if given else "")
    names = [f"c = {name}" if given else name for name in grid["best"]]
    table = new_table(title, "acceptance", *names)
    for i, acceptance in enumerate(grid["acceptance"]):
        if i % 2 == 0:
            cells = (column[i] for column in grid["best"].values())
            table.add_row(f"{acceptance:.0%}", *(f"{c['speedup']:.2f}x K={c['draft_length']}" for c in cells))
    return table


def _batch(sizes: dict[str, dict[str, Any]]) -> Table:
    table = new_table("texts side by side", "texts", "best draft", "step in plain steps", "speed-up", "numbers")
    for size, found in sizes.items():
        numbers = f"{found['step_cost']:.2f}", f"{found['speedup']:.2f}x", found["source"]
        table.add_row(size, found["draft"], *numbers)
    return table
