"""What the target wrote: rows of token ids with the target's likeliest tokens, in files that are whole or absent.

A file of answers is one `.npz` of R rows with N tokens in all, of which M are predicted:

    ids   int32   [N]     tokens of all rows, one after the other
    size  int32   [R]     tokens of each row
    skip  int32   [R]     tokens at the start of each row that are not predicted (the prompt; at least 1)
    top   int32   [M, k]  the target's k likeliest tokens for each predicted one, likeliest first
    logp  float16 [M, k]  their log-probabilities under the target
    kind  str     [R]     kind of prompt

`top` and `logp` may be missing, and so may everything but arrays of ids [rows, tokens] of any names.
"""

from __future__ import annotations

import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError

KEEP = 16  # likeliest tokens that are kept for each position, and learnt from
Array = Any  # numpy's, whose shapes are told in words


@dataclass
class Row:
    """One prompt and the target's answer.

    Attributes:
        ids: int32 [n], the prompt's tokens and the answer's.
        skip: how many of them are the prompt; at least 1.
        kind: kind of prompt.
        top: int32 [n - skip, k], the target's likeliest tokens in place of each answer token; None where not known.
        logp: float16 [n - skip, k], their log-probabilities.
    """

    ids: Array
    skip: int
    kind: str = "text"
    top: Array | None = None
    logp: Array | None = None

    def cut(self, longest: int) -> Row:
        """The first `longest` tokens."""
        said = max(0, longest - self.skip)
        top, logp = (None if x is None else x[:said] for x in (self.top, self.logp))
        return Row(self.ids[:longest], self.skip, self.kind, top, logp)

    def check(self, number: int) -> None:
        """Raise ValueError for a row that cannot be learnt from; `number` is its place in the file."""
        said, where = len(self.ids) - self.skip, f"row {number}"
        if self.ids.ndim != 1 or self.ids.dtype.kind not in "iu":
            raise ValueError(f"{where} holds {self.ids.dtype} {self.ids.shape}, not whole numbers in a row")
        if not 1 <= self.skip <= len(self.ids):
            raise ValueError(f"{where} has {len(self.ids)} ids, {self.skip} of them a prompt")
        if self.top is None or self.logp is None:
            return
        if self.top.dtype.kind not in "iu" or self.top.shape != self.logp.shape or len(self.top) != said:
            raise ValueError(f"{where} says {said} tokens and holds top {self.top.shape}, logp {self.logp.shape}")
        if not np.isfinite(self.logp).all():
            raise ValueError(f"{where} holds log-probabilities that are not finite")

    def outside(self, vocab_size: int) -> int | None:
        """An id that the target does not have."""
        for ids in (self.ids, self.top):
            for end in () if ids is None or not ids.size else (ids.min(), ids.max()):
                if not 0 <= end < vocab_size:
                    return int(end)
        return None


def write_answers(path: Path, rows: list[Row]) -> None:
    """Write rows with distributions aside, then under their name: a kill leaves no half file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    with open(aside, "wb") as file:
        np.savez(
            file,
            ids=np.concatenate([np.asarray(row.ids, np.int32) for row in rows]),
            size=np.array([len(row.ids) for row in rows], np.int32),
            skip=np.array([row.skip for row in rows], np.int32),
            top=np.concatenate([np.asarray(row.top, np.int32) for row in rows]),
            logp=np.concatenate([np.asarray(row.logp, np.float16) for row in rows]),
            kind=np.array([row.kind for row in rows]),
        )
    os.replace(aside, path)


def read_answers(path: Path, find_skip: Callable[[Array], int]) -> list[Row]:
    """The rows of one file.

    Args:
        path: an `.npz` of one of the forms above.
        find_skip: where the answer of a row of ids begins, for files that do not say.

    Raises:
        ConfigError: it is not such a file.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            data = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as e:
        raise ConfigError(f"--data {path} is not an .npz file that can be read ({e}); make or copy it again") from e
    try:
        rows = list(_sized(data)) if "size" in data and "skip" in data else list(_alone(data, find_skip))
        for number, row in enumerate(rows):
            row.check(number)
    except (KeyError, ValueError, TypeError, IndexError) as e:
        raise ConfigError(f"--data {path}: its arrays do not fit each other ({e}); write it again") from e
    if not rows:
        raise ConfigError(f"--data {path} holds neither answers (ids, size, skip) nor arrays of ids [rows, tokens]")
    return rows


def _alone(data: dict[str, Array], find_skip: Callable[[Array], int]) -> Iterator[Row]:
    """Rows of files that hold ids and nothing else."""
    for array in data.values():
        for ids in array if array.ndim == 2 else ():
            yield Row(ids, find_skip(ids))


def _sized(data: dict[str, Array]) -> Iterator[Row]:
    kinds = data.get("kind", ["text"] * len(data["size"]))
    at = seen = 0
    for size, skip, kind in zip(data["size"].tolist(), data["skip"].tolist(), kinds, strict=True):
        row = Row(data["ids"][at : at + size], skip, str(kind))
        if "top" in data:
            row.top, row.logp = data["top"][seen : seen + size - skip], data["logp"][seen : seen + size - skip]
        if len(row.ids) < size:
            raise ValueError(f"a row of {len(row.ids)} ids is said to have {size}")
        yield row
        at, seen = at + size, seen + size - skip
