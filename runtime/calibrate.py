"""Calibrate: time every program of an engine where it runs, and try its drafts on prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from time import perf_counter
from typing import Any

import torch

from ..manifest import EngineManifest
from .cost import Trial
from .flight import Outcome, Work
from .programs import BY_DRAFT, StepProgram
from .request import Request
from .row import Row
from .step import Machine
from .suffixes import Suffixes

SHORT, LONG = 64, 1024  # tokens in the cache at which calls are timed, as far as the context allows
FEWEST, MOST = 5, 15  # rounds
PREFILLS = 3  # rounds in which prefill is timed: a call takes as long as several steps, and it is seldom asked for
STEADY = 3  # steps that are timed together where each is begun before the last was read
NOISE = 0.97  # a step that takes less of a plain one was not measured in quiet
SECONDS = 3.0  # after which no further round begins


def time_programs(
    machine: Machine, manifest: EngineManifest, clock: Callable[[], float] = perf_counter
) -> dict[str, Any]:
    """Seconds per call of all step programs but those whose length is never chosen (`BY_DRAFT`), and of prefill.

    All programs in turn, round by round, so that other work on the machine hits all of them alike, and the least of all
    rounds, since such work only adds. The first round brings the weights in and does not count. A step computes what
    the plain step of its rule does and more, so it takes no less: where it was measured less, the machine was not
    quiet, and that counts as equal. Texts that the machine holds are forgotten: rows are made to look
    as if they held one, for what a step takes does not depend on what its caches hold.

    Returns:
        Fields of `EngineManifest.cost`: `seconds` (by program, for each of `tokens`), `tokens`, `rounds`, `threads`;
        `unsteady`, the names of steps that were measured to take less than a plain one.
    """
    steps_each = 2 * STEADY if machine.state.replays else 1
    usable = max(2, manifest.context - steps_each * (machine.programs.depth + 1) - 1)
    tokens = sorted({min(SHORT, usable), min(LONG, usable)} if usable >= 4 * SHORT else {min(SHORT, usable)})
    steps = [step for step in machine.programs.steps if step.rule not in BY_DRAFT]
    prefills = manifest.prefills
    times: dict[tuple[str, int], list[float]] = {}
    rounds, begun = 0, clock()
    with _scratch(machine):
        neutral = Request.make(manifest, [0], max_new_tokens=manifest.context, eos_token_id=())
        for row in machine.rows:  # whatever is asked for, a step takes the same time
            machine.parameters.write(row.index, neutral, 1, manifest.context)
            machine.state.set("active", row.index, True)  # a text that was here may have ended
        while rounds <= FEWEST or (rounds <= MOST and clock() - begun < SECONDS):
            for total in tokens:
                for step in steps:
                    times.setdefault((step.name, total), []).append(_time_step(machine, step, total, clock))
                for name in prefills if rounds < PREFILLS else ():
                    times.setdefault((name, total), []).append(_time_prefill(machine, name, total, manifest, clock))
            rounds += 1
    names = [step.name for step in steps] + prefills
    seconds = {name: [round(min(times[name, total][1:]), 7) for total in tokens] for name in names}
    return {
        "unsteady": _no_less_than_plain(seconds, steps),
        "seconds": seconds,
        "tokens": tokens,
        "rounds": rounds - 1,
        "threads": torch.get_num_threads(),
    }


def _no_less_than_plain(seconds: dict[str, list[float]], steps: Sequence[StepProgram]) -> list[str]:
    """Raise the seconds of steps to those of the plain step of as many rows; names of those that were far below."""
    plain = {(step.batch, step.rule == "greedy"): seconds[step.name] for step in steps if not step.depth}
    below = []
    for step in steps:
        least = plain.get((step.batch, step.rule == "greedy"))
        if step.depth and least:
            found = seconds[step.name]
            if any(own < NOISE * other for own, other in zip(found, least, strict=True)):
                below.append(step.name)
            seconds[step.name] = [max(pair) for pair in zip(found, least, strict=True)]
    return below


def try_drafts(
    machine: Machine, manifest: EngineManifest, prompts: Sequence[Sequence[int]], tokens: int
) -> dict[str, Any]:
    """Greedy acceptance on prompts (ids), of every tree and of the longest chain that an engine drafts.

    Args:
        tokens: the most to emit behind each prompt.

    Returns:
        Fields of `EngineManifest.cost`: `acceptance` (by program: a `Trial` as a dict), `prompts`, `new_tokens`; where
        drafts are looked up `by_match` too (by program: one for each length of the suffix that occurred before).
    """
    drafts = [step for step in machine.programs.shapes("greedy") if step.depth]
    chains = [step for step in drafts if step.nodes == step.depth + 1]
    found: dict[str, Any] = {}
    by_match: dict[str, Any] = {}
    for step in [*(step for step in drafts if step not in chains), *chains[-1:]]:
        nothing = Trial(0, 0, (0,) * step.depth)
        trial, matched = nothing, [nothing] * (manifest.lookup + 1)
        with _scratch(machine):
            for match, outcome in chain.from_iterable(_try(machine, manifest, step, p, tokens) for p in prompts):
                trial = trial.plus(outcome.offered, outcome.accepted)
                matched[match] = matched[match].plus(outcome.offered, outcome.accepted)
        found[step.name] = trial._asdict()
        by_match[step.name] = [one._asdict() for one in matched]
    looked_up = {"by_match": by_match} if manifest.lookup else {}
    return {"acceptance": found, **looked_up, "prompts": len(prompts), "new_tokens": tokens}


def _try(
    machine: Machine, manifest: EngineManifest, step: StepProgram, prompt: Sequence[int], tokens: int
) -> Iterator[tuple[int, Outcome]]:
    """The steps of one text, each with the length of the suffix that occurred before."""
    row, ends, suffixes = machine.rows[0], set(manifest.eos_token_ids), Suffixes(manifest.lookup)
    machine.begin(row, Request.make(manifest, prompt, max_new_tokens=tokens), drafts=False)
    work = Work(row, "greedy", step.depth, tree=step.paths)
    limit = min(len(prompt) + tokens, manifest.context)
    while len(row.ids) < limit and not ends & set(row.ids[len(prompt) :]):
        match = suffixes.match(row.ids)
        (outcome,) = machine.step([work])
        yield match, outcome


def _time_step(machine: Machine, step: StepProgram, total: int, clock: Callable[[], float]) -> float:
    """One step; where steps are begun ahead, one of several like it, as they come in a text."""
    rows = machine.rows if step.batch > 1 else machine.rows[:1]
    for row in rows:
        _pretend(row, total)
    works = [Work(row, step.rule, step.depth, tree=step.paths) for row in rows]
    looks = step.depth and rows[0].manifest.lookup  # whether to draft again is seen in what this one emits
    count = STEADY if machine.state.replays and not looks else 1
    for _ in range(count - 1):
        machine.step(works, more=True)
    start = clock()
    for _ in range(count):
        machine.step(works, more=count > 1)
    return (clock() - start) / count


def _time_prefill(
    machine: Machine, name: str, total: int, manifest: EngineManifest, clock: Callable[[], float]
) -> float:
    """One chunk behind `total` tokens."""
    tokens, place = torch.zeros(1, manifest.chunk, dtype=torch.int64), torch.tensor([total])
    start = clock()
    results = machine.state.call(name, total, 0, tokens=tokens, start=place)
    if next(iter(results.values())).device.type == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def _pretend(row: Row, total: int) -> None:
    """Make a row look as if it held a text of so many tokens, whose end is far."""
    row.limit = total + row.manifest.context
    row.ids[:] = [0] * total
    row.target_length, row.drafter_length = total - 1, row.drafted_before(total - 1)


@contextmanager
def _scratch(machine: Machine) -> Iterator[None]:
    """Rows that may hold anything inside, and are empty and clean before and after."""
    for row in machine.rows:
        row.keep(0)
        row.follow(None)
    try:
        yield
    finally:
        for row in machine.rows:
            row.state.clear(row.index, 0, row.manifest.slots)
            row.keep(0)
