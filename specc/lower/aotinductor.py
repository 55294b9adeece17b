"""A bound program to an AOTInductor package that holds no weights."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._inductor import config
from torch._inductor.codegen.cpp import CppKernel
from torch._inductor.runtime.cache_dir_utils import cache_dir

from ..errors import BackendError
from ..program import Program
from . import native
from .exporting import export_program

OPTIONS: dict[str, Any] = {
    "aot_inductor.package_constants_in_so": False,  # weights live once, beside the programs
    "aot_inductor.use_runtime_constant_folding": False,
    "cpp.dynamic_threads": True,  # a package built on 2 cores crashes with 8 threads without it
    "cpp.threads": 2,  # what loops are split by; how many run is decided where they run
    "cpp.min_chunk_size": 4096,  # numbers a thread: to wake the others costs as much as a few thousand
    "cpp.enable_kernel_profile": False,
    "freezing": False,  # packed weights could not be shared between programs
}


_patching = threading.Lock()


def key_options() -> dict[str, Any]:
    """Everything beside the graph that decides what a program is compiled to."""
    return {**OPTIONS, "native": native.recipe(), "small loops": "serial"}


def lower(program: Program, path: Path, options: dict[str, Any] | None = None) -> None:
    """Compile a program and write its package.

    Args:
        path: the `.pt2` file to write; its folder exists.
        options: Inductor options beside `OPTIONS`.

    Raises:
        BackendError: Inductor or the C++ compiler failed; the cause is kept.
    """
    exported = export_program(program)
    try:
        alone, serial = _alone(exported.graph_module.code), _small_loops_serial()
        with native.linked(program) as linked, alone, serial, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch._inductor.aoti_compile_and_package(
                exported, package_path=str(path), inductor_configs={**OPTIONS, **linked, **(options or {})}
            )
    except BackendError:
        raise
    except Exception as e:
        logging.getLogger(__name__).debug("lowering failed", exc_info=True)
        raise BackendError(
            f"AOTInductor could not compile program {program.name} ({type(e).__name__}: {str(e)[:300]}); "
            f"--backend eager runs it without a compiler, --traceback shows the cause"
        ) from e


@contextmanager
def _small_loops_serial() -> Iterator[None]:
    """Leave loops of less than `min_chunk_size` numbers a thread to one thread.

    Where the number of threads is open, Inductor writes every loop for all of them, however small: hundreds of waits a
    step, and sums (of a norm, say) whose order depends on the threads and on how many rows there are. It has no option
    for that, so its decision is made as if the number were known. One compile of a process at a time.
    """
    with _patching:
        decide = CppKernel.decide_parallel_depth

        def as_if_known(*args: Any, **options: Any) -> Any:
            with config.patch({"cpp.dynamic_threads": False}):
                return decide(*args, **options)

        CppKernel.decide_parallel_depth = as_if_known
        try:
            yield
        finally:
            CppKernel.decide_parallel_depth = decide


@contextmanager
def _alone(code: str) -> Iterator[None]:
    """One process at a time compiles a program of this code.

    Inductor names its files by what they hold and writes them where all processes of a user do: two that compile the
    same program at once would package files that the other has half written.
    """
    name = f"specc-{hashlib.sha256(code.encode()).hexdigest()[:32]}.lock"
    with (Path(cache_dir()) / name).open("w") as file:  # beside the files that it is about
        fcntl.flock(file, fcntl.LOCK_EX)  # let go when the file is closed, and when this process is killed
        yield
