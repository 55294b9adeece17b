"""Our own C++, products and attention: compiled for this kind of processor, and linked into programs that call it."""

from __future__ import annotations

import atexit
import contextlib
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
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.cpu_vec_isa import VecISA, pick_vec_isa
from torch._inductor.exc import InvalidCxxCompiler

from ..errors import BackendError
from ..program import Program
from .cache import cache_folder

SOURCES = Path(__file__).with_name("cpp")
MOST_ROWS = 32  # beyond, neither products nor attention are skinny: prefill keeps the library's
_ops = torch.ops.specc
SHIMS = {
    _ops.skinny_linear.default: [
        "AOTITorchError aoti_torch_cpu_skinny_linear(AtenTensorHandle, AtenTensorHandle, AtenTensorHandle*)"
    ],
    _ops.levels_linear.default: [
        "AOTITorchError aoti_torch_cpu_levels_linear("
        "AtenTensorHandle, AtenTensorHandle, AtenTensorHandle, int64_t, AtenTensorHandle*)"
    ],
    _ops.cached_attention.default: [
        f"AOTITorchError aoti_torch_cpu_cached_attention({'AtenTensorHandle, ' * 8}"
        "double, int64_t*, double*, AtenTensorHandle*, AtenTensorHandle*, AtenTensorHandle*)"
    ],
}
_LIBRARY_PATH = "LIBRARY_PATH"  # where the linker looks beside its own folders


def recipe(part: str = "*") -> str:
    """Everything that decides what the objects do, but for where things lie: part of what a program is found by.

    Args:
        part: name of one source, `products` or `attention`; by default all of them.
    """
    shims = [declaration for declarations in SHIMS.values() for declaration in declarations]
    files = sorted([*SOURCES.glob(f"{part}.cpp"), *SOURCES.glob("*.h")])
    sources = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return "\n".join([*sources, torch.__version__, *_flags(), *shims])


def attends(rows: int, dtype: torch.dtype) -> bool:
    """Whether attention of so many rows is native: where the processor has vectors."""
    return rows <= MOST_ROWS and dtype == torch.float32 and vectors() is not None


@contextlib.contextmanager
def linked(program: Program) -> Iterator[dict[str, Any]]:
    """Inductor's options for a program that may call this code, while the linker can find it.

    Raises:
        BackendError: the C++ compiler failed.
    """
    called = {node.target for node in program.graph.nodes} & SHIMS.keys()
    if not called:
        yield {}
        return
    files, before = objects(), os.environ.get(_LIBRARY_PATH)
    folders = [str(file.parent) for file in files]
    os.environ[_LIBRARY_PATH] = os.pathsep.join([*dict.fromkeys(folders), *([before] if before else [])])
    try:
        yield {
            "aot_inductor.custom_ops_to_c_shims": {op: SHIMS[op] for op in called},
            "aot_inductor.custom_op_libs": [f":{file.name}" for file in files],
        }
    finally:
        if before is None:
            del os.environ[_LIBRARY_PATH]
        else:
            os.environ[_LIBRARY_PATH] = before


def objects() -> list[Path]:
    """The compiled sources, from the cache where they were compiled before.

    Raises:
        BackendError: the C++ compiler failed.
    """
    return [_compiled(f"{source.stem}.o", [source], ("-c",)) for source in _sources()]


def library() -> Path:
    """The compiled sources as one shared library, likewise.

    Raises:
        BackendError: the C++ compiler failed.
    """
    torch_libraries = Path(torch.__file__).parent / "lib"
    shared = ("-shared", f"-L{torch_libraries}", "-ltorch_cpu", f"-Wl,-rpath,{torch_libraries}")
    return _compiled("all.so", _sources(), shared)


def vectors() -> VecISA | None:
    """The vector instructions that Inductor compiles for here; None where it found none."""
    isa = pick_vec_isa()
    return isa if isa else None


def _flags() -> list[str]:
    isa = vectors()
    flags = ["-O3", "-std=c++20", "-fPIC", "-fopenmp", "-DNDEBUG"]  # no fast math: sums keep their order
    return flags + ([*isa.build_arch_flags().split(), *(f"-D{macro}" for macro in isa.build_macro())] if isa else [])


def _sources() -> list[Path]:
    return sorted(SOURCES.glob("*.cpp"))


def _compiled(what: str, sources: list[Path], how: tuple[str, ...]) -> Path:
    name = f"specc-{hashlib.sha256(recipe().encode()).hexdigest()[:32]}-{what}"
    folder = cache_folder().absolute() / "native"
    if not os.access(folder / name, os.R_OK):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            folder = _scratch()
        if not os.access(folder, os.W_OK):
            folder = _scratch()
        if not (folder / name).is_file():
            _compile(folder / name, sources, how)
    if os.pathsep in str(folder):  # no list of folders can hold it
        return Path(shutil.copy(folder / name, _scratch()))
    return folder / name


def _compile(path: Path, sources: list[Path], how: tuple[str, ...]) -> None:
    aside, include = path.with_name(f".{os.getpid()}.{path.name}"), Path(torch.__file__).parent / "include"
    try:
        command = [get_cpp_compiler(), *_flags(), f"-I{include}", f"-I{include / 'torch/csrc/api/include'}"]
        subprocess.run(
            [*command, *map(str, sources), *how, "-o", str(aside)], check=True, capture_output=True, text=True
        )
        aside.replace(path)
    except (OSError, subprocess.CalledProcessError, InvalidCxxCompiler) as e:
        names, cause = ", ".join(source.name for source in sources), str(getattr(e, "stderr", "") or e)
        raise BackendError(
            f"the C++ compiler could not make {names}: {cause[:300]}; "
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
