"""Rows: texts side by side are what each would be alone."""

from __future__ import annotations

from itertools import cycle, islice

from .lab import Lab
from .modes import GREEDY, TOP, Mode, coupled
from .report import Check
from .same_texts import SEEDS, conclude
from .texts import Comparison, Text

NAME = "rows"


def side_by_side(lab: Lab) -> Check:
    """As many texts as there are rows, greedy ones beside sampled ones, plain ones beside those that speculate."""
    rows = lab.engine.manifest.batch
    if rows == 1:
        return Check.skipped(NAME, "the engine has one row")
    found = Comparison()
    longest = len(lab.engine.manifest.tree_paths[-1])
    sampled = [coupled(seed) for seed in SEEDS] if lab.steps("coupled") else []
    mixes: list[list[tuple[Mode, int]]] = [[(GREEDY, longest)], [(GREEDY, 0)]]
    if sampled:
        mixes.append([(mode, longest) for mode in sampled])
        mixes.append([(sampled[0], longest), (GREEDY, 0)])
        mixes.append([(sampled[0], longest), (GREEDY, longest), (sampled[1], 0)])
    for mix in mixes:
        _together(lab, found, list(islice(cycle(mix), rows)))
    return conclude(
        NAME, found, f"{found.tokens} tokens of {rows} texts side by side, against the texts of each alone", lab.dtype
    )


def _together(lab: Lab, found: Comparison, wanted: list[tuple[Mode, int]]) -> None:
    prompts = list(islice(cycle(lab.prompts), len(wanted)))
    with lab.engine.session() as session:
        jobs = [
            session.add(
                prompt,
                max_new_tokens=lab.tokens,
                draft_length=length,
                eos_token_id=(),
                logprobs=TOP,
                logprobs_mode="processed",
                **mode.options,
            )
            for prompt, (mode, length) in zip(prompts, wanted, strict=True)
        ]
        for _ in session:
            pass
    for row, (job, prompt, (mode, length)) in enumerate(zip(jobs, prompts, wanted, strict=True)):
        assert job.logprobs is not None
        where = f"row {row + 1} of {len(wanted)}, {mode.name}, draft length {length}"
        lab.compare(found, lab.plain(prompt, mode, lab.tokens), Text(job.logprobs, []), mode, len(prompt), where)
