"""The eager back end: the same graphs, run op by op by PyTorch. The reference, and what works everywhere."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import EngineFormatError
from ...manifest import ProgramSpec
from ..state import Runner


def open_eager(path: Path, spec: ProgramSpec, weights: Mapping[str, Tensor]) -> Runner:
    """A program whose arguments are its inputs, then its weights in the order of `spec.weights`.

    It is read at its first call: reading takes seconds, and a request needs two or three of an engine's programs.

    Raises:
        EngineFormatError: torch cannot read the file (at the first call).
    """
    constants = [weights[name] for name in spec.weights]

    @functools.cache
    def module() -> Any:
        try:
            return torch.export.load(path).module()
        except Exception as e:  # torch raises many kinds here
            raise EngineFormatError(
                f"{path}: torch {torch.__version__} cannot read this program ({e}); compile again"
            ) from e

    def run(arguments: list[Tensor]) -> Sequence[Tensor]:
        with torch.no_grad():
            results = module()(*arguments, *constants)
        return (results,) if isinstance(results, Tensor) else tuple(results)

    return run
