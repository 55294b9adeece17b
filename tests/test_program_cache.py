"""The store of weights and the key of a program: equal keys must mean equal code, equal names equal content."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
import torch
from helpers.by_hand import hand, op
from torch import Tensor

import specc
from specc.errors import BackendError, PassError
from specc.lower.cache import program_key
from specc.program import Program, WeightStore


def scaled(weight: Tensor) -> Program:
    program = hand()
    x = program.input("x", (2, 16), torch.float32)
    program.weights.add("w", weight)
    program.give(y=op(program, torch.ops.aten.mul.Tensor, x, program.weight("w")))
    return program


def key(program: Program, machine: str = "here", **options: object) -> str:
    return program_key(program, options, machine)


def test_values_of_large_weights_do_not_count() -> None:
    assert key(scaled(torch.ones(16))) == key(scaled(torch.zeros(16)))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_values_that_go_into_the_code_count(shape: tuple[int, ...]) -> None:
    """Inductor writes tensors of up to 8 numbers into the code: a retrained scale needs another program."""
    assert key(scaled(torch.ones(shape))) != key(scaled(torch.full(shape, 2.0)))
    assert key(scaled(torch.ones(shape))) == key(scaled(torch.ones(shape)))


def test_whatever_else_changes_the_code_counts() -> None:
    keys = [
        key(scaled(torch.ones(16))),
        key(scaled(torch.ones(1, 16))),
        key(scaled(torch.ones(16, dtype=torch.float64))),
        key(scaled(torch.ones(16)), machine="there"),
        key(scaled(torch.ones(16)), freezing=True),
    ]
    assert len(set(keys)) == len(keys)


def test_weights_are_stored_as_they_are_lent() -> None:
    """Native code reads a weight by the strides it was compiled for, and the engine's file holds contiguous tensors."""
    store = WeightStore()
    transposed = torch.arange(6.0).view(2, 3).T
    store.add("w", transposed)
    assert store["w"].is_contiguous() and torch.equal(store["w"], transposed)


@pytest.mark.parametrize("other", [torch.ones(3), torch.zeros(4), torch.zeros(3, dtype=torch.int64)], ids=str)
def test_one_name_is_one_content(other: Tensor) -> None:
    store = WeightStore()
    store.add("w", torch.zeros(3))
    store.add("w", torch.zeros(3))
    with pytest.raises(PassError, match="weight w is stored .* two tensors"):
        store.add("w", other)


def test_what_was_finished_is_kept_when_a_later_program_fails(
    tiny_folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or when the compile is killed: minutes of work are found again."""

    def lower(program: Program, path: Path) -> None:
        if program.name != "step_coupled":
            raise BackendError("no memory left")
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("code", "code")

    monkeypatch.setenv("SPECC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("specc.environment.check_compiler", lambda: "g++")
    monkeypatch.setattr("specc.build.WORKERS", 1)
    monkeypatch.setattr("specc.lower.aotinductor.lower", lower)
    monkeypatch.setattr("specc.build._native", lambda *_: {})
    with pytest.raises(BackendError, match="program step: no memory left"):
        specc.compile(tiny_folders[0], "ngram", tmp_path / "e", draft_length=1, context=64, chunk=16)
    assert len(list((tmp_path / "cache" / "programs").iterdir())) == 1 and not (tmp_path / "e").exists()
