"""Unread: steps whose scores nobody asks for may be begun ahead; their texts are those of steps that were read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .lab import Lab
from .modes import GREEDY, Mode, coupled
from .report import FAIL, PASS, Check
from .same_texts import SEEDS

NAME = "begun ahead"


def begun_ahead(lab: Lab) -> Check:
    """Every text again, without the log-probabilities by which the other checks see it, alone and side by side.

    The same programs make both, so the ids are equal to the last one.
    """
    if not lab.engine.machine.state.replays:
        return Check.skipped(NAME, f"no step is begun before the last was read on {lab.engine.device.type}")
    modes = [GREEDY, *([coupled(SEEDS[0])] if lab.steps("coupled") else [])]
    faults, compared = [], 0
    for mode in modes:
        lengths = [0, *(length for length, _ in lab.steps(mode.rule))]
        for length in lengths:
            options = _options(lab, mode, length)
            alone = [lab.engine.generate(prompt, **options).token_ids for prompt in lab.prompts]
            read = [lab.engine.generate(prompt, logprobs=0, **options).token_ids for prompt in lab.prompts]
            rows = [one.token_ids for one in lab.engine.generate(lab.prompts, **options)]
            rows_read = [one.token_ids for one in lab.engine.generate(lab.prompts, logprobs=0, **options)]
            for told, found, expected in (("alone", alone, read), ("side by side", rows, rows_read)):
                compared += sum(map(len, expected))
                faults += [
                    f"{mode.name}, draft length {length}, prompt {place + 1}, {told}: not the text that was read"
                    for place, (one, other) in enumerate(zip(found, expected, strict=True))
                    if one != other
                ]
    return Check(NAME, FAIL if faults else PASS, f"{compared} tokens, with steps begun ahead and without", faults)


def _options(lab: Lab, mode: Mode, length: int) -> Mapping[str, Any]:
    """Of a request that drafts so much; the plain step has no draft to accept."""
    kept = {name: value for name, value in mode.options.items() if length or name != "acceptance"}
    return {"max_new_tokens": lab.tokens, "eos_token_id": (), "draft_length": length, **kept}
