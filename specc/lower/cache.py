"""Compiled programs that were made before: found again by what they compute, never by weight values."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

from ..passes.dump import dump
from ..program import Program


def cache_folder() -> Path:
    """`$SPECC_CACHE`, else `specc` in the user's cache folder."""
    named = os.environ.get("SPECC_CACHE")
    return Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "specc"


def program_key(program: Program, options: dict[str, Any], machine: str) -> str:
    """SHA-256 over the graph with its shapes, the layout of its weights, the options and the machine (torch included).

    Weight values are not part of it, so a retrained drafter finds its programs compiled.
    """
    layouts = {
        n: (str(t.dtype), tuple(t.shape), t.stride()) for n in program.weight_names() for t in [program.weights[n]]
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
        """Copy the file of `key` to `path`; False where there is none."""
        found = self.folder / key if self.folder else None
        if found is None or not found.is_file():
            return False
        shutil.copyfile(found, path)
        os.utime(found)
        return True

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
            aside.unlink(missing_ok=True)
