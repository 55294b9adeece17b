"""The inputs that programs share, each made in one place: names, shapes and dtypes are those of the manifest."""

from __future__ import annotations

import torch
from torch import fx
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

from ..philox import NOISE
from ..program import Program

EOS_SLOTS = 8
_VECTORS = {
    "target_length": torch.int64,
    "drafter_length": torch.int64,
    "active": torch.bool,
    "limit": torch.int64,
    "draft_limit": torch.int64,
    "seed": torch.int64,
    "sample": torch.int64,
    "temperature": torch.float32,
    "top_k": torch.int64,
    "top_p": torch.float32,
    "min_p": torch.float32,
    "prompt_length": torch.int64,
    "min_length": torch.int64,
    "repetition_penalty": torch.float32,
    "presence_penalty": torch.float32,
    "frequency_penalty": torch.float32,
    "grammar_classes": torch.int64,
    "grammar_state": torch.int64,
    "window_at": torch.int64,
}
STATE = ("target_length", "drafter_length", "active", "grammar_state")
DRAFT = ("window", "window_at", "ngrams")
ROLES = {
    "history": "cache",
    "features": "cache",
    "bucket": "bucket",
    "tokens": "call",
    "start": "call",
    **dict.fromkeys(STATE, "state"),
    **dict.fromkeys(DRAFT, "draft"),
}


def vector(program: Program, name: str) -> fx.Node:
    """`[B]`, one number per row: a length, a limit or a parameter of the request."""
    return program.input(name, (program.sizes.batch,), _VECTORS[name])


def history(program: Program) -> fx.Node:
    """`[B, S]` int64, every row's token ids: the truth."""
    return program.input("history", (program.sizes.batch, program.sizes.slots), torch.int64)


def eos(program: Program) -> fx.Node:
    """`[B, 8]` int64, ids that end a row, padded by -1."""
    return program.input("eos", (program.sizes.batch, EOS_SLOTS), torch.int64)


def sampling(program: Program) -> list[fx.Node]:
    """`[B]` each: temperature, top_k, top_p, min_p, in the order of `accept.processors.process`."""
    return [vector(program, name) for name in ("temperature", "top_k", "top_p", "min_p")]


def bias(program: Program) -> fx.Node:
    """`[B, V]` float32, added to the logits; -inf bans an id."""
    return program.input("bias", (program.sizes.batch, program.models["target"].vocab_size), torch.float32)


def forced(program: Program, nodes: int) -> fx.Node:
    """`[B, N]` int64, tokens to draft in place of the drafter's own, -1 for none; as wide as the widest tree."""
    return program.input("forced", (program.sizes.batch, max(nodes, program.sizes.nodes)), torch.int64)


def given_draft(program: Program, nodes: int) -> tuple[fx.Node, fx.Node]:
    """`[B, N]` int64 and bool, what a program on another device drafted, and which of it may be offered; as wide as the
    widest tree."""
    shape = program.sizes.batch, max(nodes, program.sizes.nodes)
    return program.input("drafted", shape, torch.int64), program.input("offerable", shape, torch.bool)


def shared(program: Program, size: int) -> fx.Node:
    """`[B, P]` int64, the latest tokens of texts that have ended, the same in every row: ids plus 1, 0 behind each."""
    return program.input("shared", (program.sizes.batch, size), torch.int64)


def window(program: Program, levels: int, width: int) -> fx.Node:
    """`[B, N-1, W]` int64, guessed tokens of lookahead decoding, the oldest level first."""
    return program.input("window", (program.sizes.batch, levels, width), torch.int64)


def ngrams(program: Program, places: int, size: int) -> fx.Node:
    """`[B, P, N]` int64, lookahead's pool: ids plus 1, the latest last, zeros where there is none."""
    return program.input("ngrams", (program.sizes.batch, places, size), torch.int64)


def grammar_next(program: Program, size: int) -> fx.Node:
    """`[B, A]` int32, the next state of each state and class of tokens, -1 where it may not follow."""
    return program.input("grammar_next", (program.sizes.batch, size), torch.int32)


def grammar_class(program: Program, vocab: int) -> fx.Node:
    """`[B, V]` int32, the class of each token."""
    return program.input("grammar_class", (program.sizes.batch, vocab), torch.int32)


def cache(program: Program, model: str, kind: str, layer: int, rows: fx.Node) -> fx.Node:
    """`[B, G, S, D]`, the cache that takes rows like `rows` (`[B, G, T, D]`); `kind` is `k` or `v`.

    A drafter that is made of layers of the target reads theirs.
    """
    source = program.models.get(model)
    if source is not None and source.kept:
        model, layer = "target", source.kept[layer]
    batch, heads, _, size = rows.meta["val"].shape
    return program.input(f"{model}_{kind}_{layer}", (batch, heads, program.sizes.slots, size), rows.meta["val"].dtype)


def features(program: Program) -> fx.Node:
    """`[B, 1, S, F]`, what the target handed on of every token in its cache, for drafters that read it."""
    models = [program.models[name] for name in ("target", "drafter") if name in program.models]
    size, dtype = next(model.handed_on() for model in models if model.features)
    return program.input("features", (program.sizes.batch, 1, program.sizes.slots, size), dtype)


def bucket(program: Program) -> fx.Node:
    """`[n]` uint8, a dummy whose length is the number of cache slots that are read (the one symbolic size)."""
    for node in program.graph.find_nodes(op="placeholder"):
        if node.target == "bucket":
            return node
    node = program.input("bucket", (0,), torch.uint8)
    hint = torch.empty(max(2, program.sizes.slots // 2), dtype=torch.uint8)
    context = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC])
    with program.fake_mode:
        value = program.fake_mode.from_tensor(hint, source=ConstantSource("bucket"), symbolic_context=context)
        node.meta["val"] = value.to(program.device)
    return node


def role(name: str) -> str:
    """The role of an input in the manifest; noise is in none, for a back end fills it from the others."""
    if name.startswith(NOISE):
        return "noise"
    return ROLES.get(name) or ("cache" if "_k_" in name or "_v_" in name else "parameter")
