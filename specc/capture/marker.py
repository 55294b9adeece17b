"""The attention and mask functions that make a transformers model emit `specc::attend` instead of attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import ops  # noqa: F401  registers specc::attend
from ..errors import CaptureError

MARKER = "specc_marker"
# Arguments that models pass along and that say nothing about the scores.
HARMLESS = {"position_ids", "use_cache", "output_attentions", "output_router_logits", "cache_position", "training"}


def register_marker() -> None:
    """Make `MARKER` known to transformers as an attention implementation; safe to call again."""
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(MARKER, marker_attention)
    AttentionMaskInterface.register(MARKER, marker_mask)


def marker_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sinks: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Emit the marker of one layer.

    Args:
        module: the model's attention module.
        query: `[B, H, T, D]`.
        key: `[B, G, T, D]`.
        value: `[B, G, T, Dv]`.
        attention_mask: must be None; what a row sees is the engine's business.

    Returns:
        `[B, T, H, Dv]`, and None for the weights.

    Raises:
        CaptureError: the layer does something that the marker cannot carry.
    """
    layer = getattr(module, "layer_idx", None)
    name = f"{type(module).__name__} of layer {layer}"
    if attention_mask is not None:
        raise CaptureError(f"{name} makes an attention mask of its own")
    if dropout:
        raise CaptureError(f"{name} applies dropout {dropout}")
    if not (is_causal if is_causal is not None else getattr(module, "is_causal", True)):
        raise CaptureError(f"{name} is not causal")
    for key_, item in others.items():
        if item is not None and item is not False and key_ not in HARMLESS:
            raise CaptureError(f"{name} passes {key_} to its attention, which cannot be carried into an engine")
    if sliding_window is not None and sliding_window <= 0:
        sliding_window = None
    out = torch.ops.specc.attend(
        query,
        key,
        value,
        -1 if layer is None else layer,
        query.shape[-1] ** -0.5 if scaling is None else float(scaling),
        sliding_window,
        softcap,
        s_aux if s_aux is not None else sinks,
    )
    return out.transpose(1, 2).contiguous(), None  # models view it, as they may with every other attention


def marker_mask(**asked: Any) -> None:
    """No mask; refuse the kinds of mask that the markers could not restore.

    Raises:
        CaptureError: the model asks for chunks or for a mask over its own function.
    """
    chunk = getattr(asked.get("config"), "attention_chunk_size", None)
    if chunk is not None and asked.get("local_size") == chunk:
        raise CaptureError("attention in chunks cannot be carried into an engine")
    if asked.get("use_vmap"):
        raise CaptureError("the model lays an extra mask over its attention, which cannot be carried into an engine")
