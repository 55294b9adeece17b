"""Fixtures that tests share: tiny models on disk, and engines compiled from them once a session."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from helpers.models import save_tiny, tiny_drafter, tiny_model

import specc

CONTEXT = 200


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compiled programs of this run are kept apart from the user's, and shared between its tests."""
    os.environ["SPECC_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    torch.set_num_threads(1)  # two workers share the machine


@pytest.fixture(scope="session")
def tiny_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A tiny target and a drafter that agrees with it part of the time, in transformers' format."""
    folder = tmp_path_factory.mktemp("models")
    target = tiny_model()
    drafter = tiny_drafter(target, 0.03)
    return save_tiny(folder / "target", model=target), save_tiny(folder / "drafter", model=drafter)


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory, tiny_folders: tuple[Path, Path]) -> Path:
    """An engine of the tiny pair on the eager back end: chain of 3, coupled and rejection."""
    target, drafter = tiny_folders
    output = tmp_path_factory.mktemp("engines") / "eager"
    rules = "coupled,rejection"
    return specc.compile(
        target, drafter, output, backend="eager", context=CONTEXT, chunk=16, acceptance=rules, fixed=True
    )


@pytest.fixture(scope="session")
def batch_engine(tmp_path_factory: pytest.TempPathFactory, tiny_folders: tuple[Path, Path]) -> Path:
    """An engine of the tiny pair on the eager back end with 4 rows, for constrained output too: chain of 3, coupled."""
    target, drafter = tiny_folders
    output = tmp_path_factory.mktemp("engines") / "batch"
    return specc.compile(
        target, drafter, output, backend="eager", context=CONTEXT, chunk=16, batch=4, grammar=20_000, fixed=True
    )


@pytest.fixture(scope="session")
def inductor_engine(tmp_path_factory: pytest.TempPathFactory, tiny_folders: tuple[Path, Path]) -> Path:
    """The same pair and choices on the inductor back end; its programs serve every test that compiles them again."""
    target, drafter = tiny_folders
    output = tmp_path_factory.mktemp("engines") / "inductor"
    rules = "coupled,rejection"
    return specc.compile(target, drafter, output, context=CONTEXT, chunk=16, acceptance=rules, fixed=True)
