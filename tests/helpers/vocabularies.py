"""Drafters that say the same under other ids, and tokenizers that spell it in other ways."""

from __future__ import annotations

import copy
import functools
import json
from typing import Any

import torch
from helpers.decoding import Pair, pair
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast


def renamed(model: Any, ids: Tensor, rows: int) -> Any:
    """A model of `rows` ids in which id `ids[t]` is what `t` is in `model` (-1: left out); the others are noise."""
    other = copy.deepcopy(model)
    kept = (ids >= 0).nonzero().flatten()
    generator = torch.Generator().manual_seed(3)
    tables = {}
    for name, table in (("in", model.get_input_embeddings()), ("out", model.get_output_embeddings())):
        weight = torch.randn(rows, table.weight.shape[1], generator=generator) * table.weight.std()
        weight[ids[kept]] = table.weight.detach()[kept]
        tables[name] = nn.Parameter(weight)
    other.get_input_embeddings().weight, other.get_output_embeddings().weight = tables["in"], tables["out"]
    other.get_input_embeddings().num_embeddings = other.get_output_embeddings().out_features = rows
    other.config.vocab_size = rows
    return other


@functools.lru_cache
def permuted(vocab: int = 128, rows: int = 150, lacking: int = 0, shift: int = 0) -> Pair:
    """The near pair with the drafter's ids shuffled among `rows`; it lacks every id t with t % 7 < `lacking`.

    `shift` plants a fault: the map of the columns is off by so many.
    """
    like = pair("near", vocab)
    ids = torch.randperm(rows, generator=torch.Generator().manual_seed(1))[:vocab]
    lacks = torch.arange(vocab) % 7 < lacking
    drafter = renamed(like.drafter, torch.where(lacks, -1, ids), rows)
    columns = torch.where(lacks, -1, (ids + shift) % rows)
    fed_as = torch.where(lacks, ids[-1], ids)
    models = Pair(like.target, drafter, vocab, maps={"fed_as": fed_as, "column_of": columns})
    models.captured["target", 1] = like.model("target")
    models.store.tensors.update(like.model("target").weights)
    return models


def reordered(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> PreTrainedTokenizerFast:
    """The same tokens, id t under `ids[t]`."""
    spec = json.loads(tokenizer.backend_tokenizer.to_str())
    spec["model"]["vocab"] = {token: ids[index] for token, index in spec["model"]["vocab"].items()}
    for added in spec["added_tokens"]:
        added["id"] = ids[added["id"]]
    core = Tokenizer.from_str(json.dumps(spec))
    named = {name: getattr(tokenizer, name) for name in ("bos_token", "eos_token", "pad_token")}
    return PreTrainedTokenizerFast(tokenizer_object=core, chat_template=tokenizer.chat_template, **named)


def sentencepiece(pieces: list[str], merges: list[tuple[str, str]] | None = None) -> PreTrainedTokenizerFast:
    """A vocabulary as Llama 2's: `<unk>`, `<s>`, `</s>`, 256 bytes, then pieces with `▁` for a space."""
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    table = {name: index for index, name in enumerate(names)}
    core = Tokenizer(models.BPE(table, merges or [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(parts)
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names[:3]])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
