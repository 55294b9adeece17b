"""Philox 4x32-10 in int64 arithmetic: the counter-based generator behind `specc::noise`.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011), section 4.3. One call gives four numbers.
"""

from __future__ import annotations

import torch
from torch import Tensor

RACE, DRAFT, COIN, RESIDUAL = range(4)  # streams: what the sampler draws
NOISE = "noise_"  # names of inputs that hold numbers of `RACE`, where a graph cannot make them

_MASK = 0xFFFFFFFF
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85


def philox4x32(counter: tuple[Tensor, ...], key: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ten rounds over four counter words and two key words (each int64 holding 32 bits; shapes broadcast)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The product of two 32-bit words wraps int64, which keeps its low 64 bits: both halves are exact.
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = (
            ((p1 >> 32) & _MASK) ^ c1 ^ k0,
            p1 & _MASK,
            ((p0 >> 32) & _MASK) ^ c3 ^ k1,
            p0 & _MASK,
        )
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return c0, c1, c2, c3


def uniform(seed: Tensor, sample: Tensor, position: Tensor, stream: int, size: int) -> Tensor:
    """The body of `specc::noise` (see `specc.ops.noise` for shapes): `u = ((bits >> 9) + 0.5) * 2**-23`.

    23 bits plus a half: the forms with 24 or 32 bits round to 1.0 in float32.
    """
    calls = -(-size // 4)
    # The mask changes nothing, and keeps Inductor from taking the first products for addresses, which have 32 bits on a
    # GPU.
    index = (torch.arange(calls, device=seed.device) & _MASK).view(1, 1, calls)
    where = position.unsqueeze(-1) & _MASK
    tag = (sample * 8 + stream).view(-1, 1, 1) & _MASK
    low, high = seed.view(-1, 1, 1) & _MASK, (seed.view(-1, 1, 1) >> 32) & _MASK
    words = philox4x32((index, where, tag, torch.zeros_like(index)), (low, high))
    bits = torch.stack([word.expand(*position.shape, calls) for word in words], -1).flatten(-2)[..., :size]
    return ((bits >> 9).float() + 0.5) * 2.0**-23
