"""Stream: one generation, read piece by piece."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Self
from weakref import ReferenceType, ref

from ..errors import EngineError
from .generate import Generation
from .request import Request
from .text import TextStream

if TYPE_CHECKING:
    from .engine import Engine


class Stream:
    """Pieces of text as they are generated: whole characters, which join to the text of `result`.

    Attributes:
        result: the `Generation`, once the last piece was read.
    """

    def __init__(self, engine: Engine, request: Request, resume: bool) -> None:
        self.result: Generation | None = None
        self._superseded = False
        self._pieces = _run(engine, request, resume, ref(self))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> str:
        if self._superseded:
            raise EngineError(
                "this stream was ended by a later call on its engine in the same thread; read it to its end first"
            )
        try:
            return next(self._pieces)
        except StopIteration as end:
            self.result = self.result or end.value
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop here; the engine is free for the next generation."""
        self._pieces.close()

    def finish(self) -> Generation:
        """Read to the end; whatever happens, the engine is free then."""
        with self:
            for _ in self:
                pass
        assert self.result is not None
        return self.result

    def supersede(self) -> None:
        """End this stream for a later call: an interrupted loop may have left it open where nobody can close it."""
        try:
            self.close()
        except ValueError as e:  # the generator is running: a signal handler calls, say
            raise EngineError(
                "this engine is in the middle of a step; call it again when that generation has ended"
            ) from e
        self._superseded = self.result is None


def _run(
    engine: Engine, request: Request, resume: bool, stream: ReferenceType[Stream]
) -> Generator[str, None, Generation]:
    """The generation. It knows its stream weakly, so that one that is dropped ends at once and frees the engine."""
    with engine.turn(stream):
        decoder = TextStream(engine.text) if engine.text else None
        ids: list[int] = []
        pieces: list[str] = []
        for block in engine.blocks(request, resume):
            ids += block
            if decoder and (piece := decoder.push(block)):
                pieces.append(piece)
                yield piece
        if decoder and (piece := decoder.flush()):
            pieces.append(piece)
            yield piece
        session = engine.session
        assert session.finish_reason is not None
        return Generation(
            text="".join(pieces),
            token_ids=ids,
            finish_reason=session.finish_reason,
            stats=session.stats,
            seed=request.seed,
        )
