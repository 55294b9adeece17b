"""Published checkpoints of drafters, tiny and random, written with the real key names and shapes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

Tensors = dict[str, Tensor]


def layer_tensors(prefix: str, config: Any, inputs: int, generator: torch.Generator, norm: bool) -> Tensors:
    """A Llama layer whose attention reads `inputs` numbers."""
    size, head = config.hidden_size, config.head_dim
    widths = {"q": config.num_attention_heads, "k": config.num_key_value_heads, "v": config.num_key_value_heads}
    made = {
        f"{prefix}self_attn.{n}_proj.weight": normal(w * head, inputs, generator=generator) for n, w in widths.items()
    }
    made[f"{prefix}self_attn.o_proj.weight"] = normal(size, widths["q"] * head, generator=generator)
    for name in ("gate", "up"):
        made[f"{prefix}mlp.{name}_proj.weight"] = normal(config.intermediate_size, size, generator=generator)
    made[f"{prefix}mlp.down_proj.weight"] = normal(size, config.intermediate_size, generator=generator)
    made[f"{prefix}post_attention_layernorm.weight"] = torch.ones(size)
    if norm:
        made[f"{prefix}input_layernorm.weight"] = torch.ones(size)
    return made


def normal(*shape: int, generator: torch.Generator, spread: float = 0.1) -> Tensor:
    return torch.randn(shape, generator=generator) * spread


def eagle(target: Any, *, layers: int = 1, seed: int = 3) -> tuple[dict[str, Any], Tensors]:
    """Configuration and tensors of an EAGLE drafter for a tiny target; it hands on about what it gets."""
    generator, config = torch.Generator().manual_seed(seed), target.config
    size = config.hidden_size
    tensors = {"fc.weight": normal(size, 2 * size, generator=generator), "fc.bias": normal(size, generator=generator)}
    tensors["fc.weight"][:, size:] += torch.eye(size)
    for i in range(layers):
        tensors |= layer_tensors(f"layers.{i}.", config, size, generator, norm=i > 0)
    return {**_llama(config), "num_hidden_layers": layers, "bias": True}, tensors


def eagle3(target: Any, *, draft_vocab: int = 0, seed: int = 3) -> tuple[dict[str, Any], Tensors]:
    """The same for EAGLE-3 and a target of 3 layers or more; `draft_vocab` ids of it, every one where it is 0."""
    generator, config = torch.Generator().manual_seed(seed), target.config
    size, vocab = config.hidden_size, config.vocab_size
    tensors = {"fc.weight": normal(size, 3 * size, generator=generator), "norm.weight": torch.ones(size)}
    tensors["fc.weight"][:, 2 * size :] += torch.eye(size)
    tensors |= layer_tensors("midlayer.", config, 2 * size, generator, norm=True)
    tensors["midlayer.hidden_norm.weight"] = torch.ones(size)
    head = target.get_output_embeddings().weight.detach().clone()
    if draft_vocab:
        ids = torch.randperm(vocab - 3, generator=generator)[:draft_vocab].sort().values + 3
        tensors["d2t"] = ids - torch.arange(draft_vocab)
        tensors["t2d"] = torch.zeros(vocab, dtype=torch.bool).index_fill(0, ids, True)
        head = head[ids]
    tensors["lm_head.weight"] = head.contiguous()
    extra = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": draft_vocab or vocab}
    if config.num_hidden_layers < 8:  # the usual places are not three different ones
        extra["eagle_aux_hidden_state_layer_ids"] = list(range(config.num_hidden_layers - 3, config.num_hidden_layers))
    return {**_llama(config), **extra, "num_hidden_layers": 1}, tensors


def speculators(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    """An EAGLE-3 checkpoint in the layout of speculators."""
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    proposal = {"proposal_type": "greedy", "speculative_tokens": 3}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.1.0",
        "draft_vocab_size": config["draft_vocab_size"],
        "norm_before_residual": True,
        "transformer_layer_config": {k: v for k, v in config.items() if k not in ("architectures", "draft_vocab_size")},
        "speculators_config": {"algorithm": "eagle3", "proposal_methods": [proposal]},
    }, renamed


def medusa(target: Any, *, heads: int = 3, blocks: int = 1, seed: int = 3) -> tuple[dict[str, Any], Tensors]:
    """Medusa heads that start from the target's own."""
    generator, size = torch.Generator().manual_seed(seed), target.config.hidden_size
    tensors: Tensors = {}
    for k in range(heads):
        for block in range(blocks):
            tensors[f"{k}.{block}.linear.weight"] = normal(size, size, generator=generator)
            tensors[f"{k}.{block}.linear.bias"] = normal(size, generator=generator)
        tensors[f"{k}.{blocks}.weight"] = target.get_output_embeddings().weight.detach().clone()
    return {"medusa_num_heads": 2, "medusa_num_layers": blocks}, tensors


def save(folder: Path, config: dict[str, Any], tensors: Tensors, name: str = "model.safetensors") -> Path:
    """Write a checkpoint; `name` ends in `.safetensors`, `.bin` or `.pt`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if name.endswith(".safetensors"):
        save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)
    return folder


def _llama(config: Any) -> dict[str, Any]:
    names = ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size", "vocab_size")
    names += ("max_position_embeddings", "rms_norm_eps")
    return {"model_type": "llama", **{name: getattr(config, name) for name in names}}
