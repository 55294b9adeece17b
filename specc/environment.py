"""What this machine offers: processor, compiler, memory, disk; checked before any work."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from .errors import BackendError, ConfigError
from .runtime.backends.onnx import check_provider
from .runtime.backends.tensorrt import check_tensorrt
from .runtime.checks import read_cpuinfo

_ENGINE_FILE = re.compile(
    r"manifest\.json|weights\.safetensors|tokenizer\.json|text\.json|programs/\w+\.(?:pt2|onnx|json|plan)|graphs/\w+\.json"
)


def processor() -> dict[str, Any]:
    """Name and features of the CPU: `{"machine", "name", "isa", "flags"}`; programs run where all flags are present."""
    found = read_cpuinfo()
    wanted = ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "amx_tile", "asimd", "sve")
    return {
        "machine": platform.machine(),
        "name": found.get("model name") or platform.processor() or platform.machine(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "flags": [flag for flag in wanted if flag in found["flags"].split()],
    }


def accelerator(device: str) -> dict[str, str]:
    """Name and compute capability of a GPU, whose programs run on that capability alone; empty for a CPU."""
    if torch.device(device).type != "cuda":
        return {}
    gpu = torch.cuda.get_device_properties(torch.device(device))
    return {"name": gpu.name, "capability": f"{gpu.major}.{gpu.minor}"}


def machine(device: str) -> str:
    """One line that tells machines apart for cached programs and measured forms."""
    cpu = processor()
    features = f"{cpu['name']} {cpu['isa']} {','.join(cpu['flags'])}"
    gpu = " ".join(accelerator(device).values())
    return f"{features} torch {torch.__version__} threads {torch.get_num_threads()}{gpu and ' '}{gpu}"


def check_compiler() -> str:
    """Path of the C++ compiler that AOTInductor will call.

    Raises:
        BackendError: none is installed; names the package.
    """
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++")):
        path = shutil.which(name)
        if path:
            return path
    raise BackendError(
        "no C++ compiler found (looked for $CXX, g++, clang++): the inductor back end needs one; "
        "install it with 'apt-get install g++' (Debian, Ubuntu) or 'dnf install gcc-c++', or use --backend eager"
    )


def check_cuda_headers() -> str:
    """Folder of CUDA whose headers the code that launches kernels includes; the one of torch's own wheels becomes
    `CUDA_HOME` where no toolkit is installed.

    Raises:
        BackendError: there is none.
    """
    from torch.utils import cpp_extension

    if cpp_extension.CUDA_HOME:
        return str(cpp_extension.CUDA_HOME)
    wheels = importlib.util.find_spec("nvidia")
    for place in wheels.submodule_search_locations or () if wheels else ():
        for header in sorted(Path(place).glob("*/include/cuda.h")):
            os.environ["CUDA_HOME"] = cpp_extension.CUDA_HOME = str(header.parents[1])
            return str(cpp_extension.CUDA_HOME)
    raise BackendError(
        "--device cuda needs the headers of CUDA (looked for $CUDA_HOME, nvcc, /usr/local/cuda and torch's wheels); "
        "install a CUDA toolkit and set CUDA_HOME to its folder, or use --backend eager"
    )


def check_onnx(packages: tuple[str, ...] = ("onnx", "onnxscript", "onnxruntime")) -> None:
    """Check that a program can become an ONNX model, and be run on the CPU.

    Args:
        packages: what that takes; running alone takes the last.

    Raises:
        BackendError: a package is missing.
    """
    for name in packages:
        if importlib.util.find_spec(name) is None:
            raise BackendError(f"an ONNX model needs {name}; pip install 'specc[onnx]', or use --backend eager")


def check_output(path: Path, needed_bytes: int = 0) -> None:
    """Check that an engine can be written at `path` before any work is done.

    Raises:
        ConfigError: the place is a file, holds something that is no engine, is not writable, or the disk is too full.
    """
    try:
        _check_place(path)
    except (OSError, ValueError) as e:  # a name that is too long, say, or that holds a zero byte
        raise ConfigError(f"{path}: cannot be a folder ({_reason(e)}); give -o another name") from e
    parent = path.resolve().parent
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK) or not parent.is_dir():
        raise ConfigError(f"{path}: {parent} is not writable; give -o a folder that is")
    free = shutil.disk_usage(parent).free
    if free < needed_bytes:
        raise ConfigError(
            f"{path}: the engine needs about {needed_bytes / 1e6:.0f} MB and {free / 1e6:.0f} MB are free; "
            "make room or give -o another disk"
        )


def _check_place(path: Path) -> None:
    """The folder is replaced as a whole, so all that it holds must be an engine's."""
    if path.exists() and not path.is_dir():
        raise ConfigError(f"{path}: is a file; give -o the name of a folder")
    if not path.is_dir():
        return
    if os.path.ismount(path):
        raise ConfigError(f"{path}: is a mount point, which cannot be replaced; give -o a folder inside it")
    files = [file.relative_to(path).as_posix() for file in path.rglob("*") if not file.is_dir() or file.is_symlink()]
    others = sorted(file for file in files if not _ENGINE_FILE.fullmatch(file))
    if others or (files and "manifest.json" not in files):
        named = f" ({others[0]})" if others else ""
        raise ConfigError(f"{path}: holds files that are not an engine{named}; give -o another folder, or move them")


def _reason(e: Exception) -> str:
    return getattr(e, "strerror", None) or str(e)


def check_folder(option: str, path: Path) -> None:
    """Make a folder that will be written to, before any work is done.

    Raises:
        ConfigError: it cannot be made or written; names the option.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        if not os.access(path, os.W_OK):
            raise PermissionError(13, "no permission")
    except (OSError, ValueError) as e:
        raise ConfigError(f"{option} {path}: cannot be written ({_reason(e)}); give another folder") from e


def check_back_end(backend: str, devices: Sequence[str]) -> None:
    """Check that a back end can compile for these devices here.

    Raises:
        ConfigError, BackendError: a device is unknown or absent; something that the back end needs is missing.
    """
    for device in devices:
        check_device(device)
    if backend == "inductor":
        check_compiler()
        if any(torch.device(device).type == "cuda" for device in devices):
            check_cuda_headers()
    if backend == "onnx":
        check_onnx()
        for device in devices:
            check_provider(torch.device(device))
    if backend == "tensorrt":
        check_onnx(("onnx", "onnxscript"))
        for device in devices:
            check_tensorrt(torch.device(device))


def check_device(device: str) -> None:
    """Check that this torch can use the device.

    Raises:
        BackendError: the device is unknown or absent.
    """
    try:
        kind = torch.device(device).type
    except (RuntimeError, TypeError) as e:
        raise ConfigError(f"--device {device!r} is no device of torch; use --device cpu") from e
    if kind == "cuda" and not torch.cuda.is_available():
        raise BackendError(f"--device {device}: torch {torch.__version__} sees no CUDA device; use --device cpu")
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"--device {device}: engines are made for cpu or cuda; use --device cpu")


def check_memory(needed_bytes: int) -> None:
    """Check that the compile will fit in memory.

    Raises:
        ConfigError: less is free than will be needed.
    """
    import psutil

    free = psutil.virtual_memory().available
    if free < needed_bytes:
        raise ConfigError(
            f"the compile needs about {needed_bytes / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free; "
            "close other programs, or use --dtype bfloat16 or float16"
        )
