"""Stream: one generation, read piece by piece."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Self

from ..errors import EngineError
from .request import Request
from .result import Generation, Stats
from .session import Job, Session

if TYPE_CHECKING:
    from .engine import Engine


class Stream:
    """Pieces of text as they are generated: whole characters, which join to the text of `result`.

    Attributes:
        result: the `Generation`, once the last piece was read.
    """

    def __init__(self, engine: Engine, request: Request, ended: Callable[[str], None] | None = None) -> None:
        """`ended` is called with the text, as far as it was read, once one that began has ended or was closed."""
        self.result: Generation | None = None
        self._job: list[Job] = []
        self._pieces = _run(engine, request, self._job, ended)

    @property
    def stats(self) -> Stats:
        """Counts so far."""
        return self._job[0].stats if self._job else Stats()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        try:
            return next(self._pieces)
        except StopIteration as end:
            self.result = self.result or end.value
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def finish(self) -> Generation:
        """Read to the end; whatever happens, the engine is free then."""
        with self:
            for _ in self:
                pass
        if self.result is None:
            raise EngineError("this stream was closed before its end; it has no result")
        return self.result

    def close(self) -> None:
        """Stop here; the engine is free for the next generation."""
        try:
            self._pieces.close()
        except ValueError as e:  # it is running: a signal handler calls, say
            raise EngineError("this stream is in the middle of a step; close it when that has ended") from e


def _run(
    engine: Engine, request: Request, jobs: list[Job], ended: Callable[[str], None] | None
) -> Generator[str, None, Generation]:
    """The generation. It does not know its stream, so that one that is dropped ends at once and frees the engine."""
    read = ""
    with Session(engine, "stream") as session:
        job = session.start(request)
        jobs.append(job)
        try:
            while job.result is None:
                session.step()
                if len(job.text) > len(read):
                    piece = job.text[len(read) :]
                    read += piece
                    yield piece
        finally:
            if ended:
                ended(read)
    return job.result
