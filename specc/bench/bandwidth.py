"""Memory bandwidth of this machine, and the least time that one pass over the weights can take."""

from __future__ import annotations

import math
from pathlib import Path
from time import perf_counter

import torch

from ..inspect import weight_bytes
from ..manifest import EngineManifest

_BYTES = 256_000_000  # far more than any cache holds
_WIDTH = 4096


def memory_bandwidth(repeats: int = 5, size: int = _BYTES) -> float:
    """Bytes per second at which the threads in use read a float32 tensor: the best of a sum and a matrix by vector."""
    table = torch.ones(size // (4 * _WIDTH), _WIDTH)
    vector, least = torch.ones(_WIDTH), math.inf
    for _ in range(repeats):
        for read in (table.sum, lambda: table @ vector):
            start = perf_counter()
            read()
            least = min(least, perf_counter() - start)
    return table.numel() * 4 / least


def plain_bytes(engine: Path, manifest: EngineManifest) -> int:
    """Bytes of weights that one plain step reads.

    Where two tables have the size of the vocabulary, one is the embedding, of which a step reads one row: it is not
    counted. Small tables (positions) are.
    """
    stored = weight_bytes(engine)
    read = {name: stored[name] for name in manifest.programs["plain"].weights if name in stored}
    tables = [size for shape, size in read.values() if shape[:1] == (manifest.padded_vocab_size,) and len(shape) == 2]
    return sum(size for _, size in read.values()) - (min(tables) if len(tables) > 1 else 0)
