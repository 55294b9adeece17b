"""The streams of the command line: closed ones, readers that have gone, encodings that lack a character."""

from __future__ import annotations

import os
import sys
from typing import TextIO


def steady() -> None:
    """Output goes on where a stream is closed, or its encoding lacks a character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # for the life of the process
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def forget(stream: TextIO) -> None:
    """The reader has gone: what is still written, by us or by Python at exit, goes nowhere, without an error."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):  # a stream that is no file has nothing to flush
        pass


def forget_broken() -> None:
    """Forget those of stdout and stderr that cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            forget(stream)


def tell(line: str) -> None:
    """One line to stderr, if anybody can read it; an exit code says the same."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:  # the reader has gone, or the disk behind it is full
        forget(sys.stderr)
