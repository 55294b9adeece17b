"""The systems under test: an engine's plain and speculative steps, transformers eager and assisted."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from ..errors import SpeccError
from ..manifest import EngineManifest
from ..runtime import Engine
from ..tree import DraftTree

EAGER, ASSISTED, PLAIN, SPECULATIVE = (
    "transformers eager",
    "transformers assisted",
    "compiled plain",
    "compiled speculative",
)
LOOKUP_TOKENS = 10


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


def compiled(engine: Engine, draft_length: int, **options: Any) -> System:
    """The engine, by its plain step (`draft_length=0`) or by one that drafts; no text ends early."""
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


class Transformers:
    """The models that went into an engine, loaded again from where they came from.

    Attributes:
        target, drafter: transformers models; the drafter is None for n-gram engines.
    """

    def __init__(self, manifest: EngineManifest) -> None:
        from ..capture import digest_source, load_model

        for role, spec in (("target", manifest.target), ("drafter", manifest.drafter)):
            if spec is not None and digest_source(spec.source, role=role) != spec.digest:
                raise SpeccError(f"{role}: {spec.source} was changed since the engine was compiled")
        length = DraftTree(manifest.tree_paths).depth
        target = load_model(manifest.target.source, role="target", dtype=manifest.dtype)
        self.target, self.drafter = target.model, None
        self._tokenizers: dict[str, Any] = {}
        if manifest.drafter:
            drafter = load_model(manifest.drafter.source, role="drafter", dtype=manifest.dtype)
            self.drafter = drafter.model
            if drafter.tokenizer.get_vocab() != target.tokenizer.get_vocab():
                self._tokenizers = {"tokenizer": target.tokenizer, "assistant_tokenizer": drafter.tokenizer}
            _greedy_without_end(self.drafter, num_assistant_tokens=length)
        _greedy_without_end(self.target)
        logging.getLogger("transformers").setLevel(logging.ERROR)  # advice on how its own parts call each other

    def eager(self, prompt: Sequence[int], tokens: int) -> Run:
        """`generate`, one token a pass."""
        return self._generate(prompt, tokens)

    def assisted(self, prompt: Sequence[int], tokens: int) -> Run:
        """`generate` with the drafter as assistant and the engine's draft length; prompt lookup for n-gram engines."""
        if self.drafter is None:
            return self._generate(prompt, tokens, prompt_lookup_num_tokens=LOOKUP_TOKENS)
        return self._generate(prompt, tokens, assistant_model=self.drafter, **self._tokenizers)

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Logits of the target at every position of a text, `[T, V]` float32, in one pass."""
        with torch.no_grad():
            logits: torch.Tensor = self.target(input_ids=torch.tensor([list(ids)])).logits[0].float()
        return logits

    def _generate(self, prompt: Sequence[int], tokens: int, **more: Any) -> Run:
        ids, clock = torch.tensor([list(prompt)]), _Clock()
        start = perf_counter()
        with torch.no_grad():
            out = self.target.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens, do_sample=False, streamer=clock, **more
            )
        end = perf_counter()
        new = out[0, len(prompt) :].tolist()
        (first, size), *later = clock.blocks
        # The first block ends prefill: transformers' first pass over the prompt gives a token too.
        return Run(new, end - start, end - first, len(new) - size, len(later))


def load_systems(engine: Engine, say: Callable[[str], None]) -> tuple[dict[str, System], Transformers | None]:
    """Every system that can run here, baseline first; those that cannot are named with the reason."""
    systems: dict[str, System] = {}
    models = None
    try:
        models = Transformers(engine.manifest)
        systems |= {EAGER: models.eager, ASSISTED: models.assisted}
    except ImportError as e:
        say(f"transformers is not measured: {e}; install it with pip install 'specc[compile]'")
    except SpeccError as e:
        say(f"transformers is not measured: {e}")
    systems[PLAIN] = compiled(engine, 0)
    systems[SPECULATIVE] = compiled(engine, main_length(engine))
    return systems, models


class _Clock:
    """A streamer of transformers that notes when tokens came, and how many; the prompt comes first and is skipped."""

    def __init__(self) -> None:
        self.blocks: list[tuple[float, int]] = []
        self._prompt = True

    def put(self, tokens: torch.Tensor) -> None:
        if not self._prompt:
            self.blocks.append((perf_counter(), tokens.numel()))
        self._prompt = False

    def end(self) -> None:
        pass


def _greedy_without_end(model: Any, **more: Any) -> None:
    """Every text is of equal length, and nothing but EOS ids would apply of the model's generation_config anyway."""
    model.generation_config = type(model.generation_config)(do_sample=False, pad_token_id=0, **more)
