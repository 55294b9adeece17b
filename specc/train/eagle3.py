"""EAGLE-3: one decoder layer over the target's features at three layers, with a head of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from .batches import Batch
from .drafter import Drafter, Rows
from .layers import MLP, Attention, RMSNorm, half
from .shape import DrafterShape
from .start_eagle3 import start_eagle3
from .unroll import Chain
from .vocabulary import offsets


class MidLayer(nn.Module):  # type: ignore[misc]
    """The decoder layer: attention reads the token's embedding beside the feature, the residual is the feature."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        size = shape.hidden_size
        self.input_layernorm = RMSNorm(size, shape.rms_norm_eps)
        self.hidden_norm = RMSNorm(size, shape.rms_norm_eps)
        self.self_attn = Attention(2 * size, size, shape.heads, shape.kv_heads, shape.head_dim)
        self.post_attention_layernorm = RMSNorm(size, shape.rms_norm_eps)
        self.mlp = MLP(size, shape.intermediate_size)

    def read(self, embedded: torch.Tensor, feature: torch.Tensor) -> torch.Tensor:
        """[M, E] and [M, E] -> [M, 2E], what attention reads."""
        return torch.cat([self.input_layernorm(embedded), self.hidden_norm(feature)], -1)

    def finish(self, feature: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        """[M, E], the residual, and [M, H * D], what attention gathered -> [M, E], the layer's output."""
        out = feature + self.self_attn.o_proj(gathered)
        return out + self.mlp(self.post_attention_layernorm(out))


class Eagle3(Drafter):
    """The drafter. Names of weights are those of the published checkpoints.

    Args:
        shape: sizes.
        embedding: float32 [V, E], the target's; neither trained nor saved.
        kept: int64 [N], ascending ids of the target's vocabulary that it can draft.
    """

    def __init__(self, shape: DrafterShape, embedding: torch.Tensor, kept: torch.Tensor) -> None:
        super().__init__(kept, len(embedding))
        size = shape.hidden_size
        self.shape = shape
        self.fc = nn.Linear(3 * size, size, bias=False)
        self.midlayer = MidLayer(shape)
        self.norm = RMSNorm(size, shape.rms_norm_eps)
        self.lm_head = nn.Linear(size, len(kept), bias=False)
        self.register_buffer("embedding", embedding, persistent=False)

    @staticmethod
    def taps(count: int) -> tuple[int, ...]:
        """Low, middle, high."""
        return 2, count // 2, count - 3

    def start(self, target: Any, rows: Rows) -> None:
        start_eagle3(self, target, rows)

    def head(self, step: int) -> torch.Tensor:
        return self.lm_head.weight

    def unroll(self, batch: Batch, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        layer, chain = self.midlayer, Chain(len(batch.ids), batch.width, self.shape.rope_theta)
        feature = self.fc(batch.states)
        x = layer.read(self.embedding[batch.token(batch.place, 1)], feature)
        chain.begin(layer.self_attn, x, batch.place)
        base = batch.bases(0)
        which = torch.searchsorted(batch.place, base)
        feature, x = feature[which], x[which]
        for step in range(steps):
            if step:
                narrower = batch.bases(step)
                which = torch.searchsorted(base, narrower)
                base, feature = narrower, feature[which]
                chain.keep(which)
                x = layer.read(self.embedding[batch.token(base, 1 + step)], feature)
                chain.go_on(layer.self_attn, x, base, step)
            feature = layer.finish(feature, chain.attend(layer.self_attn, x, base, step))
            yield base, self.norm(feature)

    def files(self, target: Any, layers: tuple[int, ...]) -> dict[str, Any]:
        d2t, t2d = offsets(self.kept, len(self.embedding))
        settings = {
            **self.shape.settings(target, "LlamaForCausalLMEagle3"),
            "draft_vocab_size": len(self.kept),
            "target_hidden_size": self.shape.hidden_size,
            "eagle_config": {
                "eagle_aux_hidden_state_layer_ids": list(layers),
                "use_aux_hidden_state": True,
                "norm_before_residual": False,
            },
            "eagle_aux_hidden_state_layer_ids": list(layers),
            "norm_before_residual": False,
            "tie_word_embeddings": False,
        }
        weights = {**half(self), "d2t": d2t, "t2d": t2d}
        return {"config.json": settings, "model.safetensors": weights}
