"""`make lint` is clean: the rules and the format of pyproject.toml, over every file of the repository."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ruff")
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("command", [("check", "--output-format", "concise"), ("format", "--check")], ids=" ".join)
def test_lint(command: tuple[str, ...]) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "ruff", *command, "--no-cache", "."],
        check=False,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout + found.stderr
