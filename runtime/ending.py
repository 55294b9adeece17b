"""Ending: what the blocks of a text come to, and why it ends. The one place on the host that decides it.

A text ends at the first of: an end-of-text id, a stop string, `max_new_tokens`, the end of the context. Tokens, text
and reason always agree, whatever interrupts: each block is taken in on a copy, which then becomes the truth at once.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

from .request import Request
from .text import Text, TextStream


class Ending:
    """The new tokens of one text, and what may be shown of it."""

    def __init__(self, request: Request, text: Text | None, room: int) -> None:
        """`room` is the number of tokens that the context leaves."""
        self._now = _Draft(request, text, room)

    @property
    def ids(self) -> list[int]:
        """Tokens so far; those behind a stop string, and those that only spell it, are taken back."""
        return self._now.ids

    @property
    def text(self) -> str:
        """What may be shown: whole characters, and nothing that a stop string may still take back."""
        return self._now.text

    @property
    def finish_reason(self) -> str | None:
        """`stop`, `length` or `context`, or what `end` was told; None while the text goes on."""
        return self._now.finish_reason

    def push(self, block: Sequence[int]) -> None:
        """Take in what a step emitted; behind the end of a text nothing comes."""
        if self._now.finish_reason is None:
            after = self._now.copy()
            after.push(block)
            self._now = after

    def end(self, reason: str) -> str:
        """Nothing comes behind what there is; returns why, which is `reason` unless it has ended by itself."""
        if self._now.finish_reason is None:
            after = self._now.copy()
            after.end(reason)
            self._now = after
        return self._now.finish_reason or reason


class _Draft:
    """The same while it changes: half a block may be in it."""

    def __init__(self, request: Request, text: Text | None, room: int) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None
        self._eos, self._stops = request.eos_token_ids, request.stop
        self._new, self._room = request.max_new_tokens, room
        self._stream = TextStream(text) if text else None
        self._spelled = ""  # all characters that are whole
        self._ends: list[int] = []  # how many of them the first 1, 2, ... tokens spell; kept for stop strings only

    def copy(self) -> _Draft:
        """One that can change alone."""
        other = copy.copy(self)
        other.ids, other._ends, other._stream = [*self.ids], [*self._ends], self._stream and self._stream.copy()
        return other

    def push(self, block: Sequence[int]) -> None:
        kept = self._cut(block)
        for token in kept:  # one by one: what a broken character is shown as may hang on what comes with it
            self.ids.append(token)
            if self._stream:
                self._spell(self._stream.push([token]))
            if self._stop():
                return
        if self.finish_reason:
            self._flush()
        else:
            self.text = self._spelled[: len(self._spelled) - self._held()]

    def end(self, reason: str) -> None:
        self.finish_reason = reason
        self._flush()

    def _flush(self) -> None:
        """Show what was held back, broken or not."""
        if self._stream:
            self._spell(self._stream.flush())
        if not self._stop():
            self.text = self._spelled

    def _cut(self, block: Sequence[int]) -> list[int]:
        """The tokens of a block up to the first that ends the text, and the reason."""
        for i, token in enumerate(block):
            total = len(self.ids) + i + 1
            if token in self._eos:
                self.finish_reason = "stop"
            elif total >= self._new:
                self.finish_reason = "length"
            elif total >= self._room:
                self.finish_reason = "context"
            if self.finish_reason:
                return list(block[: i + 1])
        return list(block)

    def _spell(self, piece: str) -> None:
        self._spelled += piece
        if self._stops and self.ids:
            self._ends[len(self.ids) - 1 :] = [len(self._spelled)]

    def _stop(self) -> bool:
        """Cut text and tokens before the first stop string, if there is one."""
        found = [self._spelled.find(stop, len(self.text)) for stop in self._stops]  # what is shown holds no part of one
        starts = [start for start in found if start >= 0]
        if not starts:
            return False
        self.text = self._spelled[: min(starts)]
        tokens = next((i + 1 for i, end in enumerate(self._ends) if end >= len(self.text)), 0) if self.text else 0
        del self.ids[tokens:]
        self.finish_reason = "stop"
        return True

    def _held(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for size in range(min(longest, len(self._spelled)), 0, -1):
            if any(len(stop) > size and self._spelled.endswith(stop[:size]) for stop in self._stops):
                return size
        return 0
