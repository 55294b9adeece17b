"""Logits processors: temperature, top-k, top-p and min-p, per row, without a sort.

Order and borders are those of transformers: temperature, top-k, top-p, min-p; ties at a border are all kept.
A full sort of five rows of 49,152 costs 23 ms on one core, the searches below a fraction of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SHIFTS = range(30, -1, -2)  # a non-negative float32 has 31 bits: the top one alone, then two a round
DRAFT_WIDTH = 64
_COLD = 1e-4  # what a drafter takes for temperature 0: noise cannot change the order of its tokens, ties apart


def process(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The logits of the distribution that is sampled.

    Args:
        logits: `[B, N, V]` float32.
        temperature: `[B]` float32; a row of 0 is greedy: its logits are only shifted (`only_best` makes its law).
        top_k: `[B]` int64, tokens kept; 0 keeps all.
        top_p: `[B]` float32 in (0, 1]; 1 keeps all.
        min_p: `[B]` float32 in [0, 1], of the best token's probability; 0 keeps all.

    Returns:
        `[B, N, V]` float32, `(logits - max) / temperature`, -inf where a token was cut.
    """
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None, None]
    below = scaled.amax(-1, keepdim=True) - scaled  # 0 is the best token
    share = torch.exp(-below)
    # Inductor would divide again in every sum below; it stores a value whose formula holds an exponential.
    below = torch.where(share >= 0, below, share)
    bits = below.view(torch.int32)  # sorts as `below` does
    vocab = logits.shape[-1]
    keep = torch.where(top_k == 0, vocab, top_k)[:, None, None].float()
    bits_k = _border(bits, torch.ones_like(below), keep)
    kept = torch.where(bits <= bits_k, share, 0.0)
    mass = top_p[:, None, None] * kept.sum(-1, keepdim=True)
    bits_p = torch.where(top_p[:, None, None] >= 1.0, 0x7FFFFFFF, _border(bits, kept, mass))
    likely = (share >= min_p[:, None, None]) | (below == 0)
    return torch.where(likely & (bits <= torch.minimum(bits_k, bits_p)), -below, float("-inf"))


def only_best(processed: Tensor, temperature: Tensor) -> Tensor:
    """`[B, N, V]` scores; rows of temperature 0 keep their best token alone (the lowest id of equals), so that noise
    and chance cannot change it: one sampled program serves greedy and sampled rows."""
    index = torch.arange(processed.shape[-1], device=processed.device)
    best = processed.argmax(-1, keepdim=True)
    cut = (temperature == 0)[:, None, None] & (index != best)
    return torch.where(cut, float("-inf"), processed)


def _border(bits: Tensor, weight: Tensor, budget: Tensor) -> Tensor:
    """The largest b such that the weight of all entries with `bits < b` is below the budget: `bits <= b` are kept.

    An entry is kept iff the entries strictly better than it do not fill the budget alone. Found from the top bit down,
    two bits a round: 46 sums over the vocabulary in 16 rounds. The three sums of a round read it once, block by block:
    Inductor starts its threads once for all blocks, and once a row where there are no blocks (4 rows of 49,152 on two
    cores: 3.2 ms for both borders, 3.7 without blocks, 7.4 with the three sums as one of a wider tensor; as float32
    it would be 1.8, but ONNX cannot see integers as floats).

    Args:
        bits: `[B, N, V]` int32, non-negative, lower is better.
        weight: `[B, N, V]` float32.
        budget: `[B, 1, 1]` float32, above 0.

    Returns:
        `[B, N, 1]` int32.
    """
    vocab = bits.shape[-1]
    blocks = next(count for count in (16, 8, 4, 2, 1) if vocab % count == 0)
    folded = (*bits.shape[:-1], blocks, vocab // blocks)
    bits, weight = bits.view(folded), weight.view(folded)
    border = torch.zeros_like(bits[..., 0, :1])
    for shift in _SHIFTS:
        steps = torch.zeros_like(border)
        for digit in range(1, 4 if shift < _SHIFTS[0] else 2):
            trial = border + (digit << shift)
            better = torch.where(bits < trial[..., None], weight, 0.0).sum(-1).sum(-1, keepdim=True)
            steps = steps + (better < budget).to(torch.int32)  # sums grow with the digit
        border = border + steps * (1 << shift)
    return border


def process_best(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, *, width: int = DRAFT_WIDTH
) -> tuple[Tensor, Tensor]:
    """The drafter's side of `process`, over its best tokens alone.

    A drafter may draft from any law, so its own is cut to its best `width` tokens first; sorted, the other borders are
    a cumulative sum away.

    Args:
        logits: `[B, T, V]` float32.
        temperature, top_k, top_p, min_p: as in `process`; at temperature 0 the best tokens are far apart, in order.
        width: tokens kept at most.

    Returns:
        scores `[B, T, W]` float32 as `process` returns them, best first, and their ids `[B, T, W]` int64.
    """
    best, ids = logits.topk(min(width, logits.shape[-1]), -1)
    first = torch.where(best[..., :1] > float("-inf"), best[..., :1], 0.0)  # a row of nothing but -inf stays it
    scores = (best - first) / torch.where(temperature > 0, temperature, _COLD)[:, None, None]
    rank = torch.arange(best.shape[-1], device=logits.device)
    kept = (top_k[:, None, None] == 0) | (rank < top_k[:, None, None])
    law = torch.where(kept, torch.exp(scores), 0.0)
    ahead = law.cumsum(-1) - law
    total = law.sum(-1, keepdim=True)
    kept = kept & ((ahead < top_p[:, None, None] * total) | (top_p[:, None, None] >= 1.0) | (rank == 0))
    kept = kept & ((torch.exp(scores) >= min_p[:, None, None]) | (rank == 0))
    return torch.where(kept, scores, float("-inf")), ids
