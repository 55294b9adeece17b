"""`specc inspect`: everything that is in an engine, without loading its programs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from specc.errors import EngineFormatError
from specc.inspect import inspect, state_bytes
from specc.manifest import EngineManifest, TensorSpec
from specc.runtime.weights import weight_bytes
from specc.tree import DraftTree


def test_says_what_is_in_the_engine(tiny_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(str(tiny_engine))
    shown = capsys.readouterr().out
    manifest = EngineManifest.read(tiny_engine)
    for program, spec in manifest.programs.items():
        assert all(word in shown for word in program.split("_"))
        assert all(report["name"] in shown for report in spec.passes)
    assert manifest.target.source in shown.replace("\n", "") and "LlamaForCausalLM" in shown
    assert f"{manifest.context} tokens, {manifest.slots} slots" in shown
    assert "target caches" in shown and "drafter caches" in shown and "history" in shown
    assert DraftTree(manifest.tree_paths).draw() in shown
    assert "equal with and without speculation" in shown
    assert f"torch {manifest.torch_version}" in shown


def test_needs_no_program(tiny_engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = tmp_path / "engine"
    shutil.copytree(tiny_engine, engine)
    shutil.rmtree(engine / "programs")
    inspect(str(engine))
    assert capsys.readouterr().out.count("missing") == len(EngineManifest.read(engine).programs)


def test_json_is_the_manifest(tiny_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(str(tiny_engine), as_json=True)
    assert json.loads(capsys.readouterr().out) == json.loads((tiny_engine / "manifest.json").read_text())


def test_bytes_of_the_weights_are_those_of_the_file(tiny_engine: Path) -> None:
    stored = load_file(tiny_engine / "weights.safetensors")
    expected = {name: (tuple(t.shape), t.numel() * t.element_size()) for name, t in stored.items()}
    assert weight_bytes(tiny_engine) == expected


def test_bytes_of_the_state_by_kind() -> None:
    tensors = [
        TensorSpec(name="target_k_0", shape=(1, 2, 10, 4), dtype="float32", role="cache"),
        TensorSpec(name="target_v_0", shape=(1, 2, 10, 4), dtype="bfloat16", role="cache"),
        TensorSpec(name="drafter_k_0", shape=(1, 1, 10, 4), dtype="float32", role="cache"),
        TensorSpec(name="history", shape=(1, 10), dtype="int64", role="cache"),
        TensorSpec(name="active", shape=(1,), dtype="bool", role="state"),
        TensorSpec(name="limit", shape=(1,), dtype="int64", role="parameter"),
        TensorSpec(name="bucket", shape=(9,), dtype="uint8", role="bucket"),
        TensorSpec(name="tokens", shape=(1, 16), dtype="int64", role="call"),
    ]
    assert state_bytes(tensors) == {
        "target caches": (2, 480),
        "drafter caches": (1, 160),
        "history": (1, 80),
        "lengths and parameters": (2, 9),
        "bucket": (1, 9),
    }


def test_no_engine(tmp_path: Path) -> None:
    with pytest.raises(EngineFormatError, match="specc compile"):
        inspect(str(tmp_path / "nothing"))
