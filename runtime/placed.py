"""Placed: the state of an engine whose drafter is on another device than its target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from ..manifest import EngineManifest, ProgramSpec
from .call import Runner
from .state import State

HANDED = ("drafted", "offerable")  # what a program that drafts gives to the step it drafts for: N ids a row, N flags


class Placed:
    """Two states behind the interface of one.

    What the host writes goes to both, each taking what its programs read. A step is two calls: the drafter's, whose
    ids are copied to the target, and the target's; what that emits is written to the drafter's history. So N ids go
    each way in every step, and no other tensor ever does.

    Nothing is begun ahead: the host has a part in each step.
    """

    def __init__(self, manifest: EngineManifest, target: State, drafter: State) -> None:
        self.target, self.drafter = target, drafter
        self.specs = {**drafter.specs, **target.specs}
        self._drafts = {name for name, spec in manifest.programs.items() if spec.drafts}
        self._draft_of = {name: spec.draft for name, spec in manifest.programs.items()}

    @property
    def replays(self) -> bool:
        """As `State.replays`."""
        return self.target.replays

    @property
    def batch(self) -> int:
        """Rows."""
        return self.target.batch

    @property
    def writes(self) -> int:
        """As `State.writes`."""
        return self.target.writes + self.drafter.writes

    def has(self, name: str) -> bool:
        """As `State.has`."""
        return self.target.has(name) or self.drafter.has(name)

    def set(self, name: str, row: int, value: float | Sequence[int] | Tensor) -> None:
        """As `State.set`."""
        for state in (self.target, self.drafter):
            state.set(name, row, value)

    def fill(self, name: str, value: float) -> None:
        """As `State.fill`."""
        for state in (self.target, self.drafter):
            state.fill(name, value)

    def hold(self, name: str, values: list[int]) -> None:
        """As `State.hold`."""
        for state in (self.target, self.drafter):
            state.hold(name, values)

    def trust(self, name: str, values: list[int]) -> None:
        """As `State.trust`; of the target's device, where the step's last call was."""
        self.target.trust(name, values)

    def emitted(self, row: int, start: int, tokens: Sequence[int]) -> None:
        """As `State.emitted`: the drafter's history learns them here."""
        self.drafter.write(row, start, tokens)

    def fetch(self, tensor: Tensor) -> Callable[[], list[list[int]]]:
        """As `State.fetch`."""
        return self.target.fetch(tensor)

    def clear(self, row: int, start: int, stop: int) -> None:
        """As `State.clear`."""
        for state in (self.target, self.drafter):
            state.clear(row, start, stop)

    def forget(self, row: int) -> None:
        """As `State.forget`."""
        for state in (self.target, self.drafter):
            state.forget(row)

    def remember(self, tokens: Sequence[int]) -> None:
        """As `State.remember`."""
        for state in (self.target, self.drafter):
            state.remember(tokens)

    def copy(self, source: int, row: int, slots: int) -> None:
        """As `State.copy`."""
        for state in (self.target, self.drafter):
            state.copy(source, row, slots)

    def bind(self, name: str, spec: ProgramSpec, runner: Runner) -> None:
        """As `State.bind`, to the state of the program's device."""
        self._of(name).bind(name, spec, runner)

    def record(self) -> None:
        """As `State.record`."""
        for state in (self.target, self.drafter):
            state.record()

    def call(self, name: str, length: int, row: int | None = None, **given: Tensor) -> Mapping[str, Tensor]:
        """As `State.call`; a step whose draft is made elsewhere is drafted first."""
        if draft := self._draft_of[name]:
            drafts = self.drafter.call(draft, length, row)
            for handed in HANDED:
                self.target.hand(handed, row, drafts[handed])
        return self._of(name).call(name, length, row, **given)

    def _of(self, name: str) -> State:
        return self.drafter if name in self._drafts else self.target


AnyState = State | Placed
