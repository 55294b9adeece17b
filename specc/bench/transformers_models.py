"""Transformers: the models that went into an engine, run as transformers runs them, eager and assisted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import torch

from ..drafter import MODEL, NGRAM
from ..errors import SpeccError
from ..manifest import EngineManifest
from ..tree import DraftTree
from .systems import Run

LOOKUP_TOKENS = 10


class Transformers:
    """The models that went into an engine, loaded again from where they came from.

    Attributes:
        target, drafter: transformers models; the drafter is None where none is a model of its own.
        assists: whether transformers knows such a drafter: a model or n-gram lookup, no heads and no feature drafters.
    """

    def __init__(self, manifest: EngineManifest, assistant: bool = True) -> None:
        """`assistant=False` loads the target alone.

        Raises:
            SpeccError: a model is not where it was, or was changed.
        """
        from ..capture import digest_source, load_model

        given = manifest.drafter if assistant and manifest.drafter_kind == MODEL else None
        for role, spec in (("target", manifest.target), ("drafter", given)):
            if spec is not None and digest_source(spec.source, role=role) != spec.digest:
                raise SpeccError(f"{role}: {spec.source} was changed since the engine was compiled")
        length = DraftTree(manifest.tree_paths).depth
        target = load_model(manifest.target.source, role="target", dtype=manifest.dtype)
        self.device = manifest.device
        self.target, self.drafter = target.model.to(self.device), None
        self.assists = assistant and manifest.drafter_kind in (MODEL, NGRAM)
        self._tokenizers: dict[str, Any] = {}
        if given is not None:
            drafter = load_model(given.source, role="drafter", dtype=manifest.dtype)
            self.drafter = drafter.model.to(self.device)
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
            logits: torch.Tensor = self.target(input_ids=torch.tensor([list(ids)], device=self.device)).logits[0]
        return logits.float().cpu()

    def _generate(self, prompt: Sequence[int], tokens: int, **more: Any) -> Run:
        ids, clock = torch.tensor([list(prompt)], device=self.device), _Clock()
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


def load_transformers(
    manifest: EngineManifest, say: Callable[[str], None], assistant: bool = True
) -> Transformers | None:
    """The models of an engine; None, and the reason is told, where they cannot be loaded."""
    try:
        return Transformers(manifest, assistant)
    except ImportError as e:
        say(f"transformers is not measured: {e}; install it with pip install 'specc[compile]'")
    except SpeccError as e:
        say(f"transformers is not measured: {e}")
    return None


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
