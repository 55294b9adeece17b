"""First weights of an independent drafter: an ordinary Llama with tied embeddings, started from what the target knows.

1. The target's logits are E n, with n its normed last hidden state. The h directions of n that matter most for the
   logits of likely tokens are found (a principal component analysis of n, weighted by E^T F E, F the frequency of
   tokens), and E is projected on them. So the small embedding starts as a good output matrix, and unseen tokens have
   sensible rows.
2. A copying circuit: one head of layer 0 writes a sketch of the previous token, two heads of layer 1 look for places
   whose previous token is the current one and copy what stood there. A small model needs millions of tokens to
   find this by itself, and answers of small models copy a lot (from the prompt and from themselves).
"""

from __future__ import annotations

from typing import Any

import torch

SHARP = 20.0  # score of a place whose previous token is the current one, about
SKETCH = 30  # residual dimensions kept free at the start for the sketch of the previous token
SCALE = 0.1  # of the residual stream
CONSTANT = 15 * SCALE  # outweighs a token's own columns, so that all tokens have nearly the same norm


@torch.no_grad()
def basis(table: torch.Tensor, states: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    """The target's output matrix in the order of importance.

    Args:
        table: float32 [V, E], the output matrix.
        states: float32 [M, E], what it is multiplied with, of some text.
        counts: float32 [V], how often the target predicts each token.

    Returns:
        float32 [V, E]; its products with a turned n are the logits, the first columns matter most.
    """
    table, states = table.double(), states.double()
    weight = counts.double() + 0.1 * counts.double().mean()
    metric = (table * (weight / weight.sum())[:, None]).T @ table
    value, vector = torch.linalg.eigh(metric)
    value = value.clamp(min=1e-9 * value.max())
    root, inverse = vector * value.sqrt() @ vector.T, vector * value.rsqrt() @ vector.T
    _, order = torch.linalg.eigh(root @ (states.T @ states) @ root)
    out = table @ inverse @ order.flip(1)  # eigh sorts upwards
    return (out / out.square().mean().sqrt()).float()


@torch.no_grad()
def start_draft(model: Any, target_basis: torch.Tensor, seed: int = 0) -> None:
    """Set the weights of `model`, a Llama of transformers with tied embeddings.

    Column 0 of its embedding is the same for all tokens, so it changes no probability; it gives the first head a
    constant query and key. Small models (h <= 60, one layer or one head) start without the copying circuit.

    Args:
        model: the drafter.
        target_basis: float32 [V, E], of `basis`.
        seed: of the random part.
    """
    config, generator = model.config, torch.Generator().manual_seed(seed)
    h = config.hidden_size
    for layer in model.model.layers:
        for name, weight in layer.named_parameters():
            if weight.dim() == 2:
                small = 0.3 * SCALE if name.endswith(("o_proj.weight", "down_proj.weight")) else 1.0
                weight.normal_(0, small * weight.shape[1] ** -0.5, generator=generator)
        for norm in (layer.input_layernorm, layer.post_attention_layernorm):
            norm.weight.fill_(2.0)
            norm.weight[0] = h**-0.5
    model.model.norm.weight.fill_(1.0)
    model.model.norm.weight[0] = 0
    circuit = h > 2 * SKETCH and config.num_hidden_layers > 1 and config.num_attention_heads > 1
    used = min(h - 1 - (SKETCH if circuit else 0), target_basis.shape[1])
    table = torch.zeros(len(target_basis), h)
    table[:, 1 : 1 + used] = SCALE * target_basis[:, :used]
    table[:, 0] = CONSTANT
    model.model.embed_tokens.weight.copy_(table)
    if circuit:
        sketch = torch.linalg.qr(torch.randn(h, SKETCH, generator=generator))[0].T  # [SKETCH, h]
        sketch[:, 0] = 0
        sketch[:, -SKETCH:] = 0
        _sketch_the_previous_token(model, sketch)
        _copy_what_followed(model, sketch, used)


def _sketch_the_previous_token(model: Any, sketch: torch.Tensor) -> None:
    """The first head of layer 0 looks one position back and writes what it sees into the last columns."""
    attention, d = model.model.layers[0].self_attn, model.config.head_dim
    theta = model.config.rope_parameters["rope_theta"]
    frequency = theta ** (-torch.arange(d // 2) / (d // 2))
    fast = (frequency > 0.08).float() * frequency.sqrt()  # a sum of such cosines peaks at distance 0
    key = torch.cat([fast, torch.zeros(d // 2)])
    # A query turned by -1 position: its rotary angle cancels a distance of one.
    turned = torch.cat([fast * frequency.cos(), -fast * frequency.sin()])
    gain = (40.0 * d**0.5 / (key @ key)) ** 0.5
    for product in (attention.q_proj, attention.k_proj, attention.v_proj):
        product.weight[:d] = 0
    attention.q_proj.weight[:d, 0], attention.k_proj.weight[:d, 0] = turned * gain, key * gain
    attention.v_proj.weight[:SKETCH] = sketch
    attention.o_proj.weight[:, :d] = 0
    attention.o_proj.weight[-SKETCH:, :SKETCH] = SCALE * torch.eye(SKETCH)


def _copy_what_followed(model: Any, sketch: torch.Tensor, used: int) -> None:
    """Two heads of layer 1 look for places whose previous token is the current one, and copy the token there."""
    attention, d, h = model.model.layers[1].self_attn, model.config.head_dim, model.config.hidden_size
    # Only slowly turning pairs can compare tokens over long distances; rotary pairs are (i, i + D/2).
    slow = torch.cat([torch.arange(d // 2 - SKETCH // 2, d // 2), torch.arange(d - SKETCH // 2, d)])
    match = (SHARP * d**0.5 / SKETCH) ** 0.5
    for head in range(2):
        at = head * d
        for product in (attention.q_proj, attention.k_proj, attention.v_proj):
            product.weight[at : at + d] = 0
        attention.q_proj.weight[at + slow] = match * sketch
        attention.k_proj.weight[at + slow, h - SKETCH + torch.arange(SKETCH)] = match
        columns = torch.arange(d) + 1 + head * d
        columns = columns[columns < 1 + used]
        places = at + torch.arange(len(columns))
        attention.v_proj.weight[places, columns] = 1.0
        attention.o_proj.weight[:, at : at + d] = 0
        attention.o_proj.weight[columns, places] = 2 * SCALE
