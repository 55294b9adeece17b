"""Tiny random Llama targets, drafters that agree with them part of the time, and a tokenizer of 128 tokens."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2; the last ends a turn
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = [
    "th",
    "he",
    "in",
    "er",
    "an",
    "re",
    "on",
    "at",
    "en",
    "nd",
    "ti",
    "es",
    "or",
    "te",
    "of",
    "ed",
    "is",
    "it",
    "al",
    "ar",
]


def tiny_config(**changes: object) -> LlamaConfig:
    """Two layers, V = 128, H = 4, G = 2, E = 32; an initial spread that makes greedy text vary."""
    sizes = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return LlamaConfig(**{**sizes, **heads, **tokens, "initializer_range": 0.35, **changes})


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32, **changes: object) -> LlamaForCausalLM:
    """A random target; the same seed and changes give the same weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(tiny_config(**changes))
    model.generation_config = GenerationConfig(bos_token_id=1, eos_token_id=2, pad_token_id=0)
    return model.to(dtype).eval()


def tiny_drafter(target: LlamaForCausalLM, noise: float = 0.05, seed: int = 1) -> LlamaForCausalLM:
    """A copy of `target` with every matrix disturbed by `noise` of its spread: 0.05 agrees on half, 0 on all."""
    drafter = copy.deepcopy(target)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in drafter.parameters():
            if weight.ndim == 2:
                spread = weight.float().std() * noise
                weight += (torch.randn(weight.shape, generator=generator) * spread).to(weight.dtype)
    return drafter


def tiny_tokenizer(**changes: str) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 128 tokens: 3 specials, ASCII, the bytes of 'é', '€' and '😀', 20 merges.

    Characters outside these are dropped. `changes` renames tokens: `tiny_tokenizer(th="xx")`.
    """
    table = {c: c for c in map(chr, range(33, 127))} | {" ": "Ġ", "\n": "Ċ"}
    raw = [table.get(c, c) for c in map(chr, (*range(32, 127), 10))]
    raw += [_byte_letter(b) for b in "é€😀".encode()]
    names = [changes.get(t, t) for t in (*SPECIALS, *raw, *MERGES)][:128]
    merges = [(m[0], m[1]) for m in MERGES if m in names]
    core = Tokenizer(models.BPE({t: i for i, t in enumerate(names)}, merges))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    end, start, stop = SPECIALS
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=start, eos_token=stop, pad_token=end, chat_template=TEMPLATE
    )


def save_tiny(folder: Path | str, seed: int = 0, model: LlamaForCausalLM | None = None, **changes: object) -> Path:
    """A transformers folder of `model` (or of `tiny_model(seed, **changes)`) with the tiny tokenizer."""
    model = model or tiny_model(seed, **changes)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return Path(folder)


def _byte_letter(byte: int) -> str:
    """The letter by which byte-level BPE writes a byte (GPT-2's table)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    return chr(byte) if byte in plain else chr(256 + others.index(byte))
