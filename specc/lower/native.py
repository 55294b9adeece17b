"""Our own C++ products, compiled once for this kind of processor and linked into the programs that call them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.cpu_vec_isa import VecISA, pick_vec_isa

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


def source_digest() -> str:
    """SHA-256 of the source, part of what a program is found again by."""
    return hashlib.sha256(SOURCE.read_bytes()).hexdigest()


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


@functools.cache
def _compiled(suffix: str, how: tuple[str, ...]) -> Path:
    isa, include = vectors(), Path(torch.__file__).parent / "include"
    flags = ["-O3", "-std=c++20", "-fPIC", "-fopenmp", "-DNDEBUG"]  # no fast math: one order of sums
    if isa:
        flags += [*isa.build_arch_flags().split(), *(f"-D{macro}" for macro in isa.build_macro())]
    flags += [f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"]
    command = [get_cpp_compiler(), *flags, str(SOURCE), *how]
    key = hashlib.sha256("\n".join([source_digest(), torch.__version__, *command]).encode()).hexdigest()[:32]
    folder = cache_folder() / "products"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        aside = tempfile.NamedTemporaryFile(dir=folder, suffix=suffix, delete=False)
    except OSError:  # a cache that cannot be written is no reason to fail
        folder = Path(tempfile.mkdtemp(prefix="specc-"))
        aside = tempfile.NamedTemporaryFile(dir=folder, suffix=suffix, delete=False)
    aside.close()
    path = folder / f"specc-{key}{suffix}"
    try:
        if not path.is_file():
            subprocess.run([*command, "-o", aside.name], check=True, capture_output=True, text=True)
            Path(aside.name).replace(path)
    except (OSError, subprocess.CalledProcessError) as e:
        raise BackendError(
            f"{command[0]} could not compile {SOURCE.name}: {str(getattr(e, 'stderr', '') or e)[:300]}; "
            "apt-get install g++, or --backend eager, which needs no compiler"
        ) from e
    finally:
        Path(aside.name).unlink(missing_ok=True)
    return path
