"""Engines on disk: compile, save, load in a new process, compile again, killed compiles, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from helpers.models import save_tiny, tiny_drafter, tiny_model
from safetensors import safe_open

import specc
from specc import driver, environment
from specc.engine_writer import checksums, writing
from specc.errors import BackendError, ConfigError
from specc.lower import aotinductor
from specc.manifest import WEIGHTS_NAME, EngineManifest

PROMPT = [1, 40, 50, 60, 70]
NEW = 40


def own_text(folder: Path, prompt: list[int], new: int) -> list[int]:
    """Greedy ids of the model's own generate."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    ids = torch.tensor([prompt])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, eos_token_id=-1)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize("engine", ("tiny_engine", "inductor_engine", "onnx_engine"))
def test_text_is_the_targets_own(engine: str, request: pytest.FixtureRequest, tiny_folders: tuple[Path, Path]) -> None:
    loaded = specc.load(request.getfixturevalue(engine))
    expected = own_text(tiny_folders[0], PROMPT, NEW)
    assert len(set(expected)) >= 8
    result = loaded.generate(PROMPT, max_new_tokens=NEW, eos_token_id=())
    assert result.token_ids == expected
    assert 0 < result.stats.accepted < result.stats.drafted
    assert loaded.generate(PROMPT, max_new_tokens=NEW, eos_token_id=(), draft_length=0).token_ids == expected


@pytest.mark.parametrize("threads", (1, 2, 8))
def test_programs_are_right_with_any_number_of_threads(
    inductor_engine: Path, tiny_folders: tuple[Path, Path], threads: int
) -> None:
    code = (
        "import specc, json, sys; e = specc.load(sys.argv[1], threads=int(sys.argv[2]));"
        f"print(json.dumps([e.generate({PROMPT}, max_new_tokens={NEW}, eos_token_id=()).token_ids,"
        f" e.generate({PROMPT}, max_new_tokens={NEW}, eos_token_id=(), temperature=0.9, seed=4).token_ids]))"
    )
    out = subprocess.run(
        [sys.executable, "-P", "-c", code, str(inductor_engine), str(threads)],
        capture_output=True,
        text=True,
        check=True,
    )
    greedy, sampled = json.loads(out.stdout)
    assert greedy == own_text(tiny_folders[0], PROMPT, NEW)
    assert sampled == specc.load(inductor_engine).generate(
        PROMPT, max_new_tokens=NEW, eos_token_id=(), temperature=0.9, seed=4, draft_length=0
    ).token_ids  # fmt: skip


def test_who_may_read_the_folder_may_load_it(tiny_engine: Path) -> None:
    rights = {path.name: path.stat().st_mode & 0o777 for path in tiny_engine.iterdir() if path.is_file()}
    assert WEIGHTS_NAME in rights and len(set(rights.values())) == 1, rights


def test_weights_are_stored_once(tmp_path: Path) -> None:
    target = save_tiny(tmp_path / "target", model=tiny_model(tie_word_embeddings=True))
    engine = specc.compile(target, target, tmp_path / "engine", backend="eager", context=100, chunk=16, fixed=True)
    with safe_open(engine / "weights.safetensors", "pt") as file:
        stored = sum(file.get_tensor(name).nbytes for name in file.keys())  # noqa: SIM118
    distinct = {p.data_ptr(): p for p in tiny_model(tie_word_embeddings=True).parameters()}.values()
    tables = 2 * 8 * 117 * 4  # sine and cosine of every slot
    assert stored <= 1.1 * sum(p.numel() * 4 for p in distinct) + tables
    result = specc.load(engine).generate(PROMPT, max_new_tokens=32, eos_token_id=())
    assert result.stats.accepted == result.stats.drafted > 0  # the drafter is the target


