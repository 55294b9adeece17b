"""The ops of our own that graphs may hold: attention, cache writes, noise, and products with stored weights.

Each has a plain eager body, so that a graph can be run at any level. After the last pass none is left that the back end
cannot run.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.library.custom_op("specc::attend", mutates_args=())
def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Marker of one layer's attention in a captured model; the eager body is causal attention without a cache.

    Args:
        q: `[B, H, T, D]` queries, rotated.
        k: `[B, G, T, D]` keys, rotated. H is a multiple of G.
        v: `[B, G, T, Dv]` values.
        layer: index of the layer, in the order of the model.
        scale: factor of the scores.
        window: a row sees the `window` latest positions, itself included; None is all.
        softcap: scores become `softcap * tanh(scores / softcap)`.
        sinks: `[H]` logits of a column that takes probability and gives nothing (gpt-oss).

    Returns:
        `[B, H, T, Dv]` in the dtype of `v`.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = (q @ k.mT).float() * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    rows = torch.arange(q.shape[2], device=q.device)
    seen = rows[:, None] >= rows
    if window is not None:
        seen &= rows[:, None] - rows < window
    scores = scores.masked_fill(~seen, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        scores = torch.cat([scores, column], -1)
    weights = scores.softmax(-1)[..., : k.shape[2]].to(v.dtype)
    return weights @ v


@attend.register_fake
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    return v.new_empty(q.shape[0], q.shape[1], q.shape[2], v.shape[3])


@torch.library.custom_op("specc::cached_attention", mutates_args=())
def cached_attention(
    q: Tensor,
    cache_k: Tensor,
    cache_v: Tensor,
    rows_k: Tensor,
    rows_v: Tensor,
    length: Tensor,
    mask: Tensor,
    bucket: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    positions: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of T rows over cached slots and over R rows that are not in the cache yet.

    Args:
        q: `[B, H, T, D]` queries.
        cache_k, cache_v: `[B, G, S, D]`, `[B, G, S, Dv]`; slots at and beyond `length` are never seen. Not written.
        rows_k, rows_v: `[B, G, R, D]`, `[B, G, R, Dv]`; the last T of them belong to the queries' own rows.
        length: `[B]` int64.
        mask: `[B or 1, T, R]` bool, which rows each query sees.
        bucket: `[n]` uint8, a dummy: only n slots are read, at least every length.
        scale, window, softcap, sinks: as in `attend`.
        positions: `[B, R]` int64 positions of the rows; where there is a window.

    Returns:
        `[B, H, T, Dv]` in the dtype of `rows_v`, the heads of a row side by side in memory; softmax in float32.
        Compiled natively, a row's numbers do not depend on what else is computed, nor on whether a row that it sees
        stands in the cache or among the rows, to the last bit.
    """
    from .attention import two_part_attention

    out = two_part_attention(
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
        sinks=sinks,
    )
    return out.transpose(1, 2).contiguous().transpose(1, 2)


