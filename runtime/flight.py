"""What a step is asked for, what it gives a row, and the call that is under way between the two."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from .programs import Paths, StepProgram
from .row import Row


@dataclass(frozen=True, slots=True)
class Work:
    """What a row wants of a step: its rule, levels to draft, tokens to draft instead of the drafter's own, and the tree
    that it would have of those that are deep enough; `results` says that it will read more than the block."""

    row: Row
    rule: str
    length: int
    draft: Sequence[int] = ()
    tree: Paths | None = None
    results: bool = False


class Outcome(NamedTuple):
    """What a step gave a row.

    Attributes:
        block: tokens emitted, at least one.
        accepted, offered: levels of its draft.
        results: outputs of the program, of which `place` is this row's.
    """

    block: list[int]
    accepted: int
    offered: int
    results: Mapping[str, Tensor]
    place: int


class Flight(NamedTuple):
    """A call that is under way.

    Attributes:
        works: whom it serves.
        alone: the row that a program of one row works on; None for all rows.
        results: outputs of the program.
        report: waits for the call, and gives each row's block, count, accepted and offered levels.
    """

    program: StepProgram
    works: Sequence[Work]
    alone: int | None
    results: Mapping[str, Tensor]
    report: Callable[[], list[list[int]]]
