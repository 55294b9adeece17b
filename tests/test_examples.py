"""The examples run as they stand."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import specc
from specc.config import CompileConfig, DraftConfig
from specc.drafter import KINDS
from specc.manifest import EngineManifest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_compile_and_generate(tiny_engine: Path, tmp_path: Path) -> None:
    engine = shutil.copytree(tiny_engine, tmp_path / "engine")  # up to date already: the same inputs and choices
    config = EngineManifest.read(engine).config
    options = [f"{name}={config[name]}" for name in ("backend", "context", "chunk", "acceptance")]
    shown = run("compile_and_generate.py", config["target"], config["drafter"], str(engine), *options)
    assert "tokens per pass of the target" in shown


def test_time_products() -> None:
    *_, times = run("time_products.py", "64x16", "--rows", "1", "--rounds", "1").splitlines()
    assert times.startswith("64x16 1 rows: linear ") and "  streams " in times


def test_write_a_pass() -> None:
    before, after = run("write_a_pass.py").split("--- after")
    assert before.count("pow.Tensor_Scalar") == 3 and "pow" not in after
    assert after.count("mul.Tensor") == before.count("mul.Tensor") + 3
    assert "square_by_product: 3 rewrites" in after and "bit-equal: True" in after


def test_serve_rows(batch_engine: Path) -> None:
    prompts = ["the end", "in there", "he", "or else", "one more", "the cat is on the"]
    *lines, last = run("serve_rows.py", str(batch_engine), stdin="".join(f"{p}\n" for p in prompts)).splitlines()
    engine = specc.load(batch_engine)
    texts = [engine.generate(engine.chat(prompt), max_new_tokens=64).text for prompt in prompts]
    assert sorted(lines) == [f"{number}: {text!r}" for number, text in enumerate(texts, 1)]
    assert len(set(texts)) == len(texts)
    found = re.fullmatch(r"6 texts in (\d+) steps of up to 4 rows", last)
    assert found and int(found.group(1)) < sum(map(len, texts))


def test_soak(batch_engine: Path) -> None:
    first, second = run("soak.py", str(batch_engine), "--steps", "120", "--check", "2").splitlines()
    assert first.startswith("120 steps in ") and re.match(r"[1-9]\d* texts written again alone, all equal", second)


def test_drafters(tiny_folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Families without weights of their own, and one whose weights are given, a row each; every text the target's."""
    target, drafter = map(str, tiny_folders)
    wanted = ["ngram", "lookahead", f"quantised={drafter}", f"several={drafter}+{drafter}"]
    shown = run("drafters.py", target, *wanted, "--engines", str(tmp_path), "--tokens", "16")
    assert shown.count("the target's") == len(wanted) and "ANOTHER" not in shown


def test_every_family_of_drafters_is_there() -> None:
    """What `specc compile` takes, and no more: `examples/drafters.py` names each in a form that can be compiled."""
    spec = importlib.util.spec_from_file_location("drafters", EXAMPLES / "drafters.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kinds = set()
    for drafter, options in module.FAMILIES.values():
        name = drafter.replace("train ", "") + (":somewhere" if drafter.startswith("train") else "")
        draft = {k: v for k, v in options.items() if k in {f.name for f in dataclasses.fields(DraftConfig)}}
        more = {k: v for k, v in options.items() if k not in draft}
        config = CompileConfig(target="t", drafter=name, output="o", draft=DraftConfig(**draft), **more)
        kinds.add(config.drafting().kind)
    assert kinds == set(KINDS)


def test_the_readme(batch_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its Python, block after block."""
    blocks = re.findall(r"```python\n(.*?)```", (EXAMPLES.parent / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 3 and 'specc.load("ENGINE")' in blocks[0]
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block.replace('"ENGINE"', repr(str(batch_engine))), names)
    roles = [message["role"] for message in names["chat"].messages]
    assert roles == ["system", "user", "assistant"] and all(job.result for job in names["jobs"])
    assert all(job.result.text in capsys.readouterr().out for job in names["jobs"][:1])


def run(example: str, *arguments: str, stdin: str = "") -> str:
    command = [sys.executable, "-P", str(EXAMPLES / example), *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, input=stdin)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
