"""Published checkpoints, read as a compile reads them."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import torch
from helpers import checkpoints, plain_drafter
from helpers.decoding import loaded, prompt
from helpers.models import tiny_model
from torch import Tensor

from specc.capture.feature_drafter import FeatureDrafter, load_feature_drafter
from specc.drafter import parse_drafter

Config, Tensors = dict[str, Any], dict[str, Tensor]
TEXT = prompt(11)
LAYERS = "eagle_aux_hidden_state_layer_ids"  # of a configuration


@functools.cache
def target(layers: int = 3, **sizes: Any) -> Any:
    return tiny_model(num_hidden_layers=layers, **sizes)


def made(kind: str, **options: Any) -> tuple[Config, Tensors]:
    makers = {"eagle": checkpoints.eagle, "eagle3": checkpoints.eagle3, "medusa": checkpoints.medusa}
    return makers[kind](target(), **options)


def read(
    folder: Path, kind: str, config: Config, tensors: Tensors, *, layers: int = 3, dtype: str = "float32", **save: Any
) -> FeatureDrafter:
    checkpoints.save(folder, config, tensors, **save)
    spec = parse_drafter(f"{kind}:{folder}")
    return load_feature_drafter(spec, loaded(target(layers)), dtype=dtype)


def logits(drafter: FeatureDrafter) -> Tensor:
    """Behind every token of `TEXT` but the first."""
    return drafter.first_drafts(target(), torch.tensor([TEXT]))[1:]


def same(drafter: FeatureDrafter, config: Config, tensors: Tensors) -> bool:
    """Whether it computes what the plain formula does."""
    plain = getattr(plain_drafter, drafter.kind)(target(), config, tensors, TEXT)
    return torch.allclose(logits(drafter), plain, atol=2e-4)
