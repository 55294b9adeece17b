"""Batches: speed of plain and speculative steps by the number of rows, and where speculation stops paying."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

from ..runtime import Engine
from .formulas import over
from .systems import PLAIN, SPECULATIVE, main_length

SYSTEMS = (PLAIN, SPECULATIVE)


@dataclass(frozen=True, slots=True)
class BatchRun:
    """Some prompts side by side, for as long as all of them run.

    Attributes:
        prompts: their indices.
        tokens: of all rows, in `steps` steps that took `seconds`.
    """

    repeat: int
    size: int
    system: str
    prompts: tuple[int, ...]
    tokens: int
    steps: int
    seconds: float


def batch_speed(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sizes: Sequence[int],
    tokens: int,
    repeats: int,
    advance: Callable[[str], None],
) -> list[BatchRun]:
    """Run the prompts at every batch size, plain and speculative in turn.

    At every size the rows rotate through the prompts until each has come equally often.

    Args:
        prompts: ids.
        sizes: rows, none above the engine's.
        tokens: of each text.
        advance: called before each run with what it is; `count_runs` says how often.
    """
    lengths = {PLAIN: 0, SPECULATIVE: main_length(engine)}
    groups = {size: rotation(len(prompts), size) for size in sizes}
    for size in sizes:
        for length in lengths.values():
            _run(engine, [prompts[i] for i in groups[size][0]], 2, length)  # the first call touches the program
    runs = []
    for repeat in range(repeats):
        for turn in range(max(map(len, groups.values()))):
            for size, group in groups.items():
                for system, length in lengths.items() if turn < len(group) else ():
                    advance(f"batch {size}, {system}")
                    found = _run(engine, [prompts[i] for i in group[turn]], tokens, length)
                    runs.append(BatchRun(repeat, size, system, group[turn], *found))
    return runs


def count_runs(prompts: int, sizes: Sequence[int], repeats: int) -> int:
    """How many runs `batch_speed` makes."""
    return repeats * len(SYSTEMS) * sum(len(rotation(prompts, size)) for size in sizes)


def rotation(prompts: int, size: int) -> list[tuple[int, ...]]:
    """Groups of `size` rows that go round the prompts until each has come equally often."""
    count = prompts // math.gcd(prompts, size)
    return [tuple((turn * size + row) % prompts for row in range(size)) for turn in range(count)]


def summarize(runs: Sequence[BatchRun]) -> dict[str, Any]:
    """By batch size: speed of both systems (medians over repeats, summed over groups), their ratio; and the verdict."""
    sizes = sorted({run.size for run in runs})
    found: dict[int, dict[str, Any]] = {size: {} for size in sizes}
    for size in sizes:
        for system in SYSTEMS:
            found[size][system] = _figures([run for run in runs if (run.size, run.system) == (size, system)])
        plain, step = (found[size][system]["tokens_per_second"] for system in (PLAIN, SPECULATIVE))
        found[size]["speculative_over_plain"] = over(step, plain)
        found[size]["plain_over_first"] = over(plain, found[sizes[0]][PLAIN]["tokens_per_second"])
    gains = {size: found[size]["speculative_over_plain"] for size in sizes}
    return {"sizes": {str(size): found[size] for size in sizes}, "verdict": verdict(gains)}


def verdict(gains: Mapping[int, float], how: str = "measured") -> str:
    """One sentence: from which batch size on does speculation stop paying?

    Args:
        gains: by size in ascending order, tokens per second of the speculative step over those of the plain one.
        how: they were found.
    """
    told = ", ".join(f"{gain:.2f}x at {size}" for size, gain in gains.items())
    paying = [size for size, gain in gains.items() if gain > 1]
    if not paying:
        return f"speculation does not pay at any batch size {how} ({told} rows)"
    later = [size for size in gains if size > paying[-1]]
    if any(size < paying[-1] for size in gains if size not in paying):
        return f"speculation pays at batch size {_and(paying)} and at no other size {how} ({told} rows)"
    if not later:
        return f"speculation pays at every batch size {how} ({told} rows)"
    return f"speculation stops paying at batch size {later[0]} ({told} rows)"


def _and(sizes: Sequence[int]) -> str:
    *most, last = map(str, sizes)
    return f"{', '.join(most)} and {last}" if most else last


def _figures(runs: Sequence[BatchRun]) -> dict[str, float]:
    seconds = tokens = steps = 0.0
    for group in {run.prompts for run in runs}:
        same = [run for run in runs if run.prompts == group]
        seconds += median(run.seconds for run in same)
        tokens += same[0].tokens
        steps += same[0].steps
    return {
        "tokens_per_second": over(tokens, seconds),
        "ms_per_step": 1e3 * over(seconds, steps),
        "tokens_per_row_and_step": over(tokens, steps * runs[0].size),
    }


def _run(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, draft_length: int) -> tuple[int, int, float]:
    """Tokens, steps and seconds until the first text ends: from there on there are fewer rows."""
    steps, seconds = 0, 0.0
    with engine.session() as session:
        for ids in prompts:
            session.add(ids, max_new_tokens=tokens, draft_length=draft_length, eos_token_id=())
        jobs = list(session.jobs)
        while len(session.jobs) == len(jobs):
            start = perf_counter()
            session.step()
            seconds += perf_counter() - start
            steps += 1
        return sum(len(job.token_ids) for job in jobs), steps, seconds
