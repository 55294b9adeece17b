"""Parts that drafters share: the Llama configuration of a checkpoint, checked against its target, and its tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..errors import CaptureError
from .checkpoint import Checkpoint
from .load import LoadedModel
from .rotary import rope_kinds


def llama_config(checkpoint: Checkpoint, target: LoadedModel, **own: Any) -> Any:
    """The checkpoint's Llama configuration, checked against the target.

    Args:
        own: fields that replace the checkpoint's.

    Raises:
        CaptureError: fields are missing or belong to another target.
    """
    from transformers import LlamaConfig

    from .marker import MARKER, register_marker

    fields = {**checkpoint.config, **own}
    for name in ("hidden_size", "num_attention_heads", "intermediate_size"):
        if not isinstance(fields.get(name), int):
            lacks = f"config.json of {checkpoint.source} lacks {name}"
            if not checkpoint.config:
                lacks = f"{checkpoint.source} has no config.json beside its weights, which says {name} and more"
            raise CaptureError(f"drafter: {lacks}; fetch the drafter again, all files of it")
    size, vocab = target.config.hidden_size, target.model.get_output_embeddings().weight.shape[0]
    meant = fields.get("target_hidden_size") or fields["hidden_size"]
    if meant != size:
        raise CaptureError(
            f"drafter: {checkpoint.source} was made for a target of hidden size {meant}, "
            f"{target.source} has {size}; give the drafter of this target"
        )
    if fields.get("vocab_size", vocab) not in (vocab, target.vocab_size):
        raise CaptureError(
            f"drafter: {checkpoint.source} was made for a vocabulary of {fields['vocab_size']}, "
            f"{target.source} has {vocab}; give the drafter of this target"
        )
    if fields.get("use_sliding_window") or fields.get("sliding_window") and fields.get("model_type") == "mistral":
        raise CaptureError(
            f"drafter: the layer of {checkpoint.source} attends within a window of {fields.get('sliding_window')}, "
            "which is not built; give a drafter that attends to the whole text"
        )
    known = {k: v for k, v in fields.items() if k not in ("architectures", "model_type", "transformers_version")}
    config = LlamaConfig(**known)
    register_marker()
    config._attn_implementation = MARKER
    if any("dynamic" in item["rope_type"] or item["rope_type"] == "longrope" for item in rope_kinds(config).values()):
        raise CaptureError("drafter: its rotary positions are scaled by the longest text seen, which no graph carries")
    return config


def compare_rotary(config: Any, target: LoadedModel) -> list[str]:
    """What differs between the rotary positions of drafter and target: a note each, since only acceptance suffers."""
    ours, theirs = (next(iter(rope_kinds(c).values()), {}) for c in (config, target.config))
    return [
        f"the drafter's rotary {name} is {ours.get(name)!r}, the target's {theirs.get(name)!r}: fine if it was trained "
        f"so; if few drafts are accepted, set it in the drafter's config.json as the target has it"
        for name in sorted(ours.keys() | theirs.keys())
        if theirs and ours.get(name) != theirs.get(name)
    ]


def fill(module: nn.Module, checkpoint: Checkpoint, prefix: str = "", why: str = "") -> None:
    """Take every parameter of a module from the checkpoint, under `prefix` and its own name.

    Products get the biases that the file has: a configuration does not always name them (Qwen2's drafters).
    """
    for name, part in module.named_modules():
        bias = f"{prefix}{name}{'.' if name else ''}bias"
        if isinstance(part, nn.Linear) and part.bias is None and bias in checkpoint.tensors:
            part.bias = nn.Parameter(torch.empty(part.out_features))
    for name, parameter in module.named_parameters():
        parameter.data = checkpoint.take(prefix + name, tuple(parameter.shape), why).detach().clone()
