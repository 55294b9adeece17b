"""Every command where its reader has gone, a stream is closed, or an encoding lacks characters: it goes on quietly."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TextIO

import pytest

import specc.export
import specc.generate
from specc.cli import main
from specc.console import SteadyConsole
from specc.manifest import EngineManifest
from specc.progress import Report

TEXT = ("naïve ", "café ", "你好 😀")


@pytest.fixture(autouse=True)
def _no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """`generate` says `TEXT`, without an engine: what is tested is what stands around it."""

    def say(engine: str, prompt: str, **options: Any) -> None:
        for piece in TEXT:
            sys.stdout.write(piece)
            sys.stdout.flush()
        print("3 tokens", file=sys.stderr)

    monkeypatch.setattr(specc.generate, "generate", say)


def broken() -> TextIO:
    """A stream whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return open(writer, "w", encoding="utf-8")  # noqa: SIM115


def command(name: str, engine: Path, folder: Path) -> list[str]:
    config = EngineManifest.read(engine).config
    built = [f"--{key}={config[key]}" for key in ("backend", "context", "chunk", "acceptance")] + ["--fixed"]
    return {
        "inspect": ["inspect", str(engine)],
        "manifest": ["inspect", str(engine), "--json"],
        "generate": ["generate", str(engine), "hello"],
        "export": ["export", str(engine), "--onnx", str(folder / "onnx")],
        "compile": ["compile", config["target"], config["drafter"], "-o", str(engine), *built],
        "wrong": ["inspect", str(folder / "nowhere")],
        "help": ["--help"],
    }[name]


@pytest.mark.parametrize("streams", [("stdout",), ("stderr",), ("stdout", "stderr")], ids="+".join)
@pytest.mark.parametrize("name", ["inspect", "manifest", "generate", "export", "compile", "wrong", "help"])
def test_readers_that_have_gone(
    name: str,
    streams: tuple[str, ...],
    tiny_engine: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither a traceback nor another exit code; what is flushed at exit raises nothing either."""
    exported: list[Path] = []
    monkeypatch.setattr(specc.export, "load_graph", lambda *_: None)
    monkeypatch.setattr(specc.export, "run", lambda *_: None)
    monkeypatch.setattr(specc.export, "export_onnx", lambda program, path, **_: exported.append(path))
    arguments = command(name, tiny_engine, tmp_path)
    gone = {stream: broken() for stream in streams}
    with monkeypatch.context() as patch:
        for stream, file in gone.items():
            patch.setattr(sys, stream, file)
        try:
            code = main(arguments)
        except SystemExit as e:  # argparse's own way to end --help
            code = int(e.code or 0)
    assert code == (2 if name == "wrong" else 0)
    for file in gone.values():
        file.close()
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    if name == "export":
        assert tmp_path / "onnx" / "step.onnx" in exported, "the work is done though nobody looks on"


@pytest.mark.parametrize("name", ["inspect", "generate", "wrong"])
def test_streams_that_are_closed(name: str, tiny_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = command(name, tiny_engine, tmp_path)
    with monkeypatch.context() as patch:
        for stream in ("stdout", "stderr"):
            patch.setattr(sys, stream, None)
        assert main(arguments) == (2 if name == "wrong" else 0)


@pytest.mark.parametrize("name", ["inspect", "generate"])
def test_encodings_that_lack_characters(
    name: str, tiny_engine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = io.BytesIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
        assert main(command(name, tiny_engine, tmp_path)) == 0
        sys.stdout.flush()
        said = raw.getvalue().decode("ascii")
    assert ("root" in said) if name == "inspect" else said == "na?ve caf? ?? ?"


def test_a_compile_goes_on_without_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rich's console would end the process at the first line, and close stdout with it."""
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", broken())
        report = Report()
        with report.stage("first"):
            report.say("a line")
        with report.bar("second", 2) as bar:
            bar.advance(bar.task_ids[0])
        sys.stderr.close()
    assert set(report.seconds) == {"first", "second"}


def test_a_console_writes_while_somebody_reads() -> None:
    out = io.StringIO()
    SteadyConsole(file=out).print("[bold]x[/bold] 123")
    assert out.getvalue() == "[bold]x[/bold] 123\n"


@pytest.mark.parametrize("line", ["inspect {} | true", "inspect {} | head -1", "generate {} --help | true"])
def test_a_pipe_of_the_shell(line: str, tiny_engine: Path) -> None:
    command = f"{sys.executable} -P -m specc {line.format(tiny_engine)}; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
