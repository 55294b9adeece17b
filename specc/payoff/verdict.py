"""The verdicts of a plan: does speculation pay, with what, from which acceptance on, up to how many texts at once?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..bench import batch
from .measured import BETWEEN, BEYOND, TUNED


def verdicts(result: dict[str, Any]) -> list[str]:
    """A line each."""
    return [_speculation(result), *_advice(result), *_batch(result)]


def _speculation(result: dict[str, Any]) -> str:
    best, acceptance = result["best"], result["acceptance"]
    what = (
        f"{best['draft']} emits {best['tokens_per_step']:.2f} tokens for {best['step_cost']:.2f} plain steps, "
        f"{best['speedup']:.2f}x"
    )
    chains = acceptance is not None and best["source"] != TUNED  # which knows the acceptance of every choice
    at = f" at an acceptance of {acceptance:.0%}" if chains else ""
    if best["speedup"] > 1:
        return f"speculation pays{at}: {what}; it pays above an acceptance of {best['break_even']:.0%}"
    needed = result["break_even"]
    if needed is None:
        return f"speculation does not pay at any acceptance: a step costs more than it can emit; the best, {what}"
    return f"speculation does not pay{at}: the best, {what}; it would pay above an acceptance of {needed:.0%}"


def _advice(result: dict[str, Any]) -> Iterator[str]:
    """What to type where the best is not what was measured."""
    best = result["best"]
    if best["source"] in (BETWEEN, BEYOND) and best["speedup"] > 1:
        yield (
            f"{best['draft']} was not compiled, its cost is {best['source']}: "
            f"compile with --ladder {best['draft_length']} to measure it"
        )
    if best["source"] == TUNED:
        own = [draft for draft in result["drafts"] if draft["paths"] == best["paths"]]
        yield (
            f"the engine drafts it: {own[0]['speedup']:.2f}x by its own measurements"
            if own
            else f"the engine does not draft it: compile with --tree '{best['paths']}'"
        )


def _batch(result: dict[str, Any]) -> Iterator[str]:
    gains = {int(size): best["speedup"] for size, best in result["batch"].items()}
    if gains:
        yield batch.verdict(gains, "in this plan")
