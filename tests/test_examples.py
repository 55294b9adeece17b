"""The examples run as they stand."""

from __future__ import annotations

import dataclasses
import re
import runpy
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
    assert times.startswith("64x16 1 rows: linear ") and "  native " in times


def test_time_attention() -> None:
    options = ("--rows", "2", "--slots", "20", "--layers", "1", "--rounds", "1")
    *_, times = run("time_attention.py", *options).splitlines()
    assert times.startswith("20 slots, 2 rows: native ") and "  plain " in times


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
    """All in one table, here those without weights of their own; and a script alone, whose weights are given."""
    target, drafter = map(str, tiny_folders)
    given = ["--target", target, "--engines", str(tmp_path), "--tokens", "16"]
    shown = run("drafters", "ngram", "lookahead", *given)
    shown += run("drafters/quantised.py", "--drafter", drafter, *given)
    assert shown.count("the target's") == 3 and "ANOTHER" not in shown


def test_every_family_of_drafters_has_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `specc compile` takes, and no more: each in a form that can be compiled."""
    monkeypatch.syspath_prepend(EXAMPLES / "drafters")
    found = runpy.run_path(str(EXAMPLES / "drafters" / "__main__.py"))["families"]()
    kinds = set()
    for family in found.values():
        drafter, options = family.drafter or f"{family.train}:trained", family.options
        draft = {k: v for k, v in options.items() if k in {f.name for f in dataclasses.fields(DraftConfig)}}
        more = {k: v for k, v in options.items() if k not in draft}
        config = CompileConfig(target="t", drafter=drafter, output="o", draft=DraftConfig(**draft), **more)
        kinds.add(config.drafting().kind)
    assert kinds == set(KINDS) and len(found) > len(kinds)


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
    command = [sys.executable, str(EXAMPLES / example), *arguments]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, input=stdin)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout
