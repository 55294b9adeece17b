"""Engines on disk: real programs of both back ends, and every way in which a folder may be refused."""

from __future__ import annotations

import dataclasses
import json
import platform
import re
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.toy_engine import CONTEXT, seal, toy_continuation, toy_engine, toy_weights
from safetensors.torch import save_file

from specc.errors import (
    ConfigError,
    EngineError,
    EngineFormatError,
    EngineMismatchError,
    EngineVersionError,
    OtherThreadsWarning,
    SpeccError,
)
from specc.manifest import CHECKSUM, MANIFEST_NAME, WEIGHTS_NAME, EngineManifest
from specc.runtime import Engine, load
from specc.runtime.checks import check_processor
from specc.runtime.devices import Devices, check_memory

FILES = (WEIGHTS_NAME, "programs/step.json", "programs/plain.json", "programs/prefill_target.json")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return toy_engine(tmp_path_factory.mktemp("saved") / "engine")


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(saved, tmp_path / "engine"))


def check_text(engine: Engine, draft_length: int | None = None) -> None:
    for prompt, new in (([5], 20), (list(range(30)), 29), ([1, 2, 3], 1)):
        result = engine.generate(prompt, max_new_tokens=new, draft_length=draft_length)
        assert result.token_ids == toy_continuation(prompt, new)
    assert engine.generate([5], max_new_tokens=500).finish_reason == "context"
    assert len(engine.token_ids) == CONTEXT
    text = toy_continuation([5], 20)
    stop = next(i for i, token in enumerate(text) if i > 1 and token not in text[:i])
    assert engine.generate([5], eos_token_id=text[stop]).token_ids == text[: stop + 1]


def test_eager(saved: Path) -> None:
    engine = load(saved)
    check_text(engine)
    check_text(engine, draft_length=1)
    check_text(engine, draft_length=0)
    assert 0 < engine.generate([5], max_new_tokens=40).stats.acceptance_rate < 1


def test_threads_for_which_no_costs_were_measured_are_told_of(folder: Path) -> None:
    manifest, threads = EngineManifest.read(folder), torch.get_num_threads()
    seconds = {name: [1.0] for name in manifest.programs}
    for measured, asked, told in ((2, 3, True), (2, 2, False), (2, None, False), (None, 3, False)):
        cost: dict[str, Any] = {"tokens": [64], "seconds": seconds, "threads": measured} if measured else {}
        seal(folder, manifest, cost=cost)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load(folder, threads=asked)
        assert [w.category for w in caught] == [OtherThreadsWarning] * told
        for warning in caught:
            assert re.search(r"threads=3: .* timed under 2 threads.*; call calibrate\(\)", str(warning.message))
            assert warning.filename == __file__
    assert torch.get_num_threads() == threads


@pytest.mark.skipif(not shutil.which("g++"), reason="needs a C++ compiler")
def test_inductor(tmp_path: Path) -> None:
    """Packages get their weights from the mapped file, write the caches in place, and run with 1, 2 and 8 threads."""
    folder = toy_engine(tmp_path / "engine", backend="inductor")
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 8):
            check_text(load(folder, threads=count))
            assert torch.get_num_threads() == count
    finally:
        torch.set_num_threads(threads)
    manifest = EngineManifest.read(folder)
    step = dataclasses.replace(manifest.programs["step"], weights=("target.last",))
    seal(folder, manifest, programs={**manifest.programs, "step": step})
    with pytest.raises(EngineFormatError, match="step.pt2: reads drafter.last, which the manifest does not name"):
        load(folder)
    (folder / "programs/step.pt2").write_bytes(b"not a package")
    seal(folder, manifest)
    with pytest.raises(EngineFormatError, match=r"step.pt2: torch .* cannot open this program"):
        load(folder)


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["changed", "truncated", "missing"])
def test_damaged_file(folder: Path, name: str, damage: str) -> None:
    path = folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(data if damage == "changed" else data[:-1])
    words = (
        "is missing; copy the whole folder"
        if damage == "missing"
        else "is damaged or was changed .* copy the engine again"
    )
    with pytest.raises(EngineFormatError, match=f"{name} {words}"):
        load(folder)


