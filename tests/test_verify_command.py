"""The command `specc verify`: what it refuses, its exit codes and its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.verifying import toy

import specc
from specc.cli import main
from specc.console import SteadyConsole
from specc.errors import ConfigError
from specc.verifier import run, sampled
from specc.verifier.report import FAIL, PASS, Check, Report
from specc.verifier.show import show


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    engine = toy()
    for options, told in (
        ({"draws": 5}, "draws 5 must be in 100..1000000"),
        ({"only": ("speed",)}, "no check is called 'speed'"),
    ):
        with pytest.raises(ConfigError, match=told):
            specc.verify(engine, **options)
    with pytest.raises(ConfigError, match="context of 9 tokens is too short"):
        specc.verify(toy(context=9))
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
    assert "no such engine folder" in capsys.readouterr().err


def test_the_command_and_its_report(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0 and 1; the file holds what was printed, and more."""
    engine = toy()
    monkeypatch.setattr(run, "load", lambda path: engine)
    monkeypatch.setattr(run, "LEAST_DRAWS", 20)
    file = tmp_path / "report.json"
    assert main(["verify", "E", "--quick", "--draws", "20", "--json", str(file)]) == 0
    told, report = capsys.readouterr(), json.loads(file.read_text())
    assert "all passed" in told.out and "greedy" in told.err
    assert (report["passed"], report["failed"], report["engine"]["path"]) == (True, [], "E")
    assert report["options"]["draws"] == 20 and report["versions"]["torch"] == torch.__version__
    assert {"name", "threads"} <= report["machine"].keys()
    found = {check["name"]: check for check in report["checks"]}
    assert sum(count for *_, count in found["plain law"]["figures"]["looks"][0]["counts"]) == 20
    assert sum(p for *_, p in found["plain law"]["figures"]["law"]) == pytest.approx(1)
    monkeypatch.setattr(sampled, "surprise", lambda *a: 0.0)
    assert main(["verify", "E", "--quick", "--draws", "20", "--json", str(file)]) == 1
    told, report = capsys.readouterr(), json.loads(file.read_text())
    assert "checks failed (plain law, coupled law" in told.err and "do not follow their law" in told.out
    assert not report["passed"] and "plain law" in report["failed"]
    assert main(["verify", "E", "--json", str(tmp_path / "no" / "report.json")]) == 2
    assert "--json" in capsys.readouterr().err


@pytest.mark.parametrize(
    "noise, checks, told",
    [
        (0.0, [Check("greedy", PASS, "", figures={"tokens": 5, "noise": 0.0})], "are equal to the last bit"),
        (2e-6, [Check("greedy", PASS, "", figures={"tokens": 5, "noise": 2e-6})], "differ by at most 2e-06"),
        (0.0, [Check("plain law", PASS, "")], "differ by at most 0 "),  # nothing was compared
        (0.0, [Check("greedy", FAIL, "", figures={"tokens": 5})], "differ by at most 0 "),
    ],
)
def test_equal_bits_are_told_where_scores_were_compared(
    noise: float, checks: list[Check], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = {"path": "e", "engine_key": "0" * 12, "lossy": []}
    numbers = {"noise": noise, "allowed": 1e-3, "false_alarm": 0.0}
    rest: dict[str, Any] = {"machine": {}, "versions": {}, "options": {}, "date": ""}
    show(Report(engine=engine, checks=tuple(checks), **rest, **numbers), SteadyConsole())
    assert f"scores of programs {told}" in " ".join(capsys.readouterr().out.split())


def test_a_report_is_json_whatever_was_found() -> None:
    found = Check("greedy", "fail", "", figures={"noise": float("inf")})
    numbers = {"noise": float("inf"), "allowed": 0.0, "false_alarm": 0.0}
    report = Report(engine={}, machine={}, versions={}, options={}, checks=(found,), date="", **numbers)
    read = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert read["checks"][0]["figures"]["noise"] is None and read["noise"] is None and read["allowed"] == 0.0
