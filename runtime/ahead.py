"""Ahead: the next step, begun before the last one was read, so that the device need not wait for the host."""

from __future__ import annotations

from collections.abc import Sequence

from .flight import Flight, Work
from .placed import AnyState, Placed
from .programs import BY_DRAFT, StepProgram


class Ahead:
    """The one call that may be under way beyond what the rows know.

    All that a step reads is on the device, so a step just like the last one needs nothing of the host. It serves the
    next step if that turns out to be what was expected: the same rows (or some of them: others may have ended), the
    same draft, and nothing written to the state meanwhile. Else it is dropped, which costs its time: rows hold the
    truth, and a step that they sat out changes no text. (It moves lookahead's windows and n-grams on, and so what is
    drafted: under rules whose text depends on that, no step is begun ahead.)

    Without a recorder calls are not begun but made, and nothing is ever ahead.
    """

    def __init__(self, state: AnyState) -> None:
        self._state = state
        self._keeps_drafts = any(spec.role == "draft" for spec in state.specs.values())
        self._last: list[tuple[object, ...]] = []
        self._flight: Flight | None = None
        self._rows: dict[int, tuple[object, ...]] = {}
        self._writes = -1

    @property
    def under_way(self) -> bool:
        """Whether a call is ahead of the rows."""
        return self._flight is not None

    def may_follow(self, program: StepProgram, works: Sequence[Work]) -> bool:
        """Whether a step like this one may be begun before this one has been read.

        Not where the host has a part in each step (automata, forced drafts, outputs that it reads, which the next step
        overwrites, a drafter that stays behind), nor where a text may reach its limit in this one, nor for the first of
        its kind: most requests that change what they draft do so at once.
        """
        if not self._state.replays or isinstance(self._state, Placed) or self._last != [_kind(work) for work in works]:
            return False
        bound = self._keeps_drafts and any(work.rule in BY_DRAFT for work in works)
        aside = any(work.draft or work.results or work.row.grammar for work in works)
        beyond = any(work.length and not work.row.draftable_behind(program.depth + 1) for work in works)
        behind = program.depth and any(work.row.has_drafter and work.row.pending > program.depth + 1 for work in works)
        ending = any(len(work.row.ids) + program.depth + 1 >= work.row.limit for work in works)
        return not (bound or aside or beyond or behind or ending)

    def forget(self) -> None:
        """A text begins: steps are no longer like those before."""
        self._last = []

    def put(self, flight: Flight) -> None:
        """A call that was begun; until `expect` it serves nobody, for the step before may be interrupted."""
        self._flight, self._rows = flight, {}

    def expect(self, works: Sequence[Work]) -> None:
        """The rows have taken the step before: from here on nothing of theirs may change."""
        self._last = [_kind(work) for work in works]
        self._rows = {work.row.index: _kind(work) + _place(work) for work in works}
        self._writes = self._state.writes

    def take(self, works: Sequence[Work]) -> Flight | None:
        """The call under way, if it is what these rows want of a step."""
        flight, self._flight = self._flight, None
        if flight is None or self._state.writes != self._writes:
            return None
        fits = all(self._rows.get(work.row.index) == _kind(work) + _place(work) for work in works)
        return flight if works and fits and not any(work.draft or work.results for work in works) else None


def _kind(work: Work) -> tuple[object, ...]:
    return work.row.index, work.rule, work.length, work.tree


def _place(work: Work) -> tuple[object, ...]:
    return len(work.row.ids), work.row.target_length, work.row.drafter_length
