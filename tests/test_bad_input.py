"""Bad input from outside: places that cannot be written, text that is none, streams that are closed or full."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import save_tiny, tiny_tokenizer
from tokenizers import Tokenizer

import specc
from specc import environment
from specc.capture.load import load_model
from specc.capture.source import find_source
from specc.cli import main
from specc.config import CompileConfig, DraftConfig
from specc.engine_writer import writing
from specc.errors import CaptureError, ConfigError
from specc.export import export
from specc.lower.cache import ProgramCache, cache_folder
from specc.lower.forms import FormTable
from specc.runtime.text import Text
from specc.runtime.weights import weight_bytes


@pytest.mark.parametrize("tree", ["[]", (), 5, [1], b"4", 3.5, True, "", "16x1"])
def test_trees(tree: Any) -> None:
    with pytest.raises(ConfigError, match="tree"):
        DraftConfig(tree=tree)


@pytest.mark.parametrize("option", [{"device": None}, {"acceptance": 5}, {"chunk": True}, {"output": "a\0b"}])
def test_types_of_options(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        CompileConfig(**{"target": "a", "drafter": "b", "output": "c", **option})


@pytest.mark.parametrize("option", [{"target": None}, {"output": 5}, {"dump": 5}, {"without": "commit"}])
def test_types_of_arguments(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        specc.compile(**{"target": "a", "drafter": "ngram", "output": tmp_path / "e", **option})


@pytest.mark.parametrize("source", ["x" * 300, "~nobody-of-that-name/x", "a\0b", f"{__file__}/x"])
def test_places_that_hold_no_model(source: str) -> None:
    with pytest.raises(CaptureError, match="folder with config.json"):
        find_source(source, role="target")


def test_ends_that_no_engine_can_watch(tmp_path: Path) -> None:
    """Refused before any work; ids past the vocabulary are never emitted and need no place."""
    folder = save_tiny(tmp_path / "model")
    settings = folder / "generation_config.json"
    whole = json.loads(settings.read_text())
    settings.write_text(json.dumps({**whole, "eos_token_id": [2, 100_000]}))
    assert load_model(str(folder), role="target", dtype="float32").eos_token_ids == (2,)
    settings.write_text(json.dumps({**whole, "eos_token_id": list(range(3, 12))}))
    with pytest.raises(CaptureError, match="can watch 8"):
        load_model(str(folder), role="target", dtype="float32")
    (folder / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CaptureError, match="fetch the model again"):
        load_model(str(folder), role="target", dtype="float32")


def test_only_engines_are_replaced(tmp_path: Path) -> None:
    """`manifest.json` alone makes no engine: web pages have one too."""
    page = tmp_path / "page"
    (page / "js").mkdir(parents=True)
    (page / "manifest.json").write_text("{}")
    environment.check_output(page)
    for name in ("index.html", "js/main.js", "programs/notes.txt"):
        (page / name).parent.mkdir(exist_ok=True)
        (page / name).write_text("")
        with pytest.raises(ConfigError, match=f"not an engine .{name}"):
            environment.check_output(page)
        (page / name).unlink()


def test_names_that_are_too_long(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="another name"):
        environment.check_output(tmp_path / ("x" * 300))


def test_dumps_are_not_written_into_the_engine(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="inside the engine"):
        specc.compile("a", "ngram", tmp_path / "e", dump=tmp_path / "e" / "dump")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--dump"):
        specc.compile("a", "ngram", tmp_path / "e", dump=tmp_path / "file")


def test_an_engine_moved_aside_by_a_killed_compile_comes_back(tmp_path: Path) -> None:
    for name, expected in (("[e]", "old"), ("f", "new")):
        engine, left = tmp_path / name, tmp_path / f".{name}.old.999999"
        left.mkdir()
        (left / "manifest.json").write_text("old")
        if expected == "new":
            engine.mkdir()
            (engine / "manifest.json").write_text("new")
        with pytest.raises(RuntimeError), writing(engine):
            raise RuntimeError
        assert (engine / "manifest.json").read_text() == expected and not left.exists()


def test_a_damaged_program_in_the_cache_is_made_again(tmp_path: Path) -> None:
    import zipfile

    program, cache = tmp_path / "program", ProgramCache(tmp_path / "cache")
    with zipfile.ZipFile(program, "w") as file:
        file.writestr("code", b"code " * 100)
    whole = program.read_bytes()
    for damaged in (whole[:50], whole.replace(b"code code", b"code kode", 1), b""):
        program.write_bytes(whole)
        cache.keep("key", program)
        assert cache.fetch("key", tmp_path / "copy") and (tmp_path / "copy").read_bytes() == whole
        (tmp_path / "cache" / "key").write_bytes(damaged)
        assert not cache.fetch("key", tmp_path / "copy")
        assert not (tmp_path / "cache" / "key").exists()
    (tmp_path / "file").write_text("")
    ProgramCache(tmp_path / "file").keep("key", program)  # no cache is no failure
    assert not ProgramCache(tmp_path / "file").fetch("key", tmp_path / "copy")


def test_an_empty_cache_variable_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECC_CACHE", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/specc")


def test_a_file_in_the_place_of_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told before any work, in one line; the eager back end needs no cache."""
    monkeypatch.setattr(environment, "check_compiler", lambda: "g++")
    (tmp_path / "file").write_text("mine")
    for place in ("file", "file/below"):
        monkeypatch.setenv("SPECC_CACHE", str(tmp_path / place))
        assert main(["compile", "nowhere/x", "ngram", "-o", str(tmp_path / "e")]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{tmp_path / 'file'} is a file, not a folder; set SPECC_CACHE to a folder" in line
        assert main(["compile", "nowhere/x", "ngram", "-o", str(tmp_path / "e"), "--backend", "eager"]) == 2
        assert "nowhere/x" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_no_home_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPECC_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    with pytest.raises(ConfigError, match="SPECC_CACHE="):
        cache_folder()
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("SPECC_CACHE", "~/there")
    assert cache_folder() == Path("/home/me/there")


def test_a_cache_that_cannot_be_written_is_told_once(tmp_path: Path, unwritable: Path) -> None:
    """What was compiled or measured serves this compile all the same."""
    told: list[str] = []
    (tmp_path / "program").write_text("code")
    cache = ProgramCache(unwritable / "programs", told.append)
    for key in "abc":
        cache.keep(key, tmp_path / "program")
    (line,) = told
    assert f"{unwritable / 'programs'} cannot be written (Read-only file system)" in line and "SPECC_CACHE" in line
    told.clear()
    table = FormTable(unwritable / "below" / "forms.json", "machine", told.append)
    table.seconds = lambda *sizes: 1.0  # type: ignore[method-assign]
    assert all(table.skinny(512, size, 1, torch.float32) for size in (64, 128))
    assert len(told) == 1 and "forms.json cannot be written (Read-only file system)" in told[0]


@pytest.mark.parametrize("header", [b"", b"\xff" * 8, b"\2" + b"\0" * 7 + b"[]", b"\x0a" + b"\0" * 7 + b'{"a": {} }'])
def test_weights_that_cannot_be_shown(tmp_path: Path, header: bytes) -> None:
    (tmp_path / "weights.safetensors").write_bytes(header)
    assert weight_bytes(tmp_path) == {}


def test_an_export_touches_no_other_weights(tmp_path: Path, tiny_engine: Path) -> None:
    for name in ("notes.txt", "weights.safetensors"):
        folder = tmp_path / name.partition(".")[0]
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(ConfigError, match="give another"):
            export(tiny_engine, folder)
        assert (folder / name).read_text() == "mine"
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--onnx"):
        export(tiny_engine, tmp_path / "file")


def test_text_that_is_none() -> None:
    text = Text(Tokenizer.from_str(tiny_tokenizer().backend_tokenizer.to_str()), {"chat_template": "x"})
    for prompt in ("\ud800", "\udcff", None, b"x", 5):
        with pytest.raises(ConfigError, match="text"):
            text.encode(prompt)  # type: ignore[arg-type]
    for ids in ([-1], [2**40], ["a"], None):
        with pytest.raises(ConfigError, match="token ids"):
            text.decode(ids)  # type: ignore[arg-type]
    for messages in (None, 5, ["a"], b"x"):
        with pytest.raises(ConfigError, match="messages"):
            text.chat(messages)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("redirect", "code", "told"),
    [
        (">/dev/full", 2, "No space left on device"),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("| head -c 1", 0, ""),
    ],
)
def test_streams(tiny_engine: Path, redirect: str, code: int, told: str) -> None:
    command = f"{sys.executable} -P -m specc inspect {tiny_engine} --json {redirect}"
    command += "; exit ${PIPESTATUS[0]}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120)
    assert (done.returncode, told in done.stderr, len(done.stderr.splitlines())) == (code, True, bool(told))


def test_output_that_lacks_characters(tiny_engine: Path) -> None:
    command = [sys.executable, "-P", "-m", "specc", "inspect", str(tiny_engine)]
    environ = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode == 0 and "root" in done.stdout


def test_trees_that_no_number_holds() -> None:
    for tree in ("[" * 100_000, "9" * 5000):
        with pytest.raises(ConfigError, match="tree"):
            DraftConfig(tree=tree)
