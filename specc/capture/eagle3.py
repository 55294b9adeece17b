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
from .eagle3_settings import flag, norm_before, tapped
from .feature_drafter import FeatureDrafter
from .llama_parts import compare_rotary, fill, llama_config
from .load import LoadedModel
from .own_embedding import embedding
from .taps import Taps
from .token_offsets import columns


class Eagle3(nn.Module):  # type: ignore[misc]
    """`(tokens [B, T], positions [B, T], hidden [B, T, F]) -> (logits [B, T, Vd], hidden [B, T, F])`."""

    def __init__(
        self, config: Any, embed: nn.Module, vocab: int, *, norm_before_residual: bool, norm_output: bool
    ) -> None:
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
        self.norm_before_residual, self.norm_output = norm_before_residual, norm_output

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        layer = self.midlayer
        normed = layer.hidden_norm(hidden)
        beside = torch.cat([layer.input_layernorm(self.embed_tokens(tokens)), normed], -1)
        attended, _ = layer.self_attn(beside, position_embeddings=self.rotary(hidden, positions))
        hidden = (normed if self.norm_before_residual else hidden) + attended
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        normed = self.norm(hidden)
        return self.lm_head(normed), normed if self.norm_output else hidden


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
    nested = checkpoint.config.get("transformer_layer_config")
    if nested is not None:  # speculators
        checkpoint.config = {
            **nested,
            **{k: v for k, v in checkpoint.config.items() if k != "transformer_layer_config"},
        }
    config = llama_config(checkpoint, target, num_hidden_layers=1)
    rows, size = target.model.get_output_embeddings().weight.shape
    width, (taps, notes) = config.hidden_size, tapped(checkpoint, target.config.num_hidden_layers)
    fuse = Fuse(len(taps), size, width, config.rms_norm_eps, norm_before(checkpoint))
    fill(fuse, checkpoint, "", f"{len(taps)} hidden states of {size} become {width}")
    drafted = _head_rows(checkpoint, width)
    embed, more = embedding(checkpoint, target, width)
    said = {name: flag(checkpoint, name) for name in ("norm_before_residual", "norm_output")}
    module = Eagle3(config, embed, drafted, **said)
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
        column_of=columns(checkpoint, drafted, rows, target.vocab_size),
        notes=[*compare_rotary(config, target), *notes, *more],
    )


def _head_rows(checkpoint: Checkpoint, width: int) -> int:
    """Vd, the rows of the drafter's own head."""
    head = checkpoint.take("lm_head.weight", why="EAGLE-3 drafts by a head of its own")
    said = checkpoint.config.get("draft_vocab_size")
    if head.ndim != 2 or head.shape[1] != width or said not in (None, len(head)):
        rows = "draft_vocab_size" if said is None else said
        raise CaptureError(
            f"drafter: lm_head.weight in {checkpoint.source} is {list(head.shape)}, and its config.json asks for "
            f"[{rows}, {width}]; correct draft_vocab_size there, or fetch the drafter again"
        )
    return len(head)
