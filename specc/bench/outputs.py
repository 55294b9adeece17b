"""Outputs: the files of a run are tried before minutes of measuring, not after them."""

from __future__ import annotations

import shlex
from pathlib import Path

from ..errors import ConfigError
from .plot import check_plot


def check_outputs(json: str | None, plot: str | None) -> None:
    """Check that what `--json` and `--plot` name can be written; leaves the places as they were.

    Raises:
        ConfigError: a file cannot be written, or the picture has no known format.
        BackendError: a picture is asked for and matplotlib is not installed.
    """
    if plot:
        check_plot(Path(plot))
    for option, path in (("--json", json), ("--plot", plot)):
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
