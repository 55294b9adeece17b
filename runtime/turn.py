"""Turn: who may use an engine now. One at a time; nobody waits for themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol
from weakref import ReferenceType

from ..errors import EngineError


class Holder(Protocol):
    """What may hold an engine for longer than a call."""

    def supersede(self) -> None:
        """End, for a later call in the same thread."""
        ...


class Turns:
    """A lock. What its own thread left open is ended: an interrupted loop leaves it where nobody can close it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # The thread itself, not its number: numbers are used again.
        self._held: tuple[threading.Thread | None, ReferenceType[Holder] | None] = (None, None)

    @contextmanager
    def take(self, holder: ReferenceType[Holder] | None = None) -> Iterator[None]:
        """Wait for the engine and hold it. A holder is known weakly, so that one that is dropped frees the engine.

        Raises:
            EngineError: this very thread is in the middle of a call, as a signal handler finds it.
        """
        me = threading.current_thread()
        thread, held = self._held
        if thread is me and held is None:
            raise EngineError("the engine is in the middle of a call of this thread; use it when that has ended")
        if thread is me and held and (earlier := held()):
            earlier.supersede()
        with self._lock:
            self._held = (me, holder)
            try:
                yield
            finally:
                self._held = (None, None)

    def move(self) -> None:
        """The holder is in this thread now."""
        self._held = (threading.current_thread(), self._held[1])

    @property
    def free(self) -> bool:
        """Whether nobody holds the engine."""
        return not self._lock.locked()
