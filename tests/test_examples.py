"""The examples run as they stand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from specc.manifest import EngineManifest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_compile_and_generate(tiny_engine: Path, tmp_path: Path) -> None:
    engine = shutil.copytree(tiny_engine, tmp_path / "engine")  # up to date already: the same inputs and choices
    config = EngineManifest.read(engine).config
    options = [f"{name}={config[name]}" for name in ("backend", "context", "chunk", "acceptance")]
    shown = run("compile_and_generate.py", config["target"], config["drafter"], str(engine), *options)
    assert "tokens per pass of the target" in shown


def test_write_a_pass() -> None:
    before, after = run("write_a_pass.py").split("--- after")
    assert before.count("pow.Tensor_Scalar") == 3 and "pow" not in after
    assert after.count("mul.Tensor") == before.count("mul.Tensor") + 3
    assert "square_by_product: 3 rewrites" in after and "bit-equal: True" in after


def run(example: str, *arguments: str) -> str:
    command = [sys.executable, "-P", str(EXAMPLES / example), *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
