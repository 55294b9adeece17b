"""Compiled programs that were made before: found again by what they compute, never by weight values."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..passes.dump import dump
from ..program import Program

_INLINED = 8  # numbers of a tensor that `GraphLowering.get_attr` of torch._inductor may turn into constants of the code


def cache_folder() -> Path:
    """`$SPECC_CACHE`, else `specc` in the user's cache folder.

    Raises:
        ConfigError: the user has no home.
    """
    named, users = os.environ.get("SPECC_CACHE"), os.environ.get("XDG_CACHE_HOME")
    try:
        return Path(named).expanduser() if named else Path(users or "~/.cache").expanduser() / "specc"
    except RuntimeError as e:
        raise ConfigError(
            "there is no home folder for the cache; name another, as SPECC_CACHE=/tmp/specc specc compile ..."
        ) from e


def check_cache() -> None:
    """Check, before any work, that the cache can be a folder; one that cannot be written is no reason to fail.

    Raises:
        ConfigError: a file is in its place.
    """
    folder = cache_folder()
    found = next((place for place in (folder, *folder.parents) if place.exists()), folder)
    if found.exists() and not found.is_dir():
        raise ConfigError(
            f"the cache {folder}: {found} is a file, not a folder; set SPECC_CACHE to a folder, or unset it"
        )


def not_kept(place: Path, e: OSError) -> str:
    """What a compile says that goes on without writing its cache."""
    reason = e.strerror or e
    return f"the cache {place} cannot be written ({reason}); goes on without: set SPECC_CACHE to a folder that can be"


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
        warn: told once, in one line, when something cannot be kept.
    """

    def __init__(self, folder: Path | None, warn: Callable[[str], None] = lambda line: None) -> None:
        self.folder, self.warn = folder, warn
        self._warned = False

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
        except OSError as e:
            with contextlib.suppress(OSError):
                aside.unlink()
            if not self._warned:
                self.warn(not_kept(self.folder, e))
            self._warned = True
