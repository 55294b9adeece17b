"""What a compile tells: stages, and a line for each program where there is no terminal to draw on."""

from __future__ import annotations

import pytest

from specc.progress import Report


def test_a_log_hears_of_every_program(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report()
    with report.bar("lower", 3) as bar:
        for _ in range(3):
            bar.advance(bar.task_ids[0])
    lines = capsys.readouterr().err.split("\n")
    assert [line for line in lines if " of " in line] == ["lower: 1 of 3", "lower: 2 of 3", "lower: 3 of 3"]
    assert report.seconds.keys() == {"lower"}


def test_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    with Report(quiet=True).bar("lower", 1) as bar:
        bar.advance(bar.task_ids[0])
    assert capsys.readouterr() == ("", "")
