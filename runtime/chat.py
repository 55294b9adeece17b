"""Chat: a conversation with an engine. History, template, and only what is new is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack
from weakref import ref

from ..errors import ConfigError
from .options import Options
from .request import Request
from .stream import Stream

if TYPE_CHECKING:
    from .engine import Engine


class Chat:
    """A conversation; made by `Engine.conversation`.

    Each answer streams. What the engine still holds of the conversation is kept, so only the new turn is run
    (`Stats.reused_tokens`); another use of the engine in between costs time and changes nothing else.

    Attributes:
        messages: what was said, `{"role": ..., "content": ...}` each: the system prompt, then user and assistant.
    """

    def __init__(self, engine: Engine, system: str | None = None, **options: Unpack[Options]) -> None:
        """As `Engine.conversation`."""
        if not engine.has_chat_template:
            raise ConfigError("this engine's model has no chat template; use generate() with a whole prompt")
        if system is not None and not isinstance(system, str):
            raise ConfigError(f"system must be a text, not {system!r}")
        self._engine = engine
        # Every turn reads them anew, so what can be read but once is read now.
        kept = {name: tuple(given) if isinstance(given, Iterator) else given for name, given in options.items()}
        self._options: dict[str, Any] = {"reuse": True, **kept}
        self._start: list[Mapping[str, Any]] = [] if system is None else [{"role": "system", "content": system}]
        self._stream: Callable[[], Stream | None] = lambda: None  # weak: an answer that is dropped frees the engine
        self.messages = list(self._start)
        grammar = self._request([*self._start, _turn("user", ".")]).grammar  # what is wrong is refused now
        if grammar is not None:  # compiled once
            self._options |= {"grammar": grammar, "regex": None, "json_schema": None}

    def say(self, text: str) -> Stream:
        """Say something; the answer comes piece by piece.

        The turn is in `messages` once the stream has ended or was closed, with what was read of the answer. A stream
        that was never begun leaves no turn.

        Raises:
            ConfigError: it is no text, or the conversation no longer fits the engine's context: `reset`, or say less.
        """
        self._close()
        return self._answer(self.messages, text)

    def edit(self, text: str) -> Stream:
        """Say something else in place of what was said last; the answer to that is forgotten.

        Raises:
            ConfigError: as `say`; also if nothing was said yet.
        """
        self._close()
        turns = [i for i, message in enumerate(self.messages) if message["role"] == "user"]
        if not turns:
            raise ConfigError("edit: nothing was said yet; use say()")
        return self._answer(self.messages[: turns[-1]], text)

    def reset(self) -> None:
        """Begin anew, with the system prompt."""
        self._close()
        self.messages = list(self._start)

    def _close(self) -> None:
        """An answer that is still being read ends here, and is kept as far as it was read."""
        if stream := self._stream():
            stream.close()

    def _answer(self, messages: list[Mapping[str, Any]], text: str) -> Stream:
        if not isinstance(text, str):
            raise ConfigError(f"expected a text to say, not {text!r}")
        before = [*messages, _turn("user", text)]

        def ended(answer: str) -> None:
            self.messages = [*before, _turn("assistant", answer)]

        stream = Stream(self._engine, self._request(before), ended)
        self._stream = ref(stream)
        return stream

    def _request(self, messages: list[Mapping[str, Any]]) -> Request:
        ids = self._engine.chat(messages)
        request = Request.make(self._engine.manifest, ids, text=self._engine.text, **self._options)
        if request.n > 1:
            raise ConfigError(f"n {request.n}: a conversation has one answer to each turn; leave n out")
        return request


def _turn(role: str, content: str) -> Mapping[str, Any]:
    return {"role": role, "content": content}
