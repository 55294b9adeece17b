"""Children that lower programs: what they write, what they say when they fail, and that nobody is left running."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from helpers.decoding import hand

from specc.errors import BackendError
from specc.lower.workers import Workers
from specc.program import Program


def write(program: Program, path: Path) -> None:
    path.write_text(program.name)


def fail(program: Program, path: Path) -> None:
    raise ValueError("no such loop")


def say_nothing(program: Program, path: Path) -> None:
    raise ValueError


def die(program: Program, path: Path) -> None:
    os._exit(9)


def sleep(program: Program, path: Path) -> None:
    time.sleep(60)
    path.write_text("late")


def test_all_are_lowered(tmp_path: Path) -> None:
    done: list[str] = []
    workers = Workers(2, write, done.append)
    for index in range(5):
        workers.submit(hand(), tmp_path / str(index))
    workers.finish()
    assert done == ["hand"] * 5
    assert sorted(path.name for path in tmp_path.iterdir()) == list("01234")


@pytest.mark.parametrize(
    ("lower", "told"),
    [(fail, "program hand: no such loop"), (say_nothing, "program hand: ValueError"), (die, "ended with code 9")],
)
def test_a_failure_is_told_with_its_cause(lower: object, told: str, tmp_path: Path) -> None:
    workers = Workers(2, lower, lambda name: None)
    workers.submit(hand(), tmp_path / "x")
    with pytest.raises(BackendError, match=told) as e:
        workers.finish()
    if lower is not die:
        assert "Traceback" in str(e.value.__cause__), "--traceback shows where the child failed"


def test_stop_ends_them_at_once(tmp_path: Path) -> None:
    workers = Workers(1, sleep, lambda name: None)
    workers.submit(hand(), tmp_path / "x")
    children = [process for _, process in workers._running.values()]
    start = time.monotonic()
    workers.stop()
    assert time.monotonic() - start < 10 and not any(child.is_alive() for child in children)
    assert not (tmp_path / "x").exists()
