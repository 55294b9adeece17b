"""Gumbel noise for draws by arg-max, of the streams of `specc::noise`."""

from __future__ import annotations

import torch
from torch import Tensor


def gumbel(uniform: Tensor) -> Tensor:
    """Gumbel(0, 1) noise of uniforms in the open interval: `argmax(log p + gumbel)` is a draw from p."""
    return -torch.log(-torch.log(uniform))


def draw(seed: Tensor, sample: Tensor, position: Tensor, *, stream: int, size: int) -> Tensor:
    """Gumbel noise `[B, T, size]` for absolute positions `[B, T]` (`specc.ops.noise` has the key's parts)."""
    return gumbel(torch.ops.specc.noise(seed, sample, position, stream, size))
