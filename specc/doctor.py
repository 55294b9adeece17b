"""`specc doctor`: what this machine has for compiling and running engines, and what an engine lacks here."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from . import __version__
from .bench.bandwidth import memory_bandwidth
from .console import SteadyConsole, new_table
from .environment import check_back_end, check_compiler, check_device, check_onnx, processor
from .errors import EngineError, SpeccError
from .manifest import EngineManifest
from .runtime.backends.onnx import check_provider
from .runtime.backends.tensorrt import LIBRARIES, check_release
from .runtime.checks import check_files, check_processor, check_versions
from .runtime.devices import check_gpus, check_memory, find_devices

PACKAGES = ("torch", "transformers", "safetensors", "tokenizers", "jinja2", "onnx", "onnxscript")
MISSING = "not installed"
RUNTIMES = ("onnxruntime", "onnxruntime-gpu")  # one module, in a package for each kind of processor
OK = "usable"


def doctor(engine: str | None = None, as_json: bool = False) -> None:
    """Print what was found.

    Args:
        engine: folder of an engine whose needs are checked too.
        as_json: print it as JSON.

    Raises:
        EngineError: the engine cannot run here; says why first.
    """
    found = examine(engine)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show(found)
    for need, said in found["engine"].items():
        if said != OK:
            raise EngineError(f"{engine} cannot run here, for its {need}: {said}")


def examine(engine: str | None = None) -> dict[str, Any]:
    """Everything that `doctor` prints.

    Returns:
        `machine` and `packages`, by name; `back_ends`, each `usable` or the reason why it is not; `engine`, the same
        for each of its needs, empty without an engine.
    """
    return {
        "machine": _machine(),
        "packages": {name: _version(name) for name in PACKAGES} | _any_of(RUNTIMES) | _any_of(LIBRARIES),
        "back_ends": {
            "inductor, cpu": _tried(check_compiler),
            "inductor, cuda": _tried(lambda: check_device("cuda")),
            "eager, cpu": OK,
            "onnx, cpu": _tried(check_onnx),
            "onnx, cuda": _tried(lambda: check_back_end("onnx", ("cuda",))),
            "tensorrt, cuda": _tried(lambda: check_back_end("tensorrt", ("cuda",))),
        },
        "engine": {} if engine is None else _needs(Path(engine)),
    }


def _machine() -> dict[str, str]:
    cpu = processor()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "specc": __version__,
        "processor": f"{cpu['name']}, {cpu['machine']}, {os.cpu_count()} cores, {cpu['isa']}",
        "instructions": " ".join(cpu["flags"]),
        "threads of torch": str(torch.get_num_threads()),
        "memory": f"{memory / 2**30:.1f} GiB",
        "memory bandwidth": f"{memory_bandwidth(3) / 1e9:.1f} GB/s (reading, threads of torch)",
    }
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            gpu = torch.cuda.get_device_properties(index)
            found[f"cuda:{index}"] = f"{gpu.name}, sm_{gpu.major}{gpu.minor}, {gpu.total_memory / 2**30:.1f} GiB"
    else:
        found["cuda"] = f"no device that torch {torch.__version__} sees"
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return MISSING


def _any_of(packages: tuple[str, ...]) -> dict[str, str]:
    """Those of these packages that there are; the first where there is none."""
    found = {name: _version(name) for name in packages}
    there = {name: version for name, version in found.items() if version != MISSING}
    return there or {packages[0]: MISSING}


def _needs(engine: Path) -> dict[str, str]:
    """What loading the engine would check; what cannot be read has no further needs."""
    try:
        manifest = EngineManifest.read(engine)
    except SpeccError as e:
        return {"manifest": str(e)}
    needs: dict[str, Callable[[], object]] = {
        "torch": lambda: check_versions(engine, manifest),
        "device": lambda: find_devices(engine, manifest),
        "processor": lambda: check_processor(engine, manifest),
        "files": lambda: check_files(engine, manifest),
        "memory": lambda: check_memory(engine, manifest, find_devices(engine, manifest)),
    }
    if manifest.processor.get("gpus"):
        needs["GPU"] = lambda: check_gpus(engine, manifest, find_devices(engine, manifest))
    if manifest.backend == "onnx":
        needs["ONNX Runtime"] = lambda: _check_runtime(manifest.device)
    if manifest.backend == "tensorrt":
        needs["TensorRT"] = lambda: check_release(engine, manifest)
    return {"manifest": OK, **{name: _tried(need) for name, need in needs.items()}}


def _check_runtime(device: str) -> None:
    check_onnx(("onnxruntime",))
    check_provider(torch.device(device))


def _tried(check: Callable[[], object]) -> str:
    try:
        check()
    except SpeccError as e:
        return str(e)
    return OK


def _show(found: dict[str, Any]) -> None:
    console = SteadyConsole()
    for title, name in (
        ("machine", "machine"),
        ("packages", "packages"),
        ("back ends", "back_ends"),
        ("engine", "engine"),
    ):
        if found[name]:
            table = new_table(title, "", "")
            table.columns[1].justify = "left"
            table.show_header = False
            for what, said in found[name].items():
                table.add_row(what, str(said))
            console.print(table)
