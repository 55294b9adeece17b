"""Compiled programs that were made before: found again by what they compute, never by weight values."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from pathlib import Path
from typing import Any

from ..passes.dump import dump
from ..program import Program

_INLINED = 8  # numbers of a tensor that `GraphLowering.get_attr` of torch._inductor may turn into constants of the code


def cache_folder() -> Path:
    """`$SPECC_CACHE`, else `specc` in the user's cache folder."""
    named, users = os.environ.get("SPECC_CACHE"), os.environ.get("XDG_CACHE_HOME")
    return Path(named) if named else Path(users or Path("~/.cache").expanduser()) / "specc"


def program_key(program: Program, options: dict[str, Any], machine: str) -> str:
    """SHA-256 over the graph with its shapes, the layout of its weights, the options and the machine (torch included).

    Weight values are not part of it, so a retrained drafter finds its programs compiled; except those of the smallest
    tensors (scales, biases of a few experts), which Inductor writes into the code.
    """
    store = program.weights
    layouts = {
        n: (str(t.dtype), tuple(t.shape), t.stride(), store.digest(n) if t.numel() <= _INLINED else "")
        for n in program.weight_names()
        for t in [store[n]]
    }
    parts = [
        dump(program.graph),
        json.dumps(layouts),
        json.dumps(options, sort_keys=True),
        str(program.device),
        machine,
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


class ProgramCache:
    """Files by key under a folder; a half-written file is never found.

    Args:
        folder: made at first use; None caches nothing.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def fetch(self, key: str, path: Path) -> bool:
        """Copy the file of `key` to `path`; False where there is none, or a damaged one, which is removed."""
        found = self.folder / key if self.folder else None
        if found is None or not found.is_file():
            return False
        try:
            with zipfile.ZipFile(found) as package:  # programs are zip files: each part has a checksum
                whole = package.testzip() is None
        except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError):
            whole = False
        except OSError:
            return False
        with contextlib.suppress(OSError):  # a cache that may only be read still serves
            os.utime(found) if whole else found.unlink()
        if whole:
            shutil.copyfile(found, path)
        return whole

    def keep(self, key: str, path: Path) -> None:
        """Store a copy of `path` under `key`; a cache that cannot be written is no reason to fail."""
        if self.folder is None:
            return
        aside = self.folder / f".{key}.{os.getpid()}"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, aside)
            aside.replace(self.folder / key)
        except OSError:
            with contextlib.suppress(OSError):
                aside.unlink()
