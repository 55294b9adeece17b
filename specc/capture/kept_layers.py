"""A drafter made of layers of the target: early exit, or any layers skipped; weights and caches stay the target's."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

from torch import nn

from ..errors import ConfigError
from .load import LoadedModel
from .taps import decoder_layers


def kept_layers(target: LoadedModel, kept: Sequence[int]) -> LoadedModel:
    """The target without the layers that are not in `kept`: the others, then its norm and head.

    Every parameter and buffer is the target's own tensor; modules and configuration are new, and what the configuration
    lists for each layer (its kind of window, say) is cut alike.

    Args:
        target: as loaded; it is not changed.
        kept: numbers of layers, ascending.

    Raises:
        ConfigError: the target has no such layer, or all its layers are kept.
        CaptureError: no list of layers is found in the target.

    Source: LayerSkip (Elhoushi et al. 2024) for the first layers; Draft & Verify (Zhang et al. 2024) for any.
    """
    count = len(decoder_layers(target.model))
    if max(kept) >= count:
        raise ConfigError(
            f"drafter self: layer {max(kept)} was asked for and the target has layers 0 to {count - 1}; "
            f"try self:{max(1, count // 2)}"
        )
    if len(kept) == count:
        raise ConfigError(
            f"drafter self: all {count} layers of the target are kept, so a draft would cost what the target costs; "
            f"try self:{max(1, count // 2)}"
        )
    model = target.model
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    shorter = copy.deepcopy(model, shared)
    layers, config = decoder_layers(shorter), shorter.config.get_text_config()
    _drop(layers, kept)
    for name, value in list(vars(config).items()):
        if isinstance(value, list) and len(value) == count:
            setattr(config, name, [value[layer] for layer in kept])
    config.num_hidden_layers = len(kept)
    return dataclasses.replace(target, model=shorter, config=config)


def _drop(layers: nn.ModuleList, kept: Sequence[int]) -> None:
    """Drop the others, and number those that are left anew: a cache of transformers asks by number."""
    for layer in reversed(range(len(layers))):
        if layer not in kept:
            del layers[layer]
    for index, layer in enumerate(layers):
        for module in layer.modules():
            if getattr(module, "layer_idx", None) is not None:
                module.layer_idx = index
