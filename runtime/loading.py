"""Load: an engine's folder, checked before anything of it runs, becomes an `Engine`."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import torch

from ..errors import ConfigError, OtherThreadsWarning
from ..manifest import EngineManifest
from .backends import open_program
from .backends.tensorrt import check_release
from .call import Runner
from .checks import check_files, check_processor, check_versions
from .devices import Devices, check_gpus, check_memory, find_devices
from .engine import Engine
from .options import whole
from .recorded import Recorder
from .step import Apart
from .text import Text
from .weights import map_weights

MAX_THREADS = 1024
NOT_CAPTURED = ("onnx", "tensorrt")  # back ends whose calls no CUDA graph is made of


def load(
    path: str | os.PathLike[str],
    device: str | torch.device | None = None,
    threads: int | None = None,
    graphs: bool | None = None,
) -> Engine:
    """Load an engine that `specc compile` wrote. It holds native code: load only engines you trust.

    Args:
        path: the engine's folder.
        device: where to run, `cpu` or `cuda`; must be what it was compiled for, which is the default.
        threads: processor threads to use, for the whole process as `torch.set_num_threads`; None leaves them.
        graphs: replay steps as CUDA graphs, which are captured now; None does so on a GPU.

    Warns:
        OtherThreadsWarning: the engine's costs were measured under another number of threads than `threads`.

    Raises:
        EngineFormatError: no engine there, or a file of it is missing or changed.
        EngineVersionError: made by another format version or another torch.
        EngineMismatchError: made for another device or processor.
        EngineError: there is not enough memory for its state.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"the engine must be the path of a folder, not {path!r}")
    folder = Path(path)
    if threads is not None:
        threads = whole("threads", threads, 1, MAX_THREADS)
    if graphs not in (None, True, False):
        raise ConfigError(f"graphs must be True, False or None, not {graphs!r}")
    manifest = EngineManifest.read(folder)
    check_versions(folder, manifest)
    devices = find_devices(folder, manifest, device)
    if graphs and all(place.type != "cuda" for place in devices.distinct()):
        raise ConfigError(f"graphs=True: {folder} runs on {devices.target.type}, and graphs are CUDA's; leave it out")
    if graphs and manifest.backend in NOT_CAPTURED:
        raise ConfigError(f"graphs=True: calls of the back end {manifest.backend} are not captured; leave it out")
    check_processor(folder, manifest)
    check_gpus(folder, manifest, devices)
    if manifest.backend == "tensorrt":
        check_release(folder, manifest)
    check_files(folder, manifest)
    check_memory(folder, manifest, devices)
    programs = _open_programs(folder, manifest, devices, threads)
    graphs = False if manifest.backend in NOT_CAPTURED else graphs
    recorder = _recorder(devices.target, graphs)
    apart = None if devices.drafter is None else Apart(devices.drafter, _recorder(devices.drafter, graphs))
    engine = Engine(manifest, programs, Text.read(folder), devices.target, threads, recorder, apart)
    measured = manifest.cost.get("threads")
    if engine.pilot and threads is not None and measured not in (None, threads):
        warnings.warn(
            f"threads={threads}: this engine's programs were timed under {measured} threads, and what "
            "draft_length=None chooses by these times may be slower than it promises; call calibrate() on the engine "
            "to time them again",
            OtherThreadsWarning,
            stacklevel=2,
        )
    return engine


def _open_programs(folder: Path, manifest: EngineManifest, devices: Devices, threads: int | None) -> dict[str, Runner]:
    """Every program on its device, with the weights that the programs there read."""
    kinds = (False,) if devices.drafter is None else (False, True)
    names = {drafts: manifest.weights_of(drafts) if manifest.lends_weights else set() for drafts in kinds}
    weights = {drafts: map_weights(folder, names[drafts], devices.of(drafts)) for drafts in kinds}
    return {
        name: open_program(
            manifest.backend,
            folder / spec.file,
            spec,
            weights[spec.drafts and len(kinds) > 1],
            devices.of(spec.drafts),
            threads,
        )
        for name, spec in manifest.programs.items()
    }


def _recorder(device: torch.device, graphs: bool | None) -> Recorder | None:
    if device.type != "cuda" or graphs is False:
        return None
    from .cuda_graphs import CudaGraphs

    return CudaGraphs(device)
