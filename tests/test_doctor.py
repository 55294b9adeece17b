"""`specc doctor`: what is here, and what an engine lacks."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from specc import doctor
from specc.cli import main


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


def test_an_engine_that_can_run(tiny_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tiny_engine), "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["engine"].values()) == {doctor.OK}


def test_an_onnx_engine_needs_its_runtime(onnx_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.examine(str(onnx_engine))["engine"]["ONNX Runtime"] == doctor.OK
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "needs onnxruntime" in doctor.examine(str(onnx_engine))["engine"]["ONNX Runtime"]


@pytest.mark.parametrize(
    ("name", "old", "new", "reason"),
    [
        ("manifest.json", '"torch_version": "2', '"torch_version": "1', "for its torch: .* compiled with torch 1"),
        ("manifest.json", '"processor": {', '"processor": {"flags": ["amx_mars"]', "for its processor: .* amx_mars"),
        ("manifest.json", '"format', '"farmat', "for its manifest: "),
        ("tokenizer.json", "a", "b", "for its files: .* damaged or was changed"),
    ],
)
def test_an_engine_that_cannot(
    tiny_engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, old: str, new: str, reason: str
) -> None:
    """Everything is shown, and the first thing that is missing once more as the error."""
    engine = shutil.copytree(tiny_engine, tmp_path / "engine")
    text = (engine / name).read_text()
    assert old in text
    (engine / name).write_text(text.replace(old, new, 1))
    assert main(["doctor", str(engine)]) != 0
    shown = capsys.readouterr()
    assert "back ends" in shown.out
    assert re.search(reason, shown.err) and "\n" not in shown.err.strip()


def test_no_engine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", str(tmp_path)]) != 0
    assert "cannot run here, for its manifest" in capsys.readouterr().err
