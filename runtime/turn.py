"""Turn: who may use an engine now. One at a time; nobody waits for themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import ReferenceType


class Holder(Protocol):
    """What may hold an engine for longer than a call."""

    def supersede(self) -> None:
        """End, for a later call in the same thread."""
        ...


class Turns:
    """A lock. What its own thread left open is ended: an interrupted loop leaves it where nobody can close it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: tuple[int | None, ReferenceType[Holder] | None] = (None, None)

    @contextmanager
    def take(self, holder: ReferenceType[Holder] | None = None) -> Iterator[None]:
        """Wait for the engine and hold it. A holder is known weakly, so that one that is dropped frees the engine."""
        me = threading.get_ident()
        thread, held = self._held
        if thread == me and held and (earlier := held()):
            earlier.supersede()
        with self._lock:
            self._held = (me, holder)
            try:
                yield
            finally:
                self._held = (None, None)

    def move(self) -> None:
        """The holder is in this thread now."""
        self._held = (threading.get_ident(), self._held[1])

    @property
    def free(self) -> bool:
        """Whether nobody holds the engine."""
        return not self._lock.locked()
