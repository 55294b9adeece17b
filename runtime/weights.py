"""Weights: the one file of tensors that all programs of an engine read."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import EngineFormatError
from ..manifest import WEIGHTS_NAME
from .checks import AGAIN


def map_weights(engine: Path, names: set[str], device: torch.device) -> dict[str, Tensor]:
    """The weights of these names; on the CPU mapped from the file, which costs no memory of its own.

    Raises:
        EngineFormatError: the file cannot be read, or lacks one.
    """
    path = engine / WEIGHTS_NAME
    try:
        with safe_open(path, framework="pt", device=device.type if device.type == "cpu" else str(device)) as file:
            for name in names - set(file.keys()):
                raise EngineFormatError(f"{engine}: {WEIGHTS_NAME} lacks {name}; {AGAIN.format(engine)}")
            return {name: file.get_tensor(name) for name in sorted(names)}
    except (SafetensorError, OSError) as e:
        raise EngineFormatError(f"{path}: not readable as safetensors ({e}); {AGAIN.format(engine)}") from e


def weight_bytes(engine: Path) -> dict[str, tuple[tuple[int, ...], int]]:
    """Shape and bytes of every stored weight, from the header of the weights file; empty if there is no such file."""
    try:
        with (engine / WEIGHTS_NAME).open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(size, 2**27)))  # a damaged file may claim any size
        spans = {name: (e["shape"], e["data_offsets"]) for name, e in header.items() if name != "__metadata__"}
        return {name: (tuple(shape), end - start) for name, (shape, (start, end)) in spans.items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}
