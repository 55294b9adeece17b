"""Our own C++ products: compiled for this kind of processor, and linked into the programs that call them."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.cpu_vec_isa import VecISA, pick_vec_isa
from torch._inductor.exc import InvalidCxxCompiler

from ..errors import BackendError
from ..program import Program
from .cache import cache_folder

SOURCE = Path(__file__).with_name("products.cpp")
_ops = torch.ops.specc
SHIMS = {
    _ops.skinny_linear.default: [
        "AOTITorchError aoti_torch_cpu_skinny_linear(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*)"
    ],
    _ops.levels_linear.default: [
        "AOTITorchError aoti_torch_cpu_levels_linear("
        "AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, int64_t, AtenTensorHandle*)"
    ],
}
_LIBRARY_PATH = "LIBRARY_PATH"  # where the linker looks beside its own folders


def recipe() -> str:
    """Everything that decides what the object does, but for where things lie: part of what a program is found by."""
    shims = [declaration for declarations in SHIMS.values() for declaration in declarations]
    return "\n".join([hashlib.sha256(SOURCE.read_bytes()).hexdigest(), torch.__version__, *_flags(), *shims])


@contextlib.contextmanager
def linked(program: Program) -> Iterator[dict[str, Any]]:
    """Inductor's options for a program that may call these products, while the linker can find them.

    Raises:
        BackendError: the C++ compiler failed.
    """
    called = {node.target for node in program.graph.nodes} & SHIMS.keys()
    if not called:
        yield {}
        return
    file, before = object_file(), os.environ.get(_LIBRARY_PATH)
    os.environ[_LIBRARY_PATH] = os.pathsep.join([str(file.parent), *([before] if before else [])])
    try:
        yield {
            "aot_inductor.custom_ops_to_c_shims": {op: SHIMS[op] for op in called},
            "aot_inductor.custom_op_libs": [f":{file.name}"],
        }
    finally:
        if before is None:
            del os.environ[_LIBRARY_PATH]
        else:
            os.environ[_LIBRARY_PATH] = before


def object_file() -> Path:
    """The compiled source, from the cache where it was compiled before.

    Raises:
        BackendError: the C++ compiler failed.
    """
    return _compiled(".o", ("-c",))


class Products:
    """The products on tensors, uncompiled programs' way to them: for timing and for tests.

    Raises:
        BackendError: the C++ compiler failed.
    """

    def __init__(self) -> None:
        torch_libraries = Path(torch.__file__).parent / "lib"
        shared = ("-shared", f"-L{torch_libraries}", "-ltorch_cpu", f"-Wl,-rpath,{torch_libraries}")
        self._library = ctypes.CDLL(str(_compiled(".so", shared)))

    def skinny_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """`specc::skinny_linear` of contiguous float32 `x` `[rows, in]` and `weight` `[out, in]`."""
        (rows, size), out = x.shape, weight.shape[0]
        y = torch.empty(rows, out)
        self._library.specc_skinny_linear(*_pointers(x, weight, y), *map(ctypes.c_int64, (rows, out, size)))
        return y

    def levels_linear(self, x: Tensor, levels: Tensor, scale: Tensor, bits: int) -> Tensor:
        """`specc::levels_linear` of contiguous tensors, `x` being `[rows, in]`."""
        (rows, size), out = x.shape, levels.shape[0]
        y, numbers = torch.empty(rows, out), (rows, out, size, bits, scale.shape[1])
        self._library.specc_levels_linear(*_pointers(x, levels, scale, y), *map(ctypes.c_int64, numbers))
        return y


def vectors() -> VecISA | None:
    """The vector instructions that Inductor compiles for here; None where it found none."""
    isa = pick_vec_isa()
    return isa if isa else None


def _pointers(*tensors: Tensor) -> Iterator[ctypes.c_void_p]:
    return (ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)


def _flags() -> list[str]:
    isa = vectors()
    flags = ["-O3", "-std=c++20", "-fPIC", "-fopenmp", "-DNDEBUG"]  # no fast math: sums keep their order
    return flags + ([*isa.build_arch_flags().split(), *(f"-D{macro}" for macro in isa.build_macro())] if isa else [])


def _compiled(suffix: str, how: tuple[str, ...]) -> Path:
    name = f"specc-{hashlib.sha256(recipe().encode()).hexdigest()[:32]}{suffix}"
    folder = cache_folder().absolute() / "products"
    if not os.access(folder / name, os.R_OK):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            folder = _scratch()
        if not os.access(folder, os.W_OK):
            folder = _scratch()
        if not (folder / name).is_file():
            _compile(folder / name, how)
    if os.pathsep in str(folder):  # no list of folders can hold it
        return Path(shutil.copy(folder / name, _scratch()))
    return folder / name


def _compile(path: Path, how: tuple[str, ...]) -> None:
    aside, include = path.with_name(f".{os.getpid()}.{path.name}"), Path(torch.__file__).parent / "include"
    try:
        command = [get_cpp_compiler(), *_flags(), f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"]
        subprocess.run([*command, str(SOURCE), *how, "-o", str(aside)], check=True, capture_output=True, text=True)
        aside.replace(path)
    except (OSError, subprocess.CalledProcessError, InvalidCxxCompiler) as e:
        raise BackendError(
            f"the C++ compiler could not make {SOURCE.name}: {str(getattr(e, 'stderr', '') or e)[:300]}; "
            "apt-get install g++, or take --backend eager, which needs no compiler"
        ) from e
    finally:
        aside.unlink(missing_ok=True)


@functools.cache
def _scratch() -> Path:
    """A folder for what the cache cannot hold, as long as this process lives."""
    folder = Path(tempfile.mkdtemp(prefix="specc-"))
    owner = os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder
