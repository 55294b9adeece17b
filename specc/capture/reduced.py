"""A small random model of the same class as a given one, with every kind of its layers: what the proof runs on."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch

WINDOW = 8  # a short text passes it
ORIGINAL = 16  # rotary scaling of all positions past it is used by a short text
POSITIONS = 512
VOCABULARY = 128
WINDOWS = ("sliding_window", "window_size", "attention_window_size")
WIDTHS = (
    "intermediate_size",
    "ffn_dim",
    "ffn_hidden_size",
    "n_inner",
    "moe_intermediate_size",
    "dense_ffn_hidden_size",
)


def reduced_config(config: Any, *, narrow: bool = True) -> Any:
    """A copy of a model's configuration with fewer layers and heads, a small vocabulary and short windows.

    Sizes of one head, experts, low ranks, scales and every option stay as they are, and so does each kind of layer.

    Args:
        config: configuration of a causal language model.
        narrow: also take fewer heads and a smaller hidden size.
    """
    whole = copy.deepcopy(config)
    small = whole.get_text_config()
    layers = small.num_hidden_layers
    keep = _layers_needed(small)
    for key, item in list(vars(small).items()):
        if isinstance(item, list) and len(item) == layers:
            setattr(small, key, item[:keep])
    small.num_hidden_layers = keep
    if narrow:
        _narrow(small)
    for key in WIDTHS:
        if isinstance(getattr(small, key, None), int):
            setattr(small, key, 64)
    for key in WINDOWS:
        if isinstance(getattr(small, key, None), int) and getattr(small, key) > 0:
            setattr(small, key, WINDOW)
    _shorten(small)
    for each in (small, whole):
        if hasattr(each, "vocab_size"):
            each.vocab_size = VOCABULARY
        each.bos_token_id, each.eos_token_id, each.pad_token_id = 1, None, None
        each.use_cache, each.dtype = True, torch.float32
    for key in whole.sub_configs:  # towers for pictures and sound are not captured
        tower = getattr(whole, key)
        if tower is not small and getattr(tower, "num_hidden_layers", None):
            tower.num_hidden_layers = 1
    if hasattr(whole, "quantization_config"):
        del whole.quantization_config
    return whole


def reduced_models(config: Any, model_class: Any) -> Iterator[Any]:
    """Random models of `reduced_config`, wider weights first; take the first whose text varies.

    Args:
        config: configuration of a causal language model.
        model_class: its class.
    """
    try:
        model = model_class._from_config(reduced_config(config))
        _probe(model)
    except Exception:  # noqa: BLE001  sizes of this family hang together otherwise: keep them
        model = model_class._from_config(reduced_config(config, narrow=False))
        _probe(model)
    model.generation_config.eos_token_id = None
    for seed, gain in enumerate((2.0, 2.0, 3.0, 4.0, 1.5, 6.0)):
        scramble(model, seed, gain)
        yield model.float().eval()


def scramble(model: Any, seed: int, gain: float) -> None:
    """Random weights: matrices of spread `gain / sqrt(inputs)`, vectors moved a little from what they are."""
    generator = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings()
    with torch.no_grad():
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator)
            if weight.ndim > 1:
                weight.copy_(noise * gain * weight.shape[-1] ** -0.5)
            else:
                weight.copy_(weight.clamp(-1, 1) * 0.99 + noise * 0.1)
        if head is not None and head.weight is model.get_input_embeddings().weight:
            head.weight.mul_(0.02)  # a tied head favours the token that was read: let the layers speak louder


def _layers_needed(config: Any) -> int:
    """The shortest run of first layers that holds every kind of layer, and at least two."""
    layers: int = config.num_hidden_layers
    lists = [v for v in vars(config).values() if isinstance(v, list) and len(v) == layers and v != list(range(layers))]
    kinds = list(zip(*(map(str, v) for v in lists), strict=True)) or [()] * layers
    last = max(kinds.index(kind) for kind in set(kinds)) + 1
    dense: int = getattr(config, "first_k_dense_replace", 0) or 0
    return min(layers, max(2, last, dense + 1))


def _narrow(config: Any) -> None:
    """Fewer heads, in the proportion of the original, and the hidden size that goes with them."""
    heads, hidden = config.num_attention_heads, config.hidden_size
    groups = getattr(config, "num_key_value_heads", None) or heads
    share = min(heads // groups, 8)
    fewer_groups = min(groups, 4 if share == 1 else 2)
    fewer = fewer_groups * share
    config.num_attention_heads = fewer
    if hasattr(config, "num_key_value_heads"):
        config.num_key_value_heads = fewer_groups
    config.hidden_size = hidden * fewer // heads


def _shorten(config: Any) -> None:
    """Few positions, and few original ones where rotary positions are scaled."""
    if getattr(config, "max_position_embeddings", None):
        config.max_position_embeddings = POSITIONS
    parameters = getattr(config, "rope_parameters", None) or {}
    for item in (parameters, *parameters.values()):
        if isinstance(item, dict) and "original_max_position_embeddings" in item:
            # longrope is captured below its original length only, so the proof has to stay below it
            long = item.get("rope_type") == "longrope"
            item["original_max_position_embeddings"] = POSITIONS // 2 if long else ORIGINAL
            if long and hasattr(config, "original_max_position_embeddings"):
                config.original_max_position_embeddings = POSITIONS // 2


def _probe(model: Any) -> None:
    with torch.no_grad():
        model(input_ids=torch.ones(1, 3, dtype=torch.long), use_cache=False)
