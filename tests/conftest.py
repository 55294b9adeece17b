"""Fixtures that tests share: tiny models on disk, and engines compiled from them once a run, for all its workers."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock
from helpers.models import save_tiny, tiny_drafter, tiny_model

import specc

CONTEXT = 200
PLACED: dict[str, Any] = {"tree": "2,2", "batch": 2, "grammar": 20_000}


_DOWN: list[str] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """A worker is gone: without an error, because it was done."""
    if error:
        _DOWN.append(f"worker {node.gateway.id} went down: {error}")


def pytest_unconfigure() -> None:
    """Said last of all: what follows a worker's end (a scheduler that still counts on it) hides its cause."""
    for line in _DOWN:
        print(line, file=sys.stderr)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run that its workers have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session", autouse=True)
def _cache(shared: Path) -> None:
    """Compiled programs of this run are kept apart from the user's, and shared between its tests."""
    os.environ["SPECC_CACHE"] = str(shared / "cache")
    torch.set_num_threads(1)  # two workers share the machine


@pytest.fixture(scope="session")
def tiny_folders(shared: Path) -> tuple[Path, Path]:
    """A tiny target and a drafter that agrees with it part of the time, in transformers' format."""

    def save(folder: Path) -> None:
        target = tiny_model()
        save_tiny(folder / "target", model=target)
        save_tiny(folder / "drafter", model=tiny_drafter(target, 0.03))

    folder = made_once(shared / "models", save)
    return folder / "target", folder / "drafter"


@pytest.fixture(scope="session")
def tiny_engine(shared: Path, tiny_folders: tuple[Path, Path]) -> Path:
    """An engine of the tiny pair on the eager back end: chain of 3, coupled and rejection."""
    return engine_of(tiny_folders, shared / "eager", backend="eager", acceptance="coupled,rejection")


@pytest.fixture(scope="session")
def batch_engine(shared: Path, tiny_folders: tuple[Path, Path]) -> Path:
    """An engine of the tiny pair on the eager back end with 4 rows, for constrained output too: chain of 3, coupled."""
    return engine_of(tiny_folders, shared / "batch", backend="eager", batch=4, grammar=20_000)


@pytest.fixture(scope="session")
def placed_engine(shared: Path, tiny_folders: tuple[Path, Path]) -> Path:
    """The same pair with two rows and its drafter on a device apart: a tree, coupled, grammars."""
    return engine_of(tiny_folders, shared / "placed", backend="eager", draft_device="cpu", **PLACED)


@pytest.fixture(scope="session")
def whole_engine(shared: Path, tiny_folders: tuple[Path, Path]) -> Path:
    """What `placed_engine` is, on one device."""
    return engine_of(tiny_folders, shared / "whole", backend="eager", **PLACED)


@pytest.fixture(scope="session")
def inductor_engine(shared: Path, tiny_folders: tuple[Path, Path]) -> Path:
    """The same pair and choices on the inductor back end; its programs serve every test that compiles them again."""
    return engine_of(tiny_folders, shared / "inductor", acceptance="coupled,rejection")


@pytest.fixture(scope="session")
def onnx_engine(shared: Path, tiny_folders: tuple[Path, Path]) -> Path:
    """The same pair on the ONNX back end: chain of 3, coupled."""
    pytest.importorskip("onnxruntime")
    return engine_of(tiny_folders, shared / "onnx", backend="onnx")


def engine_of(pair: tuple[Path, Path], output: Path, **options: Any) -> Path:
    """An engine at `output`, compiled by the first worker that asks for it."""
    return made_once(
        output, lambda folder: specc.compile(*pair, folder, context=CONTEXT, chunk=16, fixed=True, **options)
    )


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """`folder`, made by one worker while the others wait; one whose making failed is made again."""
    done = folder.with_suffix(".done")
    with FileLock(folder.with_suffix(".lock")):
        if not done.exists():
            make(folder)
            done.touch()
    return folder


@pytest.fixture
def unwritable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which nothing can be made, not even by root."""
    folder = tmp_path / "cache"
    folder.mkdir()
    make = os.mkdir

    def refuse(path: Any, *more: Any, **options: Any) -> None:
        if Path(path).is_relative_to(folder):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
        make(path, *more, **options)

    monkeypatch.setattr(os, "mkdir", refuse)
    return folder
