"""EAGLE, EAGLE-3 and Medusa from the tensors of their files, written plainly: one text, no module of ours."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]


@torch.no_grad()
def states(target: Any, text: list[int]) -> tuple[list[Tensor], Tensor]:
    """What enters each decoder layer, and what enters the head, `[T, E]` each."""
    out = target.model(torch.tensor([text]), output_hidden_states=True)
    return [state[0] for state in out.hidden_states[:-1]], out.last_hidden_state[0]


@torch.no_grad()
def eagle(target: Any, config: dict[str, Any], tensors: Tensors, text: list[int]) -> Tensor:
    """Logits `[T - 1, V]` behind every token but the first."""
    embed = tensors.get("embed_tokens.weight", target.get_input_embeddings().weight)
    x = torch.cat([embed[text[1:]], states(target, text)[1][:-1]], -1) @ tensors["fc.weight"].T
    x = x + tensors.get("fc.bias", torch.zeros(1))
    for layer in range(config["num_hidden_layers"]):
        of = {k.removeprefix(f"layers.{layer}."): v for k, v in tensors.items() if k.startswith(f"layers.{layer}.")}
        normed = _norm(x, of["input_layernorm.weight"], config) if layer else x
        x = x + _attention(normed, of, config)
        x = x + _mlp(_norm(x, of["post_attention_layernorm.weight"], config), of)
    return x @ target.get_output_embeddings().weight.T


@torch.no_grad()
def eagle3(target: Any, config: dict[str, Any], tensors: Tensors, text: list[int]) -> Tensor:
    """Logits `[T - 1, Vd]` behind every token but the first."""
    entering = states(target, text)[0]
    taps = [entering[i][:-1] for i in config["eagle_aux_hidden_state_layer_ids"]]
    if "fc_norm.0.weight" in tensors:
        taps = [_norm(tap, tensors[f"fc_norm.{i}.weight"], config) for i, tap in enumerate(taps)]
    joined = torch.cat(taps, -1)
    if "input_norm.weight" in tensors:
        joined = _norm(joined, tensors["input_norm.weight"], config)
    hidden = joined @ tensors["fc.weight"].T
    of = {k.removeprefix("midlayer."): v for k, v in tensors.items() if k.startswith("midlayer.")}
    embed = tensors.get("embed_tokens.weight", target.get_input_embeddings().weight)[text[1:]]
    normed = _norm(hidden, of["hidden_norm.weight"], config)
    beside = torch.cat([_norm(embed, of["input_layernorm.weight"], config), normed], -1)
    hidden = (normed if config.get("norm_before_residual") else hidden) + _attention(beside, of, config)
    hidden = hidden + _mlp(_norm(hidden, of["post_attention_layernorm.weight"], config), of)
    return _norm(hidden, tensors["norm.weight"], config) @ tensors["lm_head.weight"].T


@torch.no_grad()
def medusa(target: Any, tensors: Tensors, text: list[int], heads: int, blocks: int = 1) -> Tensor:
    """Logits `[heads, V]` from the hidden state in front of the last token."""
    hidden, rows = states(target, text)[1][-2], []
    for k in range(heads):
        x = hidden
        for block in range(blocks):
            weight, bias = tensors[f"{k}.{block}.linear.weight"], tensors[f"{k}.{block}.linear.bias"]
            x = x + nn.functional.silu(weight @ x + bias)
        rows.append(tensors[f"{k}.{blocks}.weight"] @ x)
    return torch.stack(rows)


def _norm(x: Tensor, weight: Tensor, config: dict[str, Any]) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight


def _mlp(x: Tensor, of: Tensors) -> Tensor:
    gate = nn.functional.silu(x @ of["mlp.gate_proj.weight"].T)
    return (gate * (x @ of["mlp.up_proj.weight"].T)) @ of["mlp.down_proj.weight"].T


def _attention(x: Tensor, of: Tensors, config: dict[str, Any]) -> Tensor:
    size, rows = config["head_dim"], len(x)
    q, k, v = (
        (x @ of[f"self_attn.{n}_proj.weight"].T + of.get(f"self_attn.{n}_proj.bias", torch.zeros(1))).view(
            rows, -1, size
        )
        for n in "qkv"
    )
    angle = torch.arange(rows)[:, None] / config.get("rope_theta", 10000.0) ** (torch.arange(0, size, 2) / size)
    angle = torch.cat([angle, angle], -1)[:, None]
    q, k = (t * angle.cos() + torch.cat([-t[..., size // 2 :], t[..., : size // 2]], -1) * angle.sin() for t in (q, k))
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], 1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / size**0.5
    law = scores.masked_fill(~torch.ones(rows, rows).tril().bool(), float("-inf")).softmax(-1)
    return torch.einsum("hij,jhd->ihd", law, v).reshape(rows, -1) @ of["self_attn.o_proj.weight"].T
