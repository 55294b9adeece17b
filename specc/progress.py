"""What a compile tells the person who waits: stages with seconds, and a bar over the programs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

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
        with Progress(*columns, console=self.console, transient=True) as progress:
            progress.add_task(name, total=total)
            yield progress
        self.seconds[name] = time.perf_counter() - start
        self.console.print(f"{name:<34} {self.seconds[name]:6.1f} s")
