"""The bar of a long run: what is done, how fast, how long yet."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..progress import Report


def training_bar(report: Report) -> Progress:
    """A bar whose tasks have a `note`."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"))
    return Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=report.console)
