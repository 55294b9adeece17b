"""EAGLE: a decoder layer that foretells the target's next feature, under the target's own head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .batches import Batch
from .drafter import Drafter, Rows
from .fit import fit
from .layers import MLP, Attention, RMSNorm, half
from .shape import DrafterShape
from .unroll import Chain

REGRESSION = 10.0  # weight of the regression on features beside the cross-entropy, as its authors weigh them


class EagleLayer(nn.Module):  # type: ignore[misc]
    """A Llama layer without the norm before attention."""

    def __init__(self, shape: DrafterShape) -> None:
        super().__init__()
        size = shape.hidden_size
        self.self_attn = Attention(size, size, shape.heads, shape.kv_heads, shape.head_dim)
        self.post_attention_layernorm = RMSNorm(size, shape.rms_norm_eps)
        self.mlp = MLP(size, shape.intermediate_size)

    def finish(self, x: torch.Tensor, gathered: torch.Tensor) -> torch.Tensor:
        """[M, E], the layer's input, and [M, H * D], what attention gathered -> [M, E]."""
        out = x + self.self_attn.o_proj(gathered)
        return out + self.mlp(self.post_attention_layernorm(out))


class Eagle(Drafter):
    """The drafter. Names of weights are those of the published checkpoints.

    Args:
        shape: sizes.
        embedding: float32 [V, E], the target's; neither trained nor saved.
        lm_head: float32 [V, E], the target's; neither trained nor saved.
        kept: int64 [N], ids within which the cross-entropy is taken. All ids are drafted: the head is the target's.
    """

    def __init__(self, shape: DrafterShape, embedding: torch.Tensor, lm_head: torch.Tensor, kept: torch.Tensor) -> None:
        super().__init__(kept, len(lm_head))
        self.shape = shape
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size, bias=True)
        self.layers = nn.ModuleList([EagleLayer(shape)])
        self.register_buffer("embedding", embedding, persistent=False)
        self.register_buffer("lm_head", lm_head, persistent=False)
        self.register_buffer("frequent", lm_head[kept], persistent=False)

    @staticmethod
    def taps(count: int) -> tuple[int, ...]:
        """The input of the LM head."""
        return (count,)

    @torch.no_grad()
    def start(self, target: Any, rows: Rows) -> None:
        """`fc` is fitted to the next feature; the layer adds nothing yet."""
        pairs = [
            torch.cat([self.embedding[ids[1:-1]], states[:-2, self.shape.hidden_size :]], -1) for ids, states in rows
        ]
        x = torch.cat(pairs)
        y = torch.cat([states[1:-1, self.shape.hidden_size :] for _, states in rows])
        fitted = fit(torch.cat([x, torch.ones(len(x), 1)], -1), y)
        self.fc.weight.copy_(fitted[:, :-1])
        self.fc.bias.copy_(fitted[:, -1])
        self.layers[0].self_attn.o_proj.weight.zero_()
        self.layers[0].mlp.down_proj.weight.zero_()

    def head(self, step: int) -> torch.Tensor:
        return self.frequent

    def unroll(self, batch: Batch, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        layer, chain = self.layers[0], Chain(len(batch.ids), batch.width, self.shape.rope_theta)
        x = self.fc(torch.cat([self.embedding[batch.token(batch.place, 1)], batch.states], -1))
        chain.begin(layer.self_attn, x, batch.place)
        base = batch.bases(0)
        feature = x = x[torch.searchsorted(batch.place, base)]
        for step in range(steps):
            if step:
                narrower = batch.bases(step)
                which = torch.searchsorted(base, narrower)
                base = narrower
                chain.keep(which)
                x = self.fc(torch.cat([self.embedding[batch.token(base, 1 + step)], feature[which]], -1))
                chain.go_on(layer.self_attn, x, base, step)
            feature = layer.finish(x, chain.attend(layer.self_attn, x, base, step))
            yield base, feature

    def beside(self, batch: Batch, base: torch.Tensor, hidden: torch.Tensor, step: int) -> torch.Tensor:
        """Smooth L1 to the target's feature of the position."""
        wanted = batch.states[torch.searchsorted(batch.place, base) + 1 + step]
        return REGRESSION * F.smooth_l1_loss(hidden, wanted)

    def choices(self, hidden: torch.Tensor, step: int) -> torch.Tensor:
        return (hidden @ self.lm_head.T).argmax(-1)

    def files(self, target: Any, layers: tuple[int, ...]) -> dict[str, Any]:
        settings = {**self.shape.settings(target, "LlamaForCausalLMEagle"), "bias": True}
        return {"config.json": settings, "model.safetensors": half(self)}
