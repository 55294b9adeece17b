"""First weights of an EAGLE-3 drafter: a linear guess, fitted in closed form to what the target thought.

Training on a small machine sees few tokens, and from random numbers most of them are spent on finding out that
features are features. So `fc` is fitted to tell the target's final state of a position from the taps, and every head
looks at its own row only and adds what leads, linearly, from that state and the next token's embedding to the state
after it. The head and the last norm are the target's own, and the MLP starts at zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional as F

from .fit import fit

if TYPE_CHECKING:
    from .eagle3 import Eagle3

PEAK = 6.0  # by how much the score of the own row exceeds that of the row before


@torch.no_grad()
def start_eagle3(model: Eagle3, target: Any, rows: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Set the weights of `model`.

    Args:
        model: the drafter.
        target: the target, a transformers model.
        rows: of some texts, ids int64 [n] and float32 [n, 4E], the three taps and the input of the LM head.
    """
    size, layer = model.shape.hidden_size, model.midlayer
    gain = target.base_model.norm.weight.float()
    taps = torch.cat([states[1:, : 3 * size] for _, states in rows])  # the first row is of another kind
    unit = [states[1:, 3 * size :] / gain for _, states in rows]  # the final residual stream, of rms 1
    model.fc.weight.copy_(fit(taps, torch.cat(unit)))
    eps = model.shape.rms_norm_eps
    embedded = torch.cat([F.rms_norm(model.embedding[ids[2:-1]], (size,), eps=eps) for ids, _ in rows])
    feature = torch.cat([states[1:-2, : 3 * size] for _, states in rows]) @ model.fc.weight.T
    wanted = torch.cat([state[1:-1] for state in unit]) - feature
    both = torch.cat([embedded, F.rms_norm(feature, (size,), eps=eps)], -1)
    _look_at_itself(model, embedded)
    step = fit(both, wanted)
    heads = layer.self_attn.kv_heads * layer.self_attn.head_dim
    if heads >= size and layer.self_attn.heads == layer.self_attn.kv_heads:
        layer.self_attn.v_proj.weight.zero_()
        layer.self_attn.v_proj.weight[:size] = step
        layer.self_attn.o_proj.weight.zero_()
        layer.self_attn.o_proj.weight[:, :size] = torch.eye(size)
    layer.mlp.down_proj.weight.zero_()
    model.norm.weight.copy_(gain)
    model.lm_head.weight.copy_(target.get_output_embeddings().weight[model.kept])


def _look_at_itself(model: Eagle3, embedded: torch.Tensor) -> None:
    """Queries and keys that are nearly the same for all tokens, and whose rotary angles agree at distance 0 only."""
    attention, size = model.midlayer.self_attn, model.shape.hidden_size
    constant = fit(embedded, torch.ones(len(embedded), 1), 1e-2)[0]  # nearly 1 on every embedding
    half = attention.head_dim // 2
    frequency = model.shape.rope_theta ** (-torch.arange(half) / half)
    fast = (frequency > 0.08).float() * frequency.sqrt()
    drop = (fast.square() * (1 - frequency.cos())).sum()
    key = torch.cat([fast, torch.zeros(half)]) * (PEAK / drop * attention.head_dim**0.5).sqrt()
    for product in (attention.q_proj, attention.k_proj):
        small = 0.02 * size**-0.5
        product.weight.normal_(0, small, generator=torch.Generator().manual_seed(len(product.weight)))
        product.weight.view(-1, attention.head_dim, 2 * size)[:, :, :size] += key[:, None] * constant
