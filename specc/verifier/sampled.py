"""Checks of sampled laws: pairs of tokens are drawn with many seeds and held against the exact law.

A first look takes N draws; only what it finds suspicious is drawn again, four times as often with fresh seeds, and
fails if it is far off there too. So chance fails a right engine at most once in a million for each law, and a wrong one
needs no more than the first look to be suspected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from ..runtime import Job
from ..tree import DraftTree
from .lab import Lab
from .laws import Pair, Setting, surprise
from .report import FAIL, PASS, Check
from .settings import for_forced_drafts, for_own_drafts

FIRST, SECOND = 1e-2, 1e-4  # levels of the two looks
FALSE_ALARM = FIRST * SECOND
AGAIN = 4  # times as many draws


def plain_law(lab: Lab, draws: int) -> Iterator[Check]:
    """Coupled draws of the plain step: is the noise that all seeds share a fair one?"""
    yield _check(lab, "plain law", for_forced_drafts(lab), "coupled", 0, draws)


def sampled_laws(lab: Lab, draws: int) -> Iterator[Check]:
    """Every sampled rule, with the drafter's own drafts (accepted by p and q) and with forced ones (q is one-hot)."""
    for rule in ("coupled", "rejection"):
        steps = [(length, program) for length, program in lab.steps(rule) if length == program.depth]
        if not steps:
            yield Check.skipped(f"{rule} law", f"not compiled: --acceptance {rule}")
            continue
        main = len(lab.engine.manifest.tree_paths[-1])
        own, other = for_own_drafts(lab), for_forced_drafts(lab)
        for length, program in sorted(steps, key=lambda step: step[0] != main):
            where = "" if length == main else f", {program.name}"
            yield _check(lab, f"{rule} law{where}", own, rule, length, draws)
            yield _check(lab, f"{rule} law, forced drafts{where}", other, rule, length, draws, forced=True)
            if lab.quick:
                break


def row_law(lab: Lab, draws: int) -> Iterator[Check]:
    """Rejection in the programs of several rows: their texts hang on chance, so their law is what can be checked."""
    if lab.engine.manifest.batch > 1 and lab.steps("rejection"):
        length = len(lab.engine.manifest.tree_paths[-1])
        yield _check(lab, "rejection law, rows", for_own_drafts(lab), "rejection", length, draws, rows=True)


def _check(
    lab: Lab,
    name: str,
    setting: Setting | None,
    rule: str,
    length: int,
    draws: int,
    forced: bool = False,
    rows: bool = False,
) -> Check:
    if setting is None:
        return Check.skipped(name, "rounding may exchange candidates at the border of top-k in every context tried")
    slack = lab.noise / setting.temperature
    looks: list[dict[str, Any]] = []
    first = 0
    for count, level in ((draws, FIRST), (AGAIN * draws, SECOND)):
        counts = draw(lab, setting, rule, length, range(first, first + count), forced, rows)
        looks.append(
            {"draws": count, "p": surprise(counts, setting.law, slack), "level": level, "counts": _list(counts)}
        )
        first += count
        if looks[-1]["p"] >= level:
            break
    wrong = all(look["p"] < look["level"] for look in looks)
    told = " and ".join(f"p = {look['p']:.2g} of {look['draws']} draws" for look in looks)
    compared = f"two tokens, {setting}: {told}"
    faults = [f"{len(setting.law)} pairs of tokens do not follow their law: {told}"] if wrong else []
    law = [[*pair, p] for pair, p in setting.law.items()]
    figures = {"looks": looks, "law": law, "prompt": setting.prompt, **setting.options}
    return Check(name, FAIL if wrong else PASS, compared, faults, figures=figures)


def draw(
    lab: Lab, setting: Setting, rule: str, length: int, seeds: Sequence[int], forced: bool = False, rows: bool = False
) -> Counter[Pair]:
    """Draw a pair of tokens with each seed.

    Args:
        forced: draft the likeliest tokens of the law, in place of the drafter's own.
        rows: side by side in all rows of the engine, else one by one.
    """
    counts: Counter[Pair] = Counter()
    options: dict[str, Any] = dict(setting.options)
    waiting, side_by_side = iter(seeds), lab.engine.manifest.batch if rows else 1
    with lab.engine.session() as session:
        while group := list(islice(waiting, side_by_side)):
            jobs = [
                session.add(
                    setting.prompt,
                    max_new_tokens=2,
                    draft_length=length,
                    eos_token_id=(),
                    acceptance=rule if length else None,
                    seed=seed,
                    reuse=True,
                    **options,
                )
                for seed in group
            ]
            while session.jobs:
                session.step({job: likeliest(lab, setting, rule, job) for job in session.jobs} if forced else ())
            counts.update((job.token_ids[0], job.token_ids[1]) for job in jobs)
    return counts


def likeliest(lab: Lab, setting: Setting, rule: str, job: Job) -> list[int]:
    """Tokens for nodes 1, 2, ...: behind each node its likeliest ones, as far as the law is known."""
    program = lab.engine.machine.programs.find(rule, job.request.draft_length, 1)
    assert program is not None
    tree = DraftTree(program.paths)
    texts: dict[int, tuple[int, ...]] = {0: tuple(job.token_ids)}
    draft = []
    for node in range(1, len(tree)):
        before = texts[tree.parents[node]]
        best = setting.best.get(before, [setting.prompt[-1]])
        draft.append(best[tree.paths[node][-1] % len(best)])
        texts[node] = (*before, draft[-1])
    return draft


def _list(counts: Counter[Pair]) -> list[list[int]]:
    return [[*pair, count] for pair, count in sorted(counts.items())]
