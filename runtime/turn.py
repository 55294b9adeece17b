"""Turn: who may use an engine now, or a session of one. One at a time; nobody waits for themselves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
        # The threads that began and that last used what holds it: themselves, for their numbers are used again.
        self._held: tuple[tuple[threading.Thread, ...], ReferenceType[Holder] | None] = ((), None)

    @contextmanager
    def take(self, holder: ReferenceType[Holder] | None = None) -> Iterator[None]:
        """Wait for the engine and hold it. A holder is known weakly, so that one that is dropped frees the engine.

        Raises:
            EngineError: this very thread is in the middle of a call, as a signal handler finds it.
        """
        me = threading.current_thread()
        threads, held = self._held
        if me in threads and held is None:
            raise EngineError("the engine is in the middle of a call of this thread; use it when that has ended")
        if me in threads and held and (earlier := held()):
            earlier.supersede()
        with self._lock:
            self._held = ((me,), holder)
            try:
                yield
            finally:
                self._held = ((), None)

    def move(self) -> None:
        """The holder is in this thread now."""
        self._held = ((*self._held[0][:1], threading.current_thread()), self._held[1])

    @property
    def free(self) -> bool:
        """Whether nobody holds the engine."""
        return not self._lock.locked()


class Alone:
    """One method at a time: `with alone:`. A call from inside one (a signal handler's, say) is refused.

    No generator, and a lock that its thread may take again: an interrupt may come between any two lines of it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside: threading.Thread | None = None

    def __enter__(self) -> None:
        me = threading.current_thread()
        if self._inside is me:
            raise EngineError("this engine is in the middle of a step; call it again when that has ended")
        self._lock.acquire()
        self._inside = me

    def __exit__(self, *error: object) -> None:
        self.leave()

    def leave(self) -> None:
        """This thread is in no method, whatever an interrupt has left."""
        if self._inside is threading.current_thread():
            self._inside = None
        with suppress(RuntimeError):
            while True:  # once for this time, and for each that an interrupt cut off before it was inside
                self._lock.release()