def test_other_files_are_left_alone(folder: Path) -> None:
    (folder / "notes.txt").write_text("mine")
    assert load(str(folder)).generate([5], max_new_tokens=2).token_ids == toy_continuation([5], 2)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        (
            {"torch_version": "2.9.1+cpu"},
            EngineVersionError,
            r"torch 2.9.1\+cpu, this is .* pip install 'torch==2.9.\*'",
        ),
        ({"backend": "tvm"}, EngineVersionError, "back end 'tvm'"),
        ({"device": "cuda"}, EngineMismatchError, "torch.cuda.is_available"),
        (
            {"processor": {"isa": "AVX9", "flags": ["avx9", "sse"]}},
            EngineMismatchError,
            "with AVX9, this one lacks avx9;",
        ),
        ({"processor": {"machine": "vax"}}, EngineMismatchError, "compiled for vax processors"),
        ({"files": {}}, EngineFormatError, "lists no checksum of programs/plain.json"),
        ({"slots": 61}, EngineFormatError, "do not fit a context"),
    ],
)
def test_engine_of_another_kind(folder: Path, changes: dict[str, Any], error: type[SpeccError], words: str) -> None:
    if changes.get("device") == "cuda" and torch.cuda.is_available():
        pytest.skip("there is a GPU")
    seal(folder, EngineManifest.read(folder), **changes)
    with pytest.raises(error, match=words) as caught:
        load(folder)
    assert str(folder) in str(caught.value) or "slots" in changes
    assert caught.value.exit_code == 2


def test_same_minor_release_of_torch_is_enough(folder: Path) -> None:
    major, minor = torch.__version__.split(".")[:2]
    seal(folder, EngineManifest.read(folder), torch_version=f"{major}.{minor}.99+other")
    load(folder)


def test_file_outside_the_engine(folder: Path) -> None:
    manifest = EngineManifest.read(folder)
    for name in ("../secret", "/etc/hostname"):
        seal(folder, manifest, files={**manifest.files, name: "0"})
        with pytest.raises(EngineFormatError, match="outside the engine"):
            load(folder)


def test_weights_that_do_not_fit(folder: Path) -> None:
    manifest = EngineManifest.read(folder)
    weights = toy_weights()
    del weights["target.before"]
    save_file(weights, folder / WEIGHTS_NAME)
    seal(folder, manifest)
    with pytest.raises(EngineFormatError, match="lacks target.before"):
        load(folder)
    (folder / WEIGHTS_NAME).write_bytes(b"nothing")
    seal(folder, manifest)
    with pytest.raises(EngineFormatError, match="not readable as safetensors"):
        load(folder)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (b"not a program", "JSONDecodeError"),
        (b"{}", "KeyError: 'nodes'"),
        (b'{"nodes": []}', "not enough values"),
        (
            b'{"nodes": [["call", "x", "aten.no_such_op.default", [], {"dict": {}}, ""], ["results", ["x"]]]}',
            "inputs , and",
        ),
    ],
)
def test_program_that_torch_cannot_read(folder: Path, found: bytes, reason: str) -> None:
    (folder / "programs/step.json").write_bytes(found)
    seal(folder, EngineManifest.read(folder))
    with pytest.raises(EngineFormatError, match=f"step.json: torch .* cannot read this program .*{reason}"):
        load(folder).generate([5])


def test_program_with_an_op_that_torch_has_not(folder: Path) -> None:
    path = folder / "programs/step.json"
    path.write_text(path.read_text().replace('"aten.argmax.default"', '"aten.argmost.default"'))
    seal(folder, EngineManifest.read(folder))
    with pytest.raises(EngineFormatError, match="cannot read this program .*argmost"):
        load(folder).generate([5])


