"""What a compile tells the person who waits: stages with seconds, and a bar over the programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from .console import SteadyConsole


class Report:
    """Prints stages to stderr; `quiet` prints nothing.

    Attributes:
        seconds: time of every stage that ended, by name.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.console = SteadyConsole(stderr=True, quiet=quiet)
        self.seconds: dict[str, float] = {}

    def say(self, text: str) -> None:
        """One line."""
        self.console.print(text)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time a stage; it is named when it begins and when it ends."""
        start = time.perf_counter()
        with self.console.status(name):
            yield
        self.seconds[name] = time.perf_counter() - start
        self.console.print(f"{name:<34} {self.seconds[name]:6.1f} s")

    @contextmanager
    def bar(self, name: str, total: int) -> Iterator[Progress]:
        """A bar over `total` programs; advance its first task."""
        start = time.perf_counter()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        shown = Progress if self.console.is_terminal else _Lines
        with shown(*columns, console=self.console, transient=True) as progress:
            progress.add_task(name, total=total)
            yield progress
        self.seconds[name] = time.perf_counter() - start
        self.console.print(f"{name:<34} {self.seconds[name]:6.1f} s")


class _Lines(Progress):
    """A bar for logs and pipes: a line each time that it moves."""

    def __init__(self, *columns: Any, console: Console, **options: Any) -> None:
        super().__init__(*columns, console=console, disable=True, **options)

    def advance(self, task_id: TaskID, advance: float = 1) -> None:
        super().advance(task_id, advance)
        task = self.tasks[task_id]
        self.console.print(f"{task.description}: {task.completed:.0f} of {task.total:.0f}")
