"""The last stage of a compile: run the new engine, compare its two ways of greedy decoding, time its programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import EngineFault
from .manifest import EngineManifest
from .prediction import accepted, verdict
from .progress import Report
from .runtime import load
from .runtime.calibrate import time_programs, try_drafts
from .samples import sample_ids

TOKENS = 16
PROMPT = "The first thing to know about the sea is that"
TRIED = 32  # tokens behind each prompt on which drafts are tried
MOST_PROMPTS = 8


def measured(
    folder: Path,
    manifest: EngineManifest,
    tokenizer: Any,
    texts: Sequence[str],
    report: Report,
) -> EngineManifest:
    """The manifest with `self_check` and `cost` filled in.

    Args:
        folder: the engine, whole but for these two fields.
        tokenizer: the target's transformers tokenizer.
        texts: prompts to try the drafts on, of which the first few are; without any, `cost` stays empty, and the engine
            always drafts its own length.
        report: is told if the two ways of decoding disagree, and what speculation gains.

    Raises:
        EngineFault: the engine emits ids that the tokenizer does not know, or nothing at all.
    """
    engine = load(folder)
    ids = tokenizer(PROMPT).input_ids[: max(1, manifest.context // 2)]
    room = min(TOKENS, manifest.context - len(ids))
    tokens = {
        length: engine.generate(ids, max_new_tokens=room, draft_length=length, eos_token_id=()).token_ids
        for length in (0, len(manifest.tree_paths[-1]))
    }
    plain, fast = tokens.values()
    if not plain or max(plain) >= manifest.vocab_size:
        raise EngineFault(f"the engine wrote {plain} after {ids}: it does not compute what it should")
    same = next((i for i, (a, b) in enumerate(zip(plain, fast, strict=False)) if a != b), room)
    if same < room:
        report.say(
            f"warning: greedy texts with and without speculation part at token {same} of {room}; near-ties do "
            "that in bfloat16 and float16; specc bench shows the gap"
        )
    check = {"prompt": ids, "tokens": plain, "equal_with_speculation": same}
    manifest = dataclasses.replace(manifest, self_check=check)
    if not texts:
        return manifest
    new = min(TRIED, max(1, manifest.context // 2))
    cost = time_programs(engine.machine, manifest)
    longest = min(manifest.context, manifest.drafter.max_positions if manifest.drafter else manifest.context)
    ids = sample_ids(tokenizer, texts[:MOST_PROMPTS], max(1, longest - new))
    cost |= try_drafts(engine.machine, manifest, ids, new)
    manifest = dataclasses.replace(manifest, cost=cost)
    if cost["unsteady"]:
        report.say(
            f"warning: {', '.join(cost['unsteady'])} took less than the plain step that is part of it: the machine "
            f"was busy, and steps may be chosen wrongly; remove {folder.name} and compile again when it is quiet "
            "(programs that were compiled are kept)"
        )
    for line in [*accepted(manifest), verdict(manifest)]:
        report.say(line)
    return manifest
