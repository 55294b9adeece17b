"""Children that lower programs: what they write, what they say when they fail, and that nobody is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.by_hand import hand

from specc.errors import BackendError
from specc.lower import aotinductor
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


PARENT = """
import subprocess, sys
from pathlib import Path
from types import SimpleNamespace
from specc.lower import aotinductor
from specc.lower.workers import Workers

def compile(program, path):
    compiler = subprocess.Popen(["sleep", "600"])
    path.with_suffix(".part").write_text(str(compiler.pid))
    path.with_suffix(".part").rename(path)
    compiler.wait()

workers = Workers(2, compile, print)
for index in range(2):
    workers.submit(SimpleNamespace(name=str(index)), Path(sys.argv[1]) / str(index))
workers.finish()
"""


def test_a_killed_parent_takes_its_children_with_it(tmp_path: Path) -> None:
    """SIGKILL leaves no chance to stop them: they see it themselves, and end with the compilers that they wait for."""
    parent = subprocess.Popen([sys.executable, "-P", "-c", PARENT, str(tmp_path)])
    started = [tmp_path / "0", tmp_path / "1"]
    until(lambda: all(path.is_file() for path in started), 120)
    compilers = [int(path.read_text()) for path in started]
    workers = [_parent(pid) for pid in compilers]
    assert all(map(_runs, compilers + workers)) and {_parent(pid) for pid in workers} == {parent.pid}
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until(lambda: not any(map(_runs, compilers + workers)), 30)


def test_the_same_program_is_compiled_by_one_process_at_a_time(tmp_path: Path) -> None:
    """Inductor writes the files of a program where every process does: one of two would package the other's halves."""

    def hold(program: Program, path: Path) -> None:
        with aotinductor._alone(code[path.name]):
            path.write_text(repr(time.monotonic()))
            time.sleep(1)
            path.with_suffix(".end").write_text(repr(time.monotonic()))

    def when(name: str) -> float:
        return float((tmp_path / name).read_text())

    code = {"a": "x = 1", "b": "x = 1", "c": "x = 2"}
    workers = Workers(3, hold, lambda name: None)
    for name in code:
        workers.submit(hand(), tmp_path / name)
    workers.finish()
    first, second = sorted("ab", key=when)
    assert when(second) >= when(f"{first}.end")
    assert when("c") < when(second), "another program waits for nobody"


def until(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end
        time.sleep(0.1)


def _state(pid: int) -> list[str]:
    """State and parent of a process; ["gone"] of none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return ["gone"]


def _runs(pid: int) -> bool:
    return _state(pid)[0] not in ("gone", "Z", "X")


def _parent(pid: int) -> int:
    return int(_state(pid)[1])
