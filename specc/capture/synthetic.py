"""A model with random weights whose first layers agree with the whole as often as asked: speed at size, no download."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError
from .load import DTYPES, quietly
from .taps import decoder_layers

ROWS, TOKENS = 4, 128  # the random texts on which agreement is measured
_ROUNDS = 12
_LOWEST, _HIGHEST = -12.0, 2.0  # log2 of the deeper layers' scale


class Shape(NamedTuple):
    """Sizes of a Llama, and how many of its first layers draft."""

    hidden: int
    layers: int
    heads: int
    groups: int
    inner: int
    vocab: int
    kept: int


SHAPES = {
    "llama-tiny": Shape(64, 6, 4, 2, 128, 512, 1),
    "llama-135m": Shape(576, 30, 9, 3, 1536, 49152, 2),
    "llama-1b": Shape(2048, 16, 32, 8, 8192, 128256, 1),
    "llama-3b": Shape(3072, 28, 24, 8, 8192, 128256, 1),
    "llama-8b": Shape(4096, 32, 32, 8, 14336, 128256, 2),
}


def check_synthetic(name: str, accept: float) -> Shape:
    """The shape of a name, for an acceptance that can be reached.

    Raises:
        ConfigError: no such shape, or a share that cannot be.
    """
    if name not in SHAPES:
        raise ConfigError(f"--synthetic {name!r} is not one of {', '.join(SHAPES)}")
    if not 0 < accept < 1:
        raise ConfigError(f"--accept {accept} must be above 0 and below 1, as 0.8")
    return SHAPES[name]


def write_synthetic(
    name: str, accept: float, folder: Path, *, dtype: str = "float32", device: str = "cpu", seed: int = 0
) -> float:
    """Write a transformers folder, tokenizer and all, for which `self:KEPT` is the drafter.

    Every layer adds to what came before it: those behind the first `kept` so little that the head says of both the same
    next token about as often as asked. The text means nothing, and is all that a text is otherwise.

    Args:
        name: one of `SHAPES`.
        accept: share of next tokens on which the first layers and the whole shall agree, above 0 and below 1.
        folder: is made.
        device: where the weights are drawn and agreement is measured.

    Returns:
        The share that was reached, on `ROWS * TOKENS` positions of random text.

    Raises:
        ConfigError: no such shape, or a share that cannot be.
    """
    shape = check_synthetic(name, accept)
    generator = torch.Generator(device).manual_seed(seed)
    model = _model(shape, DTYPES[dtype], generator)
    texts = torch.randint(shape.vocab, (ROWS, TOKENS), generator=generator, device=device)
    reached = _tune(model, shape.kept, texts, accept)
    with quietly():
        model.to("cpu").save_pretrained(folder)
        _tokenizer(shape.vocab).save_pretrained(folder)
    return reached


def _model(shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        intermediate_size=shape.inner,
        vocab_size=shape.vocab,
        max_position_embeddings=8192,
        tie_word_embeddings=False,  # a tied head would say the token that it was given
        bos_token_id=None,
        eos_token_id=None,
        dtype=dtype,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to(dtype).to_empty(device=generator.device)
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(generator.device)
    for weight in model.parameters():
        if weight.ndim == 1:
            weight.data.fill_(1.0)
        else:
            spread = 1.0 if weight is model.get_input_embeddings().weight else 1 / math.sqrt(weight.shape[1])
            weight.data.normal_(0.0, spread, generator=generator)
    return model.eval()


def _tune(model: Any, kept: int, texts: Tensor, accept: float) -> float:
    """Bisect the scale of what the deeper layers add; the more they add, the less the first layers know."""
    low, high, now = _LOWEST, _HIGHEST, 0.0
    share = 1.0
    for _ in range(_ROUNDS):
        middle = (low + high) / 2
        _scale(model, kept, 2 ** (middle - now))
        now, share = middle, _agreement(model, kept, texts)
        low, high = (middle, high) if share > accept else (low, middle)
    return share


def _scale(model: Any, kept: int, factor: float) -> None:
    for layer in decoder_layers(model)[kept:]:
        for product in (layer.self_attn.o_proj, layer.mlp.down_proj):
            product.weight.data.mul_(factor)


def _agreement(model: Any, kept: int, texts: Tensor) -> float:
    """Share of positions at which the head says the same behind the first layers and behind all."""
    with torch.no_grad():
        out = model(input_ids=texts, output_hidden_states=True, use_cache=False)
        early = model.lm_head(model.model.norm(out.hidden_states[kept]))
        return (early.argmax(-1) == out.logits.argmax(-1)).float().mean().item()


def _tokenizer(size: int) -> Any:
    """Bytes, and a word for every further id, so that each can be said."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate([*letters, *(f"<{i}>" for i in range(len(letters), size))])}
    core = Tokenizer(models.BPE(words, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=core)
