"""Memory bandwidth of this machine, and the least time that one pass over the weights can take."""

from __future__ import annotations

import math
from pathlib import Path
from time import perf_counter

import torch

from ..manifest import EngineManifest
from ..runtime.weights import weight_bytes

_BYTES = 256_000_000  # far more than any cache holds
_WIDTH = 4096
_GPU = 16  # times as much on a GPU, where a launch would show else


def memory_bandwidth(repeats: int = 5, size: int = _BYTES, device: str | torch.device = "cpu") -> float:
    """Bytes per second at which a device reads a float32 tensor (the CPU with the threads in use): the best of a sum
    and a matrix by vector."""
    gpu = torch.device(device).type == "cuda"
    table = torch.ones(size * (_GPU if gpu else 1) // (4 * _WIDTH), _WIDTH, device=device)
    vector, least = torch.ones(_WIDTH, device=device), math.inf
    for _ in range(repeats):
        for read in (table.sum, lambda: table @ vector):
            start = perf_counter()
            read()
            if gpu:
                torch.cuda.synchronize(device)
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
