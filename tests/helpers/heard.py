"""What a compilation says, to be read."""

from __future__ import annotations

import io

from rich.console import Console

from specc.progress import Report


class Heard(Report):
    """A report whose lines can be read."""

    def __init__(self) -> None:
        super().__init__()
        self._lines = io.StringIO()
        self.console = Console(file=self._lines, width=1000)  # type: ignore[assignment]

    @property
    def text(self) -> str:
        """All lines so far."""
        return self._lines.getvalue()
