"""Outputs: where figures go. Files are tried before minutes of measuring, and written after them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from .bench.plot import check_plot
from .errors import ConfigError


class Outputs(Protocol):
    """A config that says where figures go; None for nowhere."""

    @property
    def json(self) -> str | None:
        """File for every figure."""

    @property
    def plot(self) -> str | None:
        """File for the picture."""


def publish(
    result: dict[str, Any],
    outputs: Outputs,
    show: Callable[[dict[str, Any]], None],
    draw: Callable[[dict[str, Any], Path], None],
) -> dict[str, Any]:
    """Show figures, write and draw them where `outputs` says; returns them as they came."""
    show(result)
    if outputs.json:
        Path(outputs.json).write_text(json.dumps(result, indent=1), encoding="utf-8")
    if outputs.plot:
        draw(result, Path(outputs.plot))
    return result


def check_outputs(outputs: Outputs) -> None:
    """Check that the files can be written; leaves the places as they were.

    Raises:
        ConfigError: a file cannot be written, or the picture has no known format.
        BackendError: a picture is asked for and matplotlib is not installed.
    """
    if outputs.plot:
        check_plot(Path(outputs.plot))
    for option, path in (("--json", outputs.json), ("--plot", outputs.plot)):
        if path:
            _check_writable(option, Path(path))


def _check_writable(option: str, path: Path) -> None:
    try:
        new = not path.exists()
        with path.open("ab"):
            pass
        if new:
            path.unlink()
    except (OSError, ValueError) as e:
        hint = "give a file in a folder that is writable"
        if isinstance(e, FileNotFoundError):
            hint = f"make its folder first: mkdir -p {shlex.quote(str(path.parent))}"
        raise ConfigError(f"{option} {path}: cannot be written ({getattr(e, 'strerror', None) or e}); {hint}") from e
