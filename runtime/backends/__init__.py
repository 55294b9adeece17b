"""Back ends: what opens a saved program and runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from ...errors import EngineVersionError
from ...manifest import ProgramSpec
from ..call import Runner


def open_program(
    backend: str,
    path: Path,
    spec: ProgramSpec,
    weights: Mapping[str, Tensor],
    device: torch.device,
    threads: int | None = None,
) -> Runner:
    """Open one program file with the back end that wrote it; only that back end is imported.

    Args:
        backend: `EngineManifest.backend`.
        path: the program's file.
        spec: how it is called, and which weights it reads.
        weights: every weight of the engine by name.
        device: where they are, and where it runs.
        threads: processor threads for a back end that has its own; None takes torch's number.

    Raises:
        EngineVersionError: no such back end here.
        EngineFormatError: the file cannot be opened, or wants other weights.
    """
    if backend == "eager":
        from .eager import open_eager

        return open_eager(path, spec, weights, device)
    if backend == "inductor":
        from .inductor import open_inductor

        return open_inductor(path, spec, weights, device)
    if backend == "onnx":
        from .onnx import open_onnx

        return open_onnx(path, spec, weights, device, threads)
    if backend == "tensorrt":
        from .tensorrt import open_tensorrt

        return open_tensorrt(path, spec, device)
    raise EngineVersionError(
        f"{path}: made for the back end {backend!r}, which this specc does not have; "
        "update specc, or compile the engine again with --backend inductor"
    )
