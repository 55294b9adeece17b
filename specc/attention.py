"""Attention over the cache and the rows of this step, in two parts that share one softmax, in plain ops."""

from __future__ import annotations

import torch
from torch import Tensor


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
    """`specc::cached_attention` in plain ops.

    Args as there, but `slots`: n, how many slots of the cache are read; at least every length.

    Returns:
        `[B, H, T, Dv]`, contiguous, in the dtype of `rows_v`; softmax in float32.
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
        return torch.bmm(weights.to(values.dtype).reshape(batch * groups, share * queries, columns), values)

    mixed = weighted(old, old_v, slots).float()
    mixed = mixed + weighted(new, rows_v.reshape(batch * groups, rows, -1), rows).float()
    out = mixed.view(batch, groups, share, queries, -1) / total
    return out.to(rows_v.dtype).reshape(batch, heads, queries, -1)