def test_manifest(folder: Path, tmp_path: Path) -> None:
    path = folder / MANIFEST_NAME
    whole = path.read_text()
    with pytest.raises(EngineFormatError, match="no such engine folder"):
        load(tmp_path / "nowhere")
    with pytest.raises(EngineFormatError, match="is a file; give the folder"):
        load(path)
    path.write_text(whole[: len(whole) // 2])
    with pytest.raises(EngineFormatError, match="not readable as JSON"):
        load(folder)
    path.write_text(json.dumps({**json.loads(whole), "format": 99}))
    with pytest.raises(EngineVersionError, match="format 99"):
        load(folder)
    path.write_text(json.dumps({**json.loads(whole), "surprise": 1}))
    with pytest.raises(EngineFormatError, match="surprise"):
        load(folder)
    path.unlink()
    with pytest.raises(EngineFormatError, match="not an engine"):
        load(folder)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (["context"], "60", "context: expected int"),
        (["context"], 0, "context: expected at least 1"),
        (["chunk"], True, "chunk: expected int"),
        (["torch_version"], 2.13, "torch_version: expected str"),
        (["eos_token_ids"], ["2"], r"eos_token_ids\[0\]: expected int"),
        (["files"], [], "files: expected dict"),
        (["target"], None, "target: expected dict"),
        (["target", "layers"], None, "layers: expected int"),
        (["target", "license"], "MIT", "license is not known"),
        (["tensors", 0, "shape"], [-1], "below 0"),
        (["tensors", 0, "name"], "bucket", "name"),
        (["programs"], {}, "prefill_target is missing"),
        (["programs", "step"], [], "step: expected dict"),
        (["programs", "step", "inputs"], "tokens", "inputs: expected list"),
        (["tree_paths"], [[]], "step|tree_paths|depth"),
        (["tree_paths"], [[], [1]], "sibling"),
        (["drafter_kind"], "oracle", "drafter_kind"),
    ],
)
def test_manifest_fields(folder: Path, place: list[Any], value: Any, words: str) -> None:
    path = folder / MANIFEST_NAME
    raw = json.loads(path.read_text())
    inner = raw
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(raw))
    with pytest.raises(EngineFormatError, match=words):
        load(folder)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (["tensors", 0, "shape"], [4]),
        (["programs", "step", "outputs", 0], "zz"),
        (["config", "draft"], -1),
        (["self_check"], {"prompt": [1]}),
    ],
)
def test_an_edited_manifest_is_told_by_its_checksum(folder: Path, place: list[Any], value: Any) -> None:
    """Fields of the right kind that describe other programs than there are."""
    path = folder / MANIFEST_NAME
    raw = inner = json.loads(path.read_text())
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    path.write_text(json.dumps(raw))
    with pytest.raises(EngineFormatError, match="was changed after the engine was written"):
        load(folder)
    path.write_text(json.dumps({k: v for k, v in raw.items() if k != CHECKSUM}))
    with pytest.raises(EngineFormatError, match="was changed"):
        load(folder)


def test_every_missing_field_is_named(folder: Path) -> None:
    path = folder / MANIFEST_NAME
    whole = json.loads(path.read_text())
    missing = dataclasses.MISSING
    needed = [f.name for f in dataclasses.fields(EngineManifest) if f.default is missing is f.default_factory]
    assert len(needed) > 10
    for name in needed:
        path.write_text(json.dumps({k: v for k, v in whole.items() if k != name}))
        with pytest.raises(EngineFormatError, match=f"{name} is missing"):
            load(folder)
    path.write_text("[" * 100_000)
    with pytest.raises(EngineFormatError, match="not readable as JSON"):
        load(folder)


def test_a_path_that_is_none(saved: Path) -> None:
    with pytest.raises(ConfigError, match="path of a folder"):
        load(None)  # type: ignore[arg-type]
    with pytest.raises(EngineFormatError, match="no such engine folder"):
        load("x" * 300)