@cached_attention.register_fake
def _(
    q: Tensor,
    cache_k: Tensor,
    cache_v: Tensor,
    rows_k: Tensor,
    rows_v: Tensor,
    length: Tensor,
    mask: Tensor,
    bucket: Tensor,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    positions: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    batch, heads, rows, _ = q.shape
    return rows_v.new_empty(batch, rows, heads, rows_v.shape[3]).transpose(1, 2)


@torch.library.custom_op("specc::kv_update", mutates_args=())
def kv_update(cache: Tensor, new: Tensor, start: Tensor) -> Tensor:
    """`cache` with `new` written at each row's `start`; functional here, in place after `BindState`.

    Args:
        cache: `[B, G, S, D]`; treated as consumed.
        new: `[B, G, T, D]`, the dtype of the cache.
        start: `[B]` int64, first slot written; `start + T <= S`.

    Returns:
        `[B, G, S, D]`, the cache after the write.
    """
    out = cache.clone()
    slots = start[:, None] + torch.arange(new.shape[2], device=start.device)
    rows = torch.arange(cache.shape[0], device=start.device)
    heads = torch.arange(cache.shape[1], device=start.device)
    out[rows[:, None, None], heads[None, :, None], slots[:, None, :]] = new
    return out


@kv_update.register_fake
def _(cache: Tensor, new: Tensor, start: Tensor) -> Tensor:
    return torch.empty_like(cache)


@torch.library.custom_op("specc::noise", mutates_args=())
def noise(seed: Tensor, sample: Tensor, position: Tensor, stream: int, size: int) -> Tensor:
    """Uniform numbers that are a pure function of their key, of which the batch row is never a part.

    Args:
        seed: `[B]` int64, the request's seed.
        sample: `[B]` int64, index of the sample for `n > 1`.
        position: `[B, T]` int64, absolute position of the token that is drawn.
        stream: which use: 0 race, 1 draft, 2 coin, 3 residual. Two uses never share one.
        size: numbers per position (the vocabulary, or the children).

    Returns:
        `[B, T, size]` float32 in the open interval (0, 1).
    """
    from .philox import uniform

    return uniform(seed, sample, position, stream, size)


@noise.register_fake
def _(seed: Tensor, sample: Tensor, position: Tensor, stream: int, size: int) -> Tensor:
    return seed.new_empty(*position.shape, size, dtype=torch.float32)


@torch.library.custom_op("specc::dequantise", mutates_args=())
def dequantise(levels: Tensor, scale: Tensor, bits: int) -> Tensor:
    """The weight `[out, in]` that stored levels stand for, in the dtype of `scale`.

    Args:
        levels: `[out, in * bits / 32]` int32, as many signed levels a word as it has room for. The lowest bits of the
            words of a row hold its first columns, the next bits the columns that follow those, and so on: a compiler
            reads whole words, and each shift of them is a run of columns.
        scale: `[out, 1]`, or `[out, 32 / bits]`: a factor for each row, or for each run of its columns.
        bits: 8 or 4.
    """
    return spread_levels(levels, scale, bits)


@dequantise.register_fake
def _(levels: Tensor, scale: Tensor, bits: int) -> Tensor:
    return scale.new_empty(levels.shape[0], levels.shape[1] * (32 // bits))


def spread_levels(levels: Tensor, scale: Tensor, bits: int) -> Tensor:
    """What `dequantise` does, in aten ops."""
    runs = [levels_of(levels, place, bits).to(scale.dtype) for place in range(32 // bits)]
    factors = scale.expand(-1, len(runs)).unbind(1)
    return torch.cat([run * factor[:, None] for run, factor in zip(runs, factors, strict=True)], 1)


def levels_of(levels: Tensor, place: int, bits: int) -> Tensor:
    """One run of columns: the bits at a place of every word, with their sign."""
    return (levels << (32 - bits * (place + 1))) >> (32 - bits)


@torch.library.custom_op("specc::byte_linear", mutates_args=())
def byte_linear(x: Tensor, levels: Tensor, factors: Tensor, size: int) -> Tensor:
    """`linear` by a weight in bytes, for back ends that have such a product.

    Args:
        x: `[..., in]` float32.
        levels: `[out, blocks, block]` uint8; 128 stands for 0, and a shorter row ends with such.
        factors: `[out, blocks]` float32.
        size: `in`.
    """
    weight = (levels.to(factors.dtype) - 128) * factors[..., None]
    return torch.nn.functional.linear(x, weight.flatten(1)[:, :size])


@byte_linear.register_fake
def _(x: Tensor, levels: Tensor, factors: Tensor, size: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], levels.shape[0])


@torch.library.custom_op("specc::skinny_linear", mutates_args=())
def skinny_linear(x: Tensor, weight: Tensor) -> Tensor:
    """`linear` of few rows in native code that reads the weight once, for all of them.

    Args:
        x: `[..., in]` float32, contiguous.
        weight: `[out, in]` float32, contiguous.

    Returns:
        `[..., out]` float32. Compiled, a row does not depend on how many rows there are, to the last bit.
    """
    return torch.nn.functional.linear(x, weight)


@skinny_linear.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@torch.library.custom_op("specc::levels_linear", mutates_args=())
def levels_linear(x: Tensor, levels: Tensor, scale: Tensor, bits: int) -> Tensor:
    """`skinny_linear` by the weight that `dequantise` would make, which native code takes apart in registers.

    Args:
        x: `[..., in]` float32, contiguous.
        levels, scale, bits: as `dequantise` takes them; `scale` float32.

    Returns:
        `[..., out]` float32.
    """
    return torch.nn.functional.linear(x, spread_levels(levels, scale, bits))


@levels_linear.register_fake
def _(x: Tensor, levels: Tensor, scale: Tensor, bits: int) -> Tensor:
    return x.new_empty(*x.shape[:-1], levels.shape[0])
