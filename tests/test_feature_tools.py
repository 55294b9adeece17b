"""What the commands say and make of engines whose drafter reads hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import checkpoints, oracle
from helpers.decoding import prompt
from helpers.heard import Heard
from helpers.models import save_tiny, tiny_model
from torch import Tensor

import specc
from specc.config import CompileConfig, DraftConfig
from specc.driver import compile_engine
from specc.export import export
from specc.inspect import inspect
from specc.manifest import EngineManifest
from specc.prediction import accepted, predictions
from specc.progress import Report
from specc.verifier.run import verify

SMALL = {"backend": "eager", "context": 120, "chunk": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`target` and a drafter of each kind."""
    folder = tmp_path_factory.mktemp("tools")
    target = tiny_model(num_hidden_layers=3)
    save_tiny(folder / "target", model=target)
    checkpoints.save(folder / "eagle", *checkpoints.eagle(target))
    checkpoints.save(folder / "eagle3", *checkpoints.eagle3(target, draft_vocab=80))
    checkpoints.save(folder / "medusa", *checkpoints.medusa(target))
    return folder


def made(folder: Path, kind: str, name: str, *, dump: Path | None = None, without: Sequence[str] = (), **draft: Any):
    """An engine, and what its compilation said."""
    heard = Heard()
    config = CompileConfig(
        target=str(folder / "target"),
        drafter=f"{kind}:{folder / kind}",
        output=str(folder / name),
        draft=DraftConfig(**draft),
        **SMALL,
    )
    return compile_engine(config, heard, dump=dump, without=tuple(without)), heard.text


@pytest.fixture(scope="module")
def grown(folder: Path) -> tuple[Path, str]:
    """An EAGLE-3 engine of a dynamic tree and a chain, tried on prompts."""
    (folder / "prompts.txt").write_text("the sea is\nher hat and the\nin the end\n")
    return made(folder, "eagle3", "grown", tree="dynamic:8,3,3", ladder="2", prompts=str(folder / "prompts.txt"))


def test_acceptance_is_probed_level_by_level(grown: tuple[Path, str]) -> None:
    engine, said = grown
    manifest = EngineManifest.read(engine)
    found = predictions(manifest)
    assert {name: len(one.acceptance) for name, one in found.items()} == {"step": 3, "step_k2": 2}
    for name, one in found.items():
        rates = ", ".join(f"{rate:.0%}" for rate in one.acceptance)
        assert f"acceptance of {name}: {rates} by level" in said
    first = max(one.acceptance[0] for one in found.values())
    assert ("warning:" in said and "of first drafts are accepted" in said) == (first < 0.4)
    assert 0 < first < 1


def test_a_drafter_that_is_never_right_is_warned_of(folder: Path) -> None:
    config, tensors = checkpoints.medusa(tiny_model(num_hidden_layers=3), heads=1)
    tensors["0.1.weight"] = torch.zeros_like(tensors["0.1.weight"])
    checkpoints.save(folder / "wrong", config, tensors)
    heard = Heard()
    draft = DraftConfig(draft_length=1)
    drafter, target = f"medusa:{folder / 'wrong'}", str(folder / "target")
    output = str(folder / "wrong.engine")
    engine = compile_engine(CompileConfig(target=target, drafter=drafter, output=output, draft=draft, **SMALL), heard)
    assert "warning: 0% of first drafts are accepted" in heard.text
    assert f"was {folder / 'wrong'} trained for {target}" in heard.text and "--prompts FILE" in heard.text
    assert len(accepted(EngineManifest.read(engine))) == 2


def test_inspect(grown: tuple[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    inspect(str(grown[0]))
    shown = capsys.readouterr().out
    assert "eagle3, reads what enters the layers 0, 1, 2 of the target" in shown
    assert "draft tree: dynamic:8,3,3: every step drafts 7 nodes of at most 3 levels" in shown
    assert "root (last emitted token)" not in shown and "features" in shown and "80 of the target's 128" in shown


def test_verify(grown: tuple[Path, str]) -> None:
    """With forced drafts, penalties, side by side and laws."""
    report = verify(grown[0], quick=True, draws=100)
    assert report.passed, [(check.name, check.faults) for check in report.checks if check.result == "fail"]
    assert len(report.checks) > 8


def test_export_to_onnx(grown: tuple[Path, str], tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    from helpers.onnx_step import OnnxStep

    files = export(grown[0], tmp_path / "onnx", Report(True))
    assert {"step.onnx", "plain.onnx", "step_coupled.onnx"} <= {path.name for path in files}
    engine, step = specc.load(grown[0]), OnnxStep(tmp_path / "onnx" / "step.onnx")
    assert "features_out" not in step.outputs or "features" in step.inputs
    call = engine.machine.state._calls["step", None]
    spec = engine.manifest.programs["step"]

    def runner(arguments: list[Tensor]) -> list[Tensor]:
        given = dict(zip(spec.inputs, arguments, strict=True))
        results = step(given)
        for name in results.keys() & given.keys() - set(spec.outputs):
            given[name].copy_(results[name])
        return [results[name] for name in spec.outputs]

    call.runner = runner
    found = engine.generate(prompt(12), max_new_tokens=30, eos_token_id=(), draft_length=3)
    assert found.token_ids == oracle.greedy_text(tiny_model(num_hidden_layers=3), prompt(12), 30)
    assert found.stats.drafted > 0 and found.stats.plain_steps == 0


@pytest.mark.parametrize("kind", ["eagle", "medusa"])
def test_tune(folder: Path, kind: str) -> None:
    engine, said = made(folder, kind, f"tuned-{kind}", tune=True, fixed=True)
    manifest = EngineManifest.read(engine)
    tuned = manifest.config["tuned"]
    assert "choice is the target's at" in said and len(tuned["child_acceptance"]) == 8
    assert 0 < tuned["child_acceptance"][0] < 1 and sum(tuned["child_acceptance"]) <= 1
    assert 1 <= len(manifest.tree_paths[-1]) <= (3 if kind == "medusa" else 16)
    text = oracle.greedy_text(tiny_model(num_hidden_layers=3), prompt(9), 12)
    assert specc.load(engine).generate(prompt(9), max_new_tokens=12, eos_token_id=()).token_ids == text


def test_dumps_and_left_out_passes(folder: Path, tmp_path: Path) -> None:
    options = {"tree": "dynamic:6,2,3", "fixed": True}
    engine, _ = made(folder, "eagle3", "left", dump=tmp_path, without=["fuse_linears", "rotary_tables"], **options)
    names = {path.name for path in (tmp_path / "step").iterdir()}  # a plain step has a tree of one node
    assert any("grow_tree" in name for name in names) and not any("tree_mask" in name for name in names)
    passes = {one["name"] for one in EngineManifest.read(engine).programs["step"].passes}
    assert "grow_tree" in passes and not passes & {"fuse_linears", "rotary_tables"}
    text = oracle.greedy_text(tiny_model(num_hidden_layers=3), prompt(9), 12)
    assert specc.load(engine).generate(prompt(9), max_new_tokens=12, eos_token_id=()).token_ids == text