def test_device(saved: Path) -> None:
    assert load(saved, device="cpu").device == load(saved, device=torch.device("cpu")).device
    with pytest.raises(EngineMismatchError, match="compiled for cpu, asked to run on cuda; .* --device cuda"):
        load(saved, device="cuda")
    with pytest.raises(EngineMismatchError, match="device 'abacus' is not known to torch"):
        load(saved, device="abacus")


@pytest.mark.parametrize("threads", [0, -1, True, 1.5, "2"])
def test_threads_out_of_range(saved: Path, threads: Any) -> None:
    with pytest.raises(ConfigError, match="threads .*must be"):
        load(saved, threads=threads)


def test_processors(saved: Path, tmp_path: Path) -> None:
    listed = tmp_path / "cpuinfo"
    manifest = EngineManifest.read(saved)
    needs = {"isa": "AVX2", "flags": ["avx2", "fma"], "machine": platform.machine()}
    wanted = dataclasses.replace(manifest, processor=needs)
    for text, fits in (
        ("processor\t: 0\nflags\t\t: fpu avx2 fma sse\n", True),
        ("Features\t: fma avx2\n", True),
        ("flags : avx2\n", False),
        ("flags : avx2x fma\n", False),
        ("", False),
    ):
        listed.write_text(text)
        if fits:
            check_processor(saved, wanted, listed)
        else:
            with pytest.raises(EngineMismatchError, match="lacks"):
                check_processor(saved, wanted, listed)
    check_processor(saved, wanted, tmp_path / "none")  # a system without such a list
    check_processor(saved, manifest, listed)  # nothing needed


def test_memory_is_counted_before_it_is_taken(saved: Path, folder: Path, tmp_path: Path) -> None:
    manifest, listed = EngineManifest.read(saved), tmp_path / "meminfo"
    state = sum(t.numel() * t.element_size() for t in load(saved).machine.state.tensors.values())
    for free, fits in ((state // 1024 + 1, True), (state // 1024, False), (0, False)):
        listed.write_text(f"MemTotal: 99999999 kB\nMemFree: 0 kB\nMemAvailable:   {free} kB\n")
        if fits:
            check_memory(saved, manifest, Devices(torch.device("cpu")), listed)
        else:
            words = "needs 0.0 MiB for 1 texts of 60 tokens on cpu, where 0.0 MiB are free"
            with pytest.raises(EngineError, match=words):
                check_memory(saved, manifest, Devices(torch.device("cpu")), listed)
    check_memory(saved, manifest, Devices(torch.device("cpu")), tmp_path / "none")  # a system that does not say
    large = [dataclasses.replace(t, shape=(2**40, *t.shape[1:])) if t.name == "bias" else t for t in manifest.tensors]
    seal(folder, manifest, tensors=tuple(large))
    with pytest.raises(EngineError, match=r"needs 163840.0 GiB .* smaller --context or --batch") as caught:
        load(folder)
    assert caught.value.exit_code == 2


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc")
def test_loading_needs_little_more_than_the_weights(saved: Path, tmp_path: Path) -> None:
    extra = 32 * 2**20  # 128 MiB
    large = toy_engine(tmp_path / "large", extra=extra)
    code = (
        "import sys, re\n"
        "from specc.runtime import load\n"
        "def read(name):\n"
        "    return int(re.search(name + r':\\s+(\\d+)', open('/proc/self/status').read())[1]) * 1024\n"
        "load(sys.argv[1]).generate([5], max_new_tokens=3)\n"  # so that imports are not counted
        "before = read('VmRSS')\n"
        "load(sys.argv[2]).generate([5], max_new_tokens=3)\n"
        "print(read('VmHWM') - before)\n"
    )
    command = [sys.executable, "-c", code, str(saved), str(large)]
    grown = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert 4 * extra * 0.5 < grown < 4 * extra * 1.5
