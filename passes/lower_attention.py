"""Attention over the cache and the rows of this step, in two parts."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..program import Block, Level, Program
from . import inputs
from .commit import Commit
from .contract import Pass
from .graph import clean_up, emit
from .inline_prefill import InlinePrefill


class LowerAttention(Pass):
    """Replace every `specc::attend` by attention over the cache's filled slots and the step's own rows.

    Scores are made apart and share one softmax, so the cache is neither copied nor written before acceptance. Windows,
    soft caps, sinks, grouped heads and values of another size than the keys are carried.

    Before: `attend: f32[B, H, T, Dv] = specc::attend(q, k, v, layer, scale, window, softcap, sinks)`
    After:  two products with the cache (`n` slots of it, the bucket) and two with the rows, level STATIC.
    Source: the two-part form of flash decoding's split softmax (Dao et al. 2023).
    """

    after = (Commit, InlinePrefill)
    reads = Level.FUSED
    leaves = Level.STATIC
    preserves_outputs = False  # the bucket becomes an input

    def run(self, program: Program) -> int:
        rewrites = 0
        for block in program.blocks:
            # Rows for a window need positions; they are the same for all layers of a block.
            positions = [b.positions for b in block.prior] + [block.positions]
            for layer, marker in enumerate(block.markers):
                self._lower(program, block, layer, marker, positions)
                rewrites += 1
        program.blocks = []
        clean_up(program.graph)
        return rewrites

    def _lower(self, program: Program, block: Block, layer: int, marker: fx.Node, positions: list[fx.Node]) -> None:
        args = (
            dict(zip(("q", "k", "v", "layer", "scale", "window", "softcap", "sinks"), marker.args, strict=False))
            | marker.kwargs
        )
        keys = [b.markers[layer].args[1] for b in block.prior] + [args["k"]]
        values = [b.markers[layer].args[2] for b in block.prior] + [args["v"]]
        cache_k = inputs.cache(program, block.model, "k", layer, args["k"])
        cache_v = inputs.cache(program, block.model, "v", layer, args["v"])
        tensors = [args["q"], cache_k, cache_v, inputs.bucket(program), block.length, block.mask, *keys, *values]
        windowed = args.get("window") is not None
        if windowed:
            tensors += positions
        if args.get("sinks") is not None:
            tensors.append(args["sinks"])
        out = emit(
            program,
            self,
            _unpacked,
            *tensors,
            before=marker,
            parts=len(keys),
            scale=args["scale"],
            window=args.get("window"),
            softcap=args.get("softcap"),
            has_sinks=args.get("sinks") is not None,
        )
        marker.replace_all_uses_with(out)


def _unpacked(
    q: Tensor,
    cache_k: Tensor,
    cache_v: Tensor,
    bucket: Tensor,
    length: Tensor,
    mask: Tensor,
    *rest: Tensor,
    parts: int,
    scale: float,
    window: int | None,
    softcap: float | None,
    has_sinks: bool,
) -> Tensor:
    """`two_part_attention` with the rows of several blocks put side by side."""
    rows_k = torch.cat(rest[:parts], 2) if parts > 1 else rest[0]
    rows_v = torch.cat(rest[parts : 2 * parts], 2) if parts > 1 else rest[1]
    rest = rest[2 * parts :]
    positions = None
    if window is not None:
        positions, rest = torch.cat(rest[:parts], 1), rest[parts:]
    return two_part_attention(
        q,
        cache_k,
        cache_v,
        rows_k,
        rows_v,
        length=length,
        slots=bucket.shape[0],
        mask=mask,
        scale=scale,
        window=window,
        softcap=softcap,
        positions=positions,
        sinks=rest[0] if has_sinks else None,
    )


def two_part_attention(
    q: Tensor,
    cache_k: Tensor,
    cache_v: Tensor,
    rows_k: Tensor,
    rows_v: Tensor,
    *,
    length: Tensor,
    slots: int,
    mask: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    positions: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of T rows over `length` cached slots and R rows that are not in the cache.

    Args:
        q: `[B, H, T, D]` queries.
        cache_k, cache_v: `[B, G, S, D]`, `[B, G, S, Dv]`; slots at and beyond `length` are never seen. Not written.
        rows_k, rows_v: `[B, G, R, D]`, `[B, G, R, Dv]`; the last T of them belong to the queries' own rows.
        length: `[B]` int64.
        slots: n, how many slots are read; at least every length.
        mask: `[B or 1, T, R]` bool, which rows each query sees.
        window: a query sees positions closer than this; needs `positions`.
        softcap: scores become `softcap * tanh(scores / softcap)`.
        positions: `[B, R]` int64 positions of the rows.
        sinks: `[H]` logits of a column that gives nothing.

    Returns:
        `[B, H, T, Dv]` in the dtype of `rows_v`; softmax in float32.
    """
    batch, heads, queries, size = q.shape
    groups, rows = rows_k.shape[1], rows_k.shape[2]
    share = heads // groups
    flat = q.reshape(batch * groups, share * queries, size)

    def scores(keys: Tensor, columns: int) -> Tensor:
        raw = torch.bmm(flat, keys.mT).float() * scale
        raw = softcap * torch.tanh(raw / softcap) if softcap is not None else raw
        return raw.view(batch, groups, share, queries, columns)

    old_k = cache_k.view(batch * groups, -1, size)[:, :slots]
    old_v = cache_v.view(batch * groups, -1, cache_v.shape[3])[:, :slots]
    slot = torch.arange(slots, device=q.device)
    seen_old = (slot < length[:, None])[:, None, :]
    seen_new = mask
    if window is not None and positions is not None:
        own = positions[:, rows - queries :, None]
        seen_old = seen_old & (own - slot < window)
        seen_new = seen_new & (own - positions[:, None, :] < window)
    far = float("-inf")
    old = torch.where(seen_old[:, None, None], scores(old_k, slots), far)
    new = torch.where(seen_new[:, None, None], scores(rows_k.reshape(batch * groups, rows, size), rows), far)
    alone = rows == 1  # a row is its own maximum and sum; TensorRT-RTX 1.7.1 fails inside itself where it is told so
    top = torch.maximum(old.amax(-1, keepdim=True), new if alone else new.amax(-1, keepdim=True))
    sink = None
    if sinks is not None:
        sink = sinks.float().view(1, groups, share, 1, 1)
        top = torch.maximum(top, sink)
    old, new = torch.exp(old - top), torch.exp(new - top)
    total = old.sum(-1, keepdim=True) + (new if alone else new.sum(-1, keepdim=True))
    if sink is not None:
        total = total + torch.exp(sink - top)

    def weighted(weights: Tensor, values: Tensor, columns: int) -> Tensor:
        return torch.bmm(weights.to(values.dtype).view(batch * groups, share * queries, columns), values)

    mixed = weighted(old, old_v, slots).float()
    mixed = mixed + weighted(new, rows_v.reshape(batch * groups, rows, -1), rows).float()
    out = mixed.view(batch, groups, share, queries, -1) / total
    return out.to(rows_v.dtype).reshape(batch, heads, queries, -1)
