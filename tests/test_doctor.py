"""`specc doctor`: what is here, and what an engine lacks."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from specc import doctor
from specc.cli import main
from specc.manifest import MANIFEST_NAME, WEIGHTS_NAME, EngineManifest


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "memory_bandwidth", lambda repeats: 2e10)


def test_a_machine(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "")
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["doctor"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "memory bandwidth 20.0 GB/s" in shown and "eager, cpu usable" in shown
    assert "inductor, cpu no C++ compiler found" in shown and "apt-get install g++" in shown


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"machine", "packages", "back_ends", "engine"} and found["engine"] == {}
    assert found["packages"]["torch"] != "not installed"
    assert doctor._version("no-such-package") == "not installed"


def test_either_package_of_onnx_runtime_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are one module: what is not there matters only where neither is."""
    for there, shown in (
        ({"onnxruntime-gpu"}, {"onnxruntime-gpu": "1.32"}),
        ({"onnxruntime", "onnxruntime-gpu"}, {"onnxruntime": "1.32", "onnxruntime-gpu": "1.32"}),
        (set[str](), {"onnxruntime": doctor.MISSING}),
    ):
        monkeypatch.setattr(doctor, "_version", lambda name, there=there: "1.32" if name in there else doctor.MISSING)
        packages = doctor.examine()["packages"]
        assert {name: packages[name] for name in packages if name.startswith("onnxruntime")} == shown


def test_an_engine_that_can_run(tiny_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tiny_engine), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["engine"]
    assert set(found.values()) == {doctor.OK} and "GPU" not in found  # it needs none


def test_an_onnx_engine_needs_its_runtime(onnx_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.examine(str(onnx_engine))["engine"]["ONNX Runtime"] == doctor.OK
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "needs onnxruntime" in doctor.examine(str(onnx_engine))["engine"]["ONNX Runtime"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"torch_version": "1.0"}, "for its torch: .* compiled with torch 1"),
        ({"processor": {"flags": ["amx_mars"]}}, "for its processor: .* amx_mars"),
        ({"format": 99}, "for its manifest: "),
        ({"files": {WEIGHTS_NAME: "0"}}, "for its files: "),
    ],
)
def test_an_engine_that_cannot(
    tiny_engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], reason: str
) -> None:
    """Everything is shown, and the first thing that is missing once more as the error."""
    engine = shutil.copytree(tiny_engine, tmp_path / "engine")
    changed = dataclasses.replace(EngineManifest.read(engine), **change)
    (engine / MANIFEST_NAME).write_text(changed.to_json())
    assert main(["doctor", str(engine)]) != 0
    shown = capsys.readouterr()
    assert "back ends" in shown.out
    assert re.search(reason, shown.err) and "\n" not in shown.err.strip()


def test_no_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) != 0
    assert "cannot run here, for its manifest" in capsys.readouterr().err
