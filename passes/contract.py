"""Pass: what every rewrite of a program promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from ..program import Level, Program


class Pass(ABC):
    """One rewrite, in place, on the driver's own copy. Options are keyword-only arguments of the constructor.

    Attributes:
        after: passes that must have run before this one, if they are in the list at all.
        needs: passes without which this one cannot run.
        reads: the level of the graph that it takes.
        leaves: the level that it produces; where it differs from `reads`, a second run is refused.
        required: whether no other pass can do without this one's work, though the level stays the same.
        preserves_outputs: False only where the program's inputs or outputs change on purpose.
    """

    after: ClassVar[tuple[type[Pass], ...]] = ()
    needs: tuple[type[Pass], ...] = ()  # an instance may need more than its class
    reads: ClassVar[Level]
    leaves: ClassVar[Level]
    required: ClassVar[bool] = False
    preserves_outputs: ClassVar[bool] = True

    @classmethod
    def stem(cls) -> str:
        """The one name: `LowerAttention` is `lower_attention` in files, tests, dumps and `--without`."""
        return "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")

    def requires(self, program: Program) -> None:
        """Check the graph before the run; raise `PassError` with a remedy."""

    @abstractmethod
    def run(self, program: Program) -> int:
        """Rewrite in place; return how many rewrites were made. 0 means that nothing was touched."""

    def ensures(self, program: Program) -> None:
        """Check the RESULT; raise `PassError` where a promise is broken."""
