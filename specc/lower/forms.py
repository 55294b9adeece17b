"""Which products of a few rows are native: the small, and those that were fastest, measured once a machine."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from . import native
from .cache import not_kept
from .native_calls import Native

SMALL = 2**14  # numbers of a weight up to which nothing is timed: microseconds either way
NUMBERS = 80 * 2**20  # in weights that are walked through: more than a cache holds
_MOST_WEIGHTS = 256
_ROUNDS = 4
_GAIN = 0.95  # `linear` must win by 5 % to be taken: timings are noisy, and native rows are equal to the last bit
NAME = "product_forms.json"  # in the cache's folder
LINEAR, NATIVE = FORMS = ("linear", "native")
TIMED_ROWS = (1, 4, 8)


class FormTable:
    """Answers `skinny(out, in, rows, dtype)` for `passes.SkinnyLinears` from measurements on this machine.

    Args:
        path: JSON file that keeps the answers between compiles (equal answers give equal programs, so that cached
            programs are found again); None keeps nothing.
        machine: text that names processor, torch and threads; part of every key.
        warn: told once, in one line, when the file cannot be written.
    """

    def __init__(self, path: Path | None, machine: str, warn: Callable[[str], None] = lambda line: None) -> None:
        self.path, self.machine, self.warn = path, machine, warn
        self.answers = _read(path)
        self._pool = torch.empty(0)

    def skinny(self, out: int, size: int, rows: int, dtype: torch.dtype) -> bool:
        """Whether native code is to be taken: where it is fastest here, and for small weights; never for many rows,
        other dtypes, and processors without vectors.

        One answer for all numbers of rows, so that programs of few and of several rows have the same bits.
        """
        if rows > native.MOST_ROWS or native.vectors() is None:
            return False
        if dtype == torch.int32:  # levels of few bits: computing the weight anew costs more than its product
            return True
        if dtype != torch.float32:
            return False
        if out * size <= SMALL:
            return True
        key = f"{self.machine}|{_recipe()}|{out}x{size}"
        if key not in self.answers:
            linear, ours = (sum(self.seconds(out, size, n, dtype, form) for n in TIMED_ROWS) for form in FORMS)
            self.answers[key] = LINEAR if linear < _GAIN * ours else NATIVE
            self._keep()
        return self.answers[key] == NATIVE

    def seconds(
        self, out: int, size: int, rows: int, dtype: torch.dtype, form: str | None = None, numbers: int = NUMBERS
    ) -> float:
        """Least mean seconds of a product.

        Args:
            form: one of `FORMS`; None is the one that `skinny` takes.
            numbers: in the weights that are walked through: in all that a pass reads, which a cache may hold from one
                pass to the next; by default more than a cache holds.
        """
        if form is None:
            form = NATIVE if self.skinny(out, size, rows, dtype) else LINEAR
        whole, out = out, max(1, min(out, NUMBERS // size))  # of larger weights a part is timed
        count = max(1, min(_MOST_WEIGHTS, min(numbers, NUMBERS) // (out * size)))
        if self._pool.numel() < count * out * size:
            self._pool = torch.rand(count * out * size)
        weights = [self._pool[i * out * size : (i + 1) * out * size].view(out, size).to(dtype) for i in range(count)]
        x, product = torch.rand(rows, size).to(dtype), _product(form)
        best = float("inf")
        for _ in range(_ROUNDS):
            start = perf_counter()
            for weight in weights:
                product(x, weight)
            best = min(best, (perf_counter() - start) / count)
        return best * whole / out

    def _keep(self) -> None:
        if self.path is None:
            return
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.answers = {**_read(self.path), **self.answers}  # with those of other compiles
            aside.write_text(json.dumps(self.answers, indent=1))
            aside.replace(self.path)
        except OSError as e:  # the answers serve this compile all the same
            self.warn(not_kept(self.path, e))
            self.path = None
        finally:
            with contextlib.suppress(OSError):
                aside.unlink()


@functools.cache
def _product(form: str) -> Callable[[Tensor, Tensor], Tensor]:
    return Native().skinny_linear if form == NATIVE else torch.nn.functional.linear


@functools.cache
def _recipe() -> str:
    return hashlib.sha256(native.recipe("products").encode()).hexdigest()[:16]


def _read(path: Path | None) -> dict[str, str]:
    """The answers of earlier compiles; a damaged file, or forms that this version does not know, are measured again."""
    try:
        found = json.loads(path.read_text()) if path and path.is_file() else {}
        return {str(key): form for key, form in found.items() if form in FORMS}
    except (ValueError, OSError, AttributeError, TypeError):
        return {}
