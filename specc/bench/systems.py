"""The systems under test by name, what a run of one gives, and an engine's plain and speculative steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from ..runtime import Engine

EAGER, ASSISTED, PLAIN, SPECULATIVE, AS_RUN = (
    "transformers eager",
    "transformers assisted",
    "compiled plain",
    "compiled speculative",
    "compiled as run",
)


@dataclass(slots=True)
class Run:
    """One text of one system.

    Attributes:
        tokens: new ids.
        seconds: the whole call; decode_s: what follows prefill, in which `decoded` of the tokens came.
        steps: passes of the target after prefill; plain_steps: those without a draft.
        accepted: how often each position of the draft was accepted; empty where nothing was drafted or none counts it.
        drafted: levels offered.
    """

    tokens: list[int]
    seconds: float
    decode_s: float
    decoded: int
    steps: int
    plain_steps: int = 0
    drafted: int = 0
    accepted: list[int] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return dataclasses.asdict(self)


System = Callable[[Sequence[int], int], Run]
"""Prompt ids and a number of tokens in, one greedy text of exactly that length out."""


def compiled(engine: Engine, draft_length: int | None, **options: Any) -> System:
    """The engine by its plain step (`draft_length=0`), one that drafts, or as it chooses (None); no text ends early."""
    options = {"eos_token_id": (), **options}

    def run(prompt: Sequence[int], tokens: int) -> Run:
        start = perf_counter()
        result = engine.generate(prompt, max_new_tokens=tokens, draft_length=draft_length, **options)
        seconds, stats = perf_counter() - start, result.stats
        return Run(
            result.token_ids,
            seconds,
            stats.decode_s,
            stats.tokens,
            stats.steps,
            stats.plain_steps,
            stats.drafted,
            list(stats.accepted_per_position),
        )

    return run


def main_length(engine: Engine) -> int:
    """Levels of the main draft; a request that names them speculates in every step, also where that is slow."""
    return len(engine.manifest.tree_paths[-1])


def chooses(engine: Engine) -> bool:
    """Whether a greedy request that names no draft length is drafted by choice; others draft the main one anyway."""
    return engine.pilot is not None and engine.pilot.serves("greedy")
