"""Which form of a skinny product is fastest here: measured once a machine, kept in the cache."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..passes.skinny_linears import FORMS, PARTS
from .cache import not_kept

STREAM_ROWS = 8  # with more rows the sums of `streams` do not fit the registers
_HEAD, _LARGE = 8192, 1_500_000  # rows of a weight that make it a head; numbers in a weight worth the code
MOST_ROWS = 16  # beyond, products are no longer skinny: prefill keeps `linear`
_BYTES = 320 * 2**20  # weights that are walked through: more than a cache holds
_MOST_WEIGHTS = 256
_ROUNDS = 4
NAME = "product_forms.json"  # in the cache's folder
# Time of `streams` in that of the best other form, by rows: see `choose`.
_STREAMS_SHARE = {
    "AVX512": {1: 0.93, 2: 0.88, 3: 0.83, 4: 0.78, 8: 0.69},
    "AVX2": {1: 0.62, 2: 0.72, 4: 0.80, 8: 0.88},
}
_GAIN = 0.95  # another form must beat `linear` by 5 % to be taken: timings are noisy


class FormTable:
    """Answers `choose(out, in, rows, dtype)` for `passes.SkinnyLinears` from measurements on this machine.

    Args:
        path: JSON file that keeps the answers between compiles (equal answers give equal programs, so that cached
            programs are found again); None keeps nothing.
        machine: text that names processor, torch and threads; part of every key.
        warn: told once, in one line, when the file cannot be written.
    """

    def __init__(self, path: Path | None, machine: str, warn: Callable[[str], None] = lambda line: None) -> None:
        self.path, self.machine, self.warn = path, machine, warn
        self.vectors = torch.backends.cpu.get_cpu_capability()  # `AVX2`, `AVX512`, or names without `streams`
        self.answers = _read(path)
        self._pool: Tensor | None = None

    def choose(self, out: int, size: int, rows: int, dtype: torch.dtype) -> str:
        """The form that is fastest here; `linear` for many rows and other dtypes than float32 and those of few bits.

        `streams` is taken where it gains most for the minutes that it costs to compile: it can be timed compiled only,
        and won at every shape and row count that was. SmolLM2-135M, two cores: on AVX-512 a whole pass 7 % at 1 row,
        22 % at 4, 31 % at 8, the head alone 50 % at 4; on AVX2 gate and up 38 % at 1 row, 20 % at 4, 5 % at 8, the head
        42 %, 35 % and 15 % (`examples/time_products.py`). The others are measured.
        """
        if dtype == torch.int32:  # levels of few bits: computing the weight anew costs more than its product
            return "streams" if rows <= STREAM_ROWS else "linear"
        if rows > MOST_ROWS or dtype != torch.float32 or out < 64:
            return "linear"
        large = out * size >= _LARGE and (rows >= 4 or self.vectors == "AVX2")
        if self.vectors in _STREAMS_SHARE and rows <= STREAM_ROWS and (out >= _HEAD or large):
            return "streams"
        key = f"{self.machine}|{out}x{size}|{rows}"
        if key not in self.answers:
            self.answers[key] = self._measure(out, size, rows)
            self._keep()
        return self.answers[key]

    def _keep(self) -> None:
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            aside = self.path.with_suffix(".partial")
            aside.write_text(json.dumps(self.answers, indent=1))
            aside.replace(self.path)
        except OSError as e:  # the answers serve this compile all the same
            self.warn(not_kept(self.path, e))
            self.path = None

    def seconds(self, out: int, size: int, rows: int, dtype: torch.dtype, form: str | None = None) -> float:
        """Least seconds of a product in a form: by default in the one that `choose` takes.

        `streams`, which only runs compiled, is the best of the others less what it was seen to gain on them.
        """
        form, whole = form or self.choose(out, size, rows, dtype), out
        out = min(out, _BYTES // 4 // size // PARTS * PARTS)  # of larger weights a part is timed
        if out < whole:
            return whole / out * self.seconds(out, size, rows, dtype, form)
        if form != "streams":
            return self._times(out, size, rows, dtype, (form,))[form]
        shares = _STREAMS_SHARE.get(self.vectors, {1: 1.0})
        return shares[max(r for r in shares if r <= rows)] * min(
            self._times(out, size, rows, dtype, ("linear", *FORMS)).values()
        )

    def _measure(self, out: int, size: int, rows: int) -> str:
        if out * size > _BYTES // 4:
            return "linear"
        best = self._times(out, size, rows, torch.float32, ("linear", *FORMS))
        fastest = min(best, key=best.__getitem__)
        return fastest if best[fastest] < _GAIN * best["linear"] else "linear"

    def _times(self, out: int, size: int, rows: int, dtype: torch.dtype, names: Sequence[str]) -> dict[str, float]:
        """Least mean seconds by form, of those of `names` that this shape has, over weights that no cache holds.

        Fewer weights would be found in the cache, where other forms win than in a pass over a whole model: at 1 row
        `linear` reads its weight with one thread, half as fast as `split` does.
        """
        wanted = min(_MOST_WEIGHTS * out * size, _BYTES // 4)
        if self._pool is None or self._pool.numel() < wanted:
            self._pool = torch.rand(wanted)
        count = wanted // (out * size)
        weights = [self._pool[i * out * size : (i + 1) * out * size].view(out, size).to(dtype) for i in range(count)]
        x = torch.rand(1, rows, size).to(dtype)
        forms: dict[str, Callable[..., Tensor]] = {"linear": torch.nn.functional.linear, **FORMS}
        forms = {name: forms[name] for name in names if name != "split" or out % PARTS == 0}
        best = dict.fromkeys(forms, float("inf"))
        for _ in range(_ROUNDS):  # interleaved, least of all: the machine's other work hits every form alike
            for name, form in forms.items():
                start = time.perf_counter()
                for weight in weights:
                    form(x, weight)
                best[name] = min(best[name], (time.perf_counter() - start) / count)
        return best


def _read(path: Path | None) -> dict[str, str]:
    """The answers of earlier compiles; a damaged file, or forms that this version does not know, are measured again."""
    try:
        found = json.loads(path.read_text()) if path and path.is_file() else {}
        return {str(key): form for key, form in found.items() if form in ("linear", *FORMS)}
    except (ValueError, OSError, AttributeError, TypeError):
        return {}
