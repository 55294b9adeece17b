"""The last stage of a compile: run the new engine, compare its two ways of greedy decoding, time them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from .errors import EngineFault
from .manifest import EngineManifest
from .progress import Report

TOKENS = 16
PROMPT = "The first thing to know about the sea is that"


def measured(folder: Path, manifest: EngineManifest, tokenizer: Any, report: Report) -> EngineManifest:
    """The manifest with `self_check` and `cost` filled in.

    Args:
        folder: the engine, whole but for these two fields.
        tokenizer: the target's transformers tokenizer.
        report: is told if the two ways of decoding disagree.

    Raises:
        EngineFault: the engine emits ids that the tokenizer does not know, or nothing at all.
    """
    from .runtime import load

    engine = load(folder)
    ids = tokenizer(PROMPT).input_ids[: max(1, manifest.context // 2)]
    room = min(TOKENS, manifest.context - len(ids))
    seconds, tokens = {}, {}
    for name, length in (("plain", 0), ("step", None)):
        if manifest.backend != "eager":  # the first calls bring the weights in
            engine.generate(ids, max_new_tokens=2, draft_length=length)
        result = engine.generate(ids, max_new_tokens=room, draft_length=length, eos_token_id=())
        tokens[name] = result.token_ids
        seconds[name] = result.stats.decode_s / max(1, result.stats.steps)
    if not tokens["plain"] or max(tokens["plain"]) >= manifest.vocab_size:
        raise EngineFault(f"the engine wrote {tokens['plain']} after {ids}: it does not compute what it should")
    same = next((i for i, (a, b) in enumerate(zip(tokens["plain"], tokens["step"], strict=False)) if a != b), room)
    if same < room:
        report.say(
            f"warning: greedy texts with and without speculation part at token {same} of {room}; near-ties do "
            "that in bfloat16; specc bench shows the gap"
        )
    check = {"prompt": ids, "tokens": tokens["plain"], "equal_with_speculation": same}
    return dataclasses.replace(manifest, self_check=check, cost={"seconds_per_call": seconds, "context": len(ids)})
