"""EAGLE-3: one layer over three of the target's hidden states, with a head of its own over frequent tokens.

Source: Li et al. 2025, EAGLE-3, section 3, the published checkpoints and the speculators format. The three states are
joined by `fc` where the target is tapped; the drafted rows go on from what the layer itself handed on, before its norm.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CaptureError
from .checkpoint import Checkpoint
from .feature_drafter import FeatureDrafter, compare_rotary, fill, llama_config
from .load import LoadedModel
from .taps import Taps
from .token_offsets import columns

TAPPED_IN_CONFIG = "eagle_aux_hidden_state_layer_ids"


class Eagle3(nn.Module):  # type: ignore[misc]
    """`(tokens [B, T], positions [B, T], hidden [B, T, F]) -> (logits [B, T, Vd], hidden [B, T, F])`."""

    def __init__(self, config: Any, embed: nn.Module, vocab: int, norm_before_residual: bool) -> None:
        from transformers.models.llama.modeling_llama import (
            LlamaAttention,
            LlamaMLP,
            LlamaRMSNorm,
            LlamaRotaryEmbedding,
        )

        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        attention = LlamaAttention(config, 0)
        for name in ("q_proj", "k_proj", "v_proj"):  # they read the embedding beside the state
            old = getattr(attention, name)
            setattr(attention, name, nn.Linear(2 * size, old.out_features, bias=old.bias is not None))
        self.midlayer = nn.Module()
        self.midlayer.self_attn = attention
        self.midlayer.mlp = LlamaMLP(config)
        for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
            setattr(self.midlayer, name, LlamaRMSNorm(size, eps))
        self.norm = LlamaRMSNorm(size, eps)
        self.lm_head = nn.Linear(size, vocab, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)
        self.embed_tokens = embed
        self.norm_before_residual = norm_before_residual

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.midlayer
        normed = layer.hidden_norm(hidden)
        beside = torch.cat([layer.input_layernorm(self.embed_tokens(tokens)), normed], -1)
        attended, _ = layer.self_attn(beside, position_embeddings=self.rotary(hidden, positions))
        hidden = (normed if self.norm_before_residual else hidden) + attended
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return self.lm_head(self.norm(hidden)), hidden


class Fuse(nn.Module):  # type: ignore[misc]
    """`[B, T, n * E] -> [B, T, F]`: the tapped states joined, each or all of them normed before in some variants."""

    def __init__(self, parts: int, size: int, out: int, eps: float, norm: str) -> None:
        from transformers.models.llama.modeling_llama import LlamaRMSNorm

        super().__init__()
        self.parts, self.norm = parts, norm
        self.fc = nn.Linear(parts * size, out, bias=False)
        if norm == "all":
            self.input_norm = LlamaRMSNorm(parts * size, eps)
        elif norm == "each":
            self.fc_norm = nn.ModuleList(LlamaRMSNorm(size, eps) for _ in range(parts))

    def forward(self, states: Tensor) -> Tensor:
        if self.norm == "all":
            states = self.input_norm(states)
        elif self.norm == "each":
            pieces = states.chunk(self.parts, -1)
            states = torch.cat([norm(piece) for norm, piece in zip(self.fc_norm, pieces, strict=True)], -1)
        return self.fc(states)


def load(checkpoint: Checkpoint, target: LoadedModel) -> FeatureDrafter:
    """Build the drafter from a checkpoint in the published layout or in that of speculators.

    Raises:
        CaptureError: a tensor is missing, has another shape or is not EAGLE-3's; the map of ids is wrong.
    """
    layer = "midlayer." if any(name.startswith("midlayer.") for name in checkpoint.tensors) else "layers.0."
    raw = checkpoint.config
    nested = raw.get("transformer_layer_config")
    if nested is not None:  # speculators
        checkpoint.config = {**nested, **{k: v for k, v in raw.items() if k not in ("transformer_layer_config",)}}
    config = llama_config(checkpoint, target, num_hidden_layers=1)
    rows, size = target.model.get_output_embeddings().weight.shape
    width = config.hidden_size
    taps, norm = _tapped(checkpoint, target.config.num_hidden_layers), _norm(checkpoint)
    fuse = Fuse(len(taps), size, width, config.rms_norm_eps, norm)
    fill(fuse, checkpoint, "", f"{len(taps)} states of {size} become {width}")
    head = checkpoint.take("lm_head.weight")
    if head.ndim != 2 or head.shape[1] != width:
        raise CaptureError(
            f"lm_head.weight in {checkpoint.source} is {list(head.shape)}, expected [draft ids, {width}]"
        )
    embed: nn.Module = target.model.get_input_embeddings()
    own = checkpoint.take_if("embed_tokens.weight", (rows, width), "the target's vocabulary and the drafter's size")
    notes = compare_rotary(config, target)
    if own is not None:
        embed = nn.Embedding.from_pretrained(own)
        if width == size and not torch.allclose(own.float(), embed_weight(target), atol=1e-2):
            notes.append("its embed_tokens are not the target's: fine if it was trained with them")
    elif width != size:
        raise CaptureError(
            f"{checkpoint.source} has hidden size {width} and no embed_tokens.weight, and the target's are of {size}"
        )
    module = Eagle3(config, embed, len(head), bool(raw.get("norm_before_residual", False)))
    fill(module.midlayer, checkpoint, layer)
    fill(module.norm, checkpoint, "norm.")
    fill(module.lm_head, checkpoint, "lm_head.")
    return FeatureDrafter(
        kind="eagle3",
        module=module,
        taps=Taps(taps, fuse),
        size=width,
        max_positions=config.max_position_embeddings,
        source=checkpoint.source,
        digest=checkpoint.digest,
        parameters=sum(tensor.numel() for name, tensor in checkpoint.tensors.items() if name not in ("d2t", "t2d")),
        column_of=columns(checkpoint, len(head), rows, target.vocab_size),
        notes=notes,
    )


def embed_weight(target: LoadedModel) -> Tensor:
    """The target's input embedding in float32, `[V, E]`."""
    return target.model.get_input_embeddings().weight.detach().float()


def _tapped(checkpoint: Checkpoint, layers: int) -> tuple[int, ...]:
    """Layers whose input is read: those that the configuration names, else 2, the middle, the third from the end."""
    nested = checkpoint.config.get("eagle_config") or {}
    named = checkpoint.config.get(TAPPED_IN_CONFIG) or nested.get(TAPPED_IN_CONFIG)
    taps = tuple(named) if named else (2, layers // 2, layers - 3)
    if not all(isinstance(i, int) and 0 <= i < layers for i in taps) or list(taps) != sorted(set(taps)):
        raise CaptureError(
            f"{checkpoint.source} reads what enters the layers {list(taps)} of a target that has {layers}; "
            f"correct {TAPPED_IN_CONFIG} in its config.json, or give the drafter of this target"
        )
    return taps


def _norm(checkpoint: Checkpoint) -> str:
    if any(name.startswith("fc_norm.") for name in checkpoint.tensors):
        return "each"
    return "all" if "input_norm.weight" in checkpoint.tensors else ""
