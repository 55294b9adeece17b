"""Lower several programs at once, each in a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

from ..errors import BackendError
from ..program import Program

Lower = Callable[[Program, Path], None]
_LOOK = 0.5  # seconds between two looks at whether the parent is there


class Workers:
    """At most `count` children, forked so that programs and weights need not be sent; 0 lowers in this process, as a
    GPU wants, which does not survive a fork.

    `submit` waits for a free place; `finish` waits for all. The first failure stops the rest.
    """

    def __init__(self, count: int, lower: Lower, done: Callable[[str], None]) -> None:
        self.count, self.lower, self.done = count, lower, done
        self._running: dict[Connection, tuple[str, BaseProcess]] = {}
        self._context = multiprocessing.get_context("fork")

    def submit(self, program: Program, path: Path) -> None:
        """Lower `program` to `path` in the background."""
        if not self.count:
            self.lower(program, path)
            self.done(program.name)
            return
        while len(self._running) >= self.count:
            self._collect()
        ours, theirs = self._context.Pipe(duplex=False)
        arguments = (self.lower, program, path, theirs, os.getpid())
        process = self._context.Process(target=_child, args=arguments, daemon=False)
        process.start()
        theirs.close()
        self._running[ours] = (program.name, process)

    def finish(self) -> None:
        """Wait until everything submitted is lowered.

        Raises:
            BackendError: a program could not be lowered, or its process died.
        """
        while self._running:
            self._collect()

    def stop(self) -> None:
        """End all children at once."""
        for _, process in self._running.values():
            process.terminate()
        for _, process in self._running.values():
            process.join(2)
            if process.is_alive():  # it is deep in native code, or inherited a handler of ours
                process.kill()
                process.join()
        self._running.clear()

    def _collect(self) -> None:
        for connection in wait(list(self._running)):
            assert isinstance(connection, Connection)
            name, process = self._running.pop(connection)
            try:
                error, detail = connection.recv()
            except EOFError:
                process.join()
                error, detail = f"its process ended with code {process.exitcode}; is there enough memory?", ""
            process.join()
            if error:
                self.stop()
                raise BackendError(f"program {name}: {error}") from (RuntimeError(detail) if detail else None)
            self.done(name)


def _child(lower: Lower, program: Program, path: Path, connection: Connection, parent: int) -> None:
    # OpenMP's threads did not survive the fork: one thread, and no parallel region is ever opened here.
    torch.set_num_threads(1)
    os.setpgid(0, 0)  # Ctrl-C goes to the parent alone, which ends us
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        lower(program, path)
        connection.send(("", ""))
    except BaseException as e:
        connection.send((str(e) or type(e).__name__, traceback.format_exc()))


def _end_with(parent: int) -> None:
    """Wait until the parent is gone, killed without a chance to end us; then end this group, compilers included.

    Linux can send a signal at the parent's death, but to this process alone: the compiler that it waits for would stay.
    """
    while os.getppid() == parent:
        time.sleep(_LOOK)
    os.killpg(0, signal.SIGKILL)
