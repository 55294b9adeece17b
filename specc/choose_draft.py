"""`--tune`: measure a drafter on the target's own texts and products on this machine, and choose what is drafted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from . import environment
from .candidate_table import candidate_table
from .child_acceptance import Sample, child_acceptance, lookup_tokens, own_texts
from .config import CompileConfig, DraftConfig
from .lower.cache import cache_folder
from .lower.forms import LINEAR, NAME, NUMBERS, FormTable
from .pair import Pair
from .product_times import ROWS, pass_times, products
from .program import Model
from .progress import Report
from .samples import sample_ids
from .tree import MAX_DEPTH
from .tune import MOST_NODES, best_of, candidates, chain_of

TOKENS = 32  # that the target writes behind each prompt
MOST_PROMPTS = 32
CHILDREN = 8
DRAFT_ROWS = 4  # the drafter's first level takes in a whole block, and later ones hold several nodes


def choose_draft(
    config: CompileConfig,
    pair: Pair,
    models: Mapping[str, Model],
    texts: Sequence[str],
    room: int,
    report: Report,
) -> tuple[DraftConfig, dict[str, Any]]:
    """The draft of most predicted tokens per second, one text at a time; prints what it was chosen from.

    Args:
        pair: as read; without a drafter n-gram lookup drafts.
        models: the same, captured.
        texts: prompts, of which the first few are tried.
        room: tokens of context.

    Returns:
        `config.draft` with the choice, and what it was made from, as plain JSON values.
    """
    if len(texts) > MOST_PROMPTS:
        report.say(f"tuned on the first {MOST_PROMPTS} of {len(texts)} prompts")
    prompts = sample_ids(pair.target.tokenizer, texts[:MOST_PROMPTS], max(1, room - TOKENS))
    with report.bar("tune: texts of the target", len(prompts)) as bar:
        samples = own_texts(pair.target, prompts, TOKENS, lambda: bar.advance(bar.task_ids[0]))
    with report.stage("tune: time the products"):
        verify, draft = _times(config, models)
    rates: list[float] = []
    if pair.drafter is not None:
        with report.stage("tune: acceptance of the drafter"):
            rates = child_acceptance(pair.draft_logits, samples, CHILDREN)
        most = getattr(pair.drafter, "depth", 0)
        if most:  # heads: one call of the module makes all levels
            draft /= most
        found = candidates(rates, draft, verify, depth=most or MAX_DEPTH)
        shown = ", ".join(f"{rate:.0%}" for rate in rates)
        report.say(f"the drafter's first, second, ... choice is the target's at {shown} of {_size(samples)} tokens")
    else:
        lengths = range(1, min(MAX_DEPTH, MOST_NODES - 1) + 1)
        longest = config.drafting().longest_suffix
        found = [chain_of(n, lookup_tokens(samples, n, longest), draft, verify) for n in lengths]
    best = best_of(found)
    report.console.print(candidate_table("what could be drafted", found, best))
    if best.speedup <= 1:
        report.say(f"warning: no draft is predicted to pay; the best, at {best.speedup:.2f}x plain, is compiled anyway")
    what: dict[str, Any] = {"tree": best.tree.paths[1:]}
    if best.tree.is_chain:
        what = {"draft_length": best.tree.depth}
    prompts_left = None if config.draft.fixed else config.draft.prompts
    chosen = dataclasses.replace(config.draft, tune=False, prompts=prompts_left, **what)
    return chosen, {
        "prompts": len(prompts),
        "tokens": _size(samples),
        "child_acceptance": rates,
        "draft_cost": draft,
        "verify_cost": {str(rows): verify(rows) for rows in ROWS},
        "tokens_per_step": best.tokens,
        "predicted_speedup": best.speedup,
    }


def _times(config: CompileConfig, models: Mapping[str, Model]) -> tuple[Callable[[int], float], float]:
    """A pass of the target by its rows, and a level of the drafter, both in passes of the target over one row.

    A drafter's weights are read level after level, so a cache that is large enough holds them. Away from the CPU a pass
    over so few rows reads its weights once, whatever their number.
    """
    table = FormTable(None, environment.machine("cpu"))
    if config.backend == "inductor" and config.device == "cpu":
        table = FormTable(cache_folder() / NAME, environment.machine("cpu"))
    form = None if config.backend == "inductor" else LINEAR
    dtype = getattr(torch, config.dtype)
    times: dict[str, Callable[[int], float]] = {}
    for role, model in models.items():
        shapes = products(model)
        numbers = sum(out * size * count for (out, size), count in shapes.items())
        if config.device == "cpu":
            read = NUMBERS if role == "target" else numbers
            times[role] = pass_times(shapes, partial(_seconds, table, dtype, form, read))
        else:
            times[role] = partial(_alike, float(numbers))
    one = times["target"](1) or 1.0
    draft = times["drafter"](DRAFT_ROWS) / one if "drafter" in times else 0.0
    return lambda rows: times["target"](rows) / one, draft


def _seconds(
    table: FormTable, dtype: torch.dtype, form: str | None, read: int, out: int, size: int, rows: int
) -> float:
    return table.seconds(out, size, rows, dtype, form, read)


def _alike(seconds: float, rows: int) -> float:
    return seconds


def _size(samples: Sequence[Sample]) -> int:
    return sum(len(sample.text) for sample in samples)