def test_the_same_inputs_again_do_nothing(
    tiny_folders: tuple[Path, Path], tiny_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = EngineManifest.read(tiny_engine)
    monkeypatch.setattr(driver, "build_programs", lambda *a, **k: pytest.fail("compiled again"))
    choices = dict(backend="eager", context=200, chunk=16, acceptance="coupled,rejection", fixed=True)
    specc.compile(*tiny_folders, tiny_engine, **choices)
    assert EngineManifest.read(tiny_engine) == manifest


def test_a_retrained_drafter_needs_no_compiler(
    tmp_path: Path, tiny_folders: tuple[Path, Path], inductor_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = save_tiny(tmp_path / "other", model=tiny_drafter(tiny_model(), 0.02, seed=9))
    monkeypatch.setattr(aotinductor, "lower", lambda *a, **k: pytest.fail("a program was compiled"))
    engine = specc.compile(
        tiny_folders[0], other, tmp_path / "engine", context=200, chunk=16, acceptance="coupled,rejection", fixed=True
    )
    assert specc.load(engine).generate(PROMPT, max_new_tokens=NEW, eos_token_id=()).token_ids == own_text(
        tiny_folders[0], PROMPT, NEW
    )


def test_a_damaged_engine_is_compiled_again(tmp_path: Path, tiny_folders: tuple[Path, Path], tiny_engine: Path) -> None:
    copy = tmp_path / "engine"
    shutil.copytree(tiny_engine, copy)
    (copy / "tokenizer.json").write_text("{}")
    specc.compile(
        *tiny_folders, copy, backend="eager", context=200, chunk=16, acceptance="coupled,rejection", fixed=True
    )
    assert checksums(copy) == EngineManifest.read(copy).files


def test_a_failed_write_leaves_the_old_engine(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    with writing(engine) as folder:
        (folder / "manifest.json").write_text("old")
    with pytest.raises(RuntimeError), writing(engine) as folder:
        (folder / "manifest.json").write_text("new")
        raise RuntimeError
    assert (engine / "manifest.json").read_text() == "old"
    with pytest.raises(ConfigError, match="make room"), writing(engine):
        raise OSError(28, "No space left on device")
    assert [p.name for p in tmp_path.iterdir()] == ["engine"]


@pytest.mark.parametrize("number", (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
def test_a_killed_compile_leaves_the_old_engine(
    tmp_path: Path, tiny_folders: tuple[Path, Path], tiny_engine: Path, number: signal.Signals
) -> None:
    copy = tmp_path / "engine"
    shutil.copytree(tiny_engine, copy)
    command = [sys.executable, "-P", "-m", "specc", "compile", *map(str, tiny_folders), "-o", str(copy)]
    process = subprocess.Popen([*command, "--context", "90"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob(".engine.partial.*/programs")) and time.monotonic() < deadline:
        time.sleep(0.1)
    told = _ended_by(process, number)
    assert process.returncode != 0
    assert checksums(copy) == EngineManifest.read(copy).files
    if number == signal.SIGINT:
        assert process.returncode == 130 and "untouched" in told
        assert [p.name for p in tmp_path.iterdir()] == ["engine"]


def _ended_by(process: subprocess.Popen[str], number: signal.Signals) -> str:
    """What it said at its end. An interrupt that comes while a callback of a weak reference runs is lost in Python, and
    fake tensors have many of these: a user would press the keys again."""
    for _ in range(4):
        process.send_signal(number)
        try:
            return process.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    raise AssertionError(f"it went on after four signals {number}")


def test_leftovers_of_a_killed_compile_are_swept(tmp_path: Path) -> None:
    left = tmp_path / ".engine.partial.999999"
    left.mkdir()
    with writing(tmp_path / "engine") as folder:
        (folder / "manifest.json").write_text("{}")
    assert not left.exists()


def test_output_is_checked_first(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="is a file"):
        environment.check_output(file)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "thesis.txt").write_text("")
    with pytest.raises(ConfigError, match="not an engine"):
        environment.check_output(folder)
    with pytest.raises(ConfigError, match="MB are free"):
        environment.check_output(tmp_path / "engine", 10**18)


def test_a_missing_compiler_is_reported_before_any_work(
    tmp_path: Path, tiny_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment.shutil, "which", lambda name: None)
    with pytest.raises(BackendError, match="apt-get install g"):
        specc.compile(*tiny_folders, tmp_path / "engine")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draft_length": 0}, "outside 1..16"),
        ({"draft_length": 17}, "outside 1..16"),
        ({"draft_length": 2.5}, "whole number"),
        ({"tree": "4,0"}, "children per level"),
        ({"tree": "9,9,9"}, "more than 128"),
        ({"tree": "a"}, "neither"),
        ({"tree": [[0, 0]]}, "prefix"),
        ({"tree": "2,2", "draft_length": 2}, "contradict"),
        ({"dtype": "int8"}, "not one of"),
        ({"backend": "tvm"}, "not one of"),
        ({"acceptance": "typical"}, "is lossy, .* as --acceptance coupled,typical"),
        ({"acceptance": "coupled,guess"}, "'guess' is not one of"),
        ({"context": 1}, "at least 2"),
        ({"context": 100000}, "512 positions"),
        ({"device": "cuda"}, "no CUDA device"),
        ({"device": "toaster"}, "no device"),
        ({"drafter": "ngram:3,2", "tree": "4,2,1"}, "contradict"),
        ({"without": ("loop_fusion",)}, "no such pass"),
        ({"beam": 4}, "no option 'beam'"),
        ({"chunk": 0}, "1..1024"),
    ],
)
def test_options_are_refused_by_name(
    tmp_path: Path, tiny_folders: tuple[Path, Path], options: dict[str, object], message: str
) -> None:
    target, drafter = tiny_folders
    choices = {"target": target, "drafter": drafter, "output": tmp_path / "engine", "backend": "eager", **options}
    with pytest.raises((ConfigError, BackendError), match=message):
        specc.compile(**choices)
    assert not (tmp_path / "engine").exists()
