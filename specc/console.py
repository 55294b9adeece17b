"""What commands print with: a console that goes on when its reader has gone, and the form of their tables."""

from __future__ import annotations

from typing import Any, cast

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from .streams import forget

_WIDTH = 120  # of output that goes into a file or a pipe


class SteadyConsole(Console):
    """A console whose output goes nowhere once its reader has gone: the work behind it goes on.

    Rich's own ends the process with code 1, and closes stdout where stderr broke.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, **options)
        if not self.is_terminal:
            self.width = max(self.width, _WIDTH)

    def on_broken_pipe(self) -> None:
        """Called by rich when a write fails."""
        forget(cast(Any, self.file))
        self.quiet = True


def new_table(title: str, first: str, *columns: str) -> Table:
    """An empty table: `first` to the left, the other columns to the right."""
    made = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    made.add_column(first, no_wrap=True)
    for column in columns:
        made.add_column(column, justify="right")
    return made
