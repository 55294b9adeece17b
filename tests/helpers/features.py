"""Tiny pairs whose drafter reads the target's hidden states, and what such a drafter says behind any path."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from helpers import checkpoints
from helpers.decoding import Pair, loaded
from helpers.models import tiny_model
from torch import Tensor

from specc.capture.feature_drafter import FeatureDrafter, load_feature_drafter
from specc.drafter import parse_drafter

KINDS = ("eagle", "eagle-deep", "eagle3", "eagle3-pruned")
Path_ = tuple[int, ...]
Children = list[tuple[float, int]]


@functools.cache
def feature_pair(kind: str, vocab: int = 128, max_positions: int = 512) -> Pair:
    """A tiny target and a drafter of this kind (`medusa` too), read from a published checkpoint.

    Args:
        max_positions: of the drafter.
    """
    target = tiny_model(num_hidden_layers=3, vocab_size=vocab)
    config, tensors = {
        "eagle": lambda: checkpoints.eagle(target),
        "eagle-deep": lambda: checkpoints.eagle(target, layers=2),
        "eagle3": lambda: checkpoints.eagle3(target),
        "eagle3-pruned": lambda: checkpoints.eagle3(target, draft_vocab=vocab * 5 // 8),
        "medusa": lambda: checkpoints.medusa(target, heads=4),
    }[kind]()
    config["max_position_embeddings"] = max_positions
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save(Path(folder), config, tensors)
        spec = parse_drafter(f"{kind.partition('-')[0]}:{folder}")
        return Pair(target, None, vocab, features=load_feature_drafter(spec, loaded(target), dtype="float32"))


def widened(drafter: FeatureDrafter, logits: Tensor) -> Tensor:
    """Logits over the target's ids."""
    if drafter.column_of is None:
        return logits
    return torch.where(drafter.column_of >= 0, logits[..., drafter.column_of.clamp(min=0)], float("-inf"))


@torch.no_grad()
def features(models: Pair, text: Sequence[int]) -> Tensor:
    """`[1, T, F]` of every token, from a run over the whole text."""
    assert models.features is not None
    with models.features.taps.hooked(models.target):
        models.target(torch.tensor([list(text)]))
        return models.features.taps.read()


def drafter_of(models: Pair, text: Sequence[int]) -> Callable[[Path_], Tensor]:
    """Logits `[V]` behind any path of drafted tokens, its rows computed from all rows before them."""
    drafter = models.features

    @torch.no_grad()
    def whole(path: Path_) -> Tensor:
        return models.drafter(torch.tensor([[*text, *path]])).logits[0, -1]

    if drafter is None:
        return whole
    seen = features(models, text[:-1])

    @functools.cache
    @torch.no_grad()
    def row(path: Path_) -> tuple[Tensor, Tensor, Tensor]:
        hidden = seen
        if path:
            _, handed, before = row(path[:-1])
            hidden = torch.cat([before, handed], 1)
        ids = torch.tensor([[*text[1:], *path]])
        logits, out = drafter.module(ids, torch.arange(ids.shape[1])[None], hidden)
        return widened(drafter, logits[0, -1]), out[:, -1:], hidden

    return lambda path: row(path)[0]


def best_children(scores: Tensor, count: int) -> Children:
    """Scores and ids of the best, best first, the lower id of equals first."""
    best = scores.sort(descending=True, stable=True)
    return list(zip(best.values[:count].tolist(), best.indices[:count].tolist(), strict=True))
