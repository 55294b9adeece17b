"""The TensorRT back end, over a stand-in for TensorRT that computes with ONNX Runtime on the CPU."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bound import empty_program

import specc
from specc import environment
from specc.cli import main
from specc.drafter import parse_drafter
from specc.errors import BackendError, ConfigError, EngineFault, EngineFormatError, EngineVersionError
from specc.lower import tensorrt as lowering
from specc.manifest import EngineManifest
from specc.passes import run, step_passes
from specc.runtime.backends import tensorrt
from specc.tree import DraftTree

pytest.importorskip("onnxruntime")
from helpers import fake_tensorrt as fake  # noqa: E402

PROMPT = [(7 * i * i + 3 * i) % 125 + 3 for i in range(30)]
BOTH = ("tensorrt", "eager")
OPTIONS: dict[str, Any] = {"context": 200, "chunk": 16, "fixed": True, "backend": "tensorrt"}


@pytest.fixture(scope="module", autouse=True)
def _stand_in() -> Any:
    """The stand-in under TensorRT's name, and no GPU asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tensorrt", fake)
        patch.setattr(environment, "check_tensorrt", lambda device: None)
        patch.setattr(tensorrt, "_on", lambda device: contextlib.nullcontext())
        patch.setattr(tensorrt, "_stream", lambda device: 0)
        patch.setattr(tensorrt, "ALIGNMENT", fake.ALIGNMENT)
        yield


@pytest.fixture(scope="module")
def engine(tiny_folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return specc.compile(*tiny_folders, tmp_path_factory.mktemp("tensorrt") / "engine", **OPTIONS)


def test_texts_are_those_of_eager_mode(engine: Path, tiny_engine: Path) -> None:
    """Greedy, and sampled with noise that is made beside the plan."""
    ours, theirs = specc.load(engine), specc.load(tiny_engine)
    for how in (
        {},
        {"draft_length": 0},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 0.8, "seed": 6, "draft_length": 0},
    ):
        made, wanted = (e.generate(PROMPT, max_new_tokens=40, eos_token_id=(), **how) for e in (ours, theirs))
        assert made.token_ids == wanted.token_ids and len(made.token_ids) == 40
        assert made.stats.steps == wanted.stats.steps
    assert len({tuple(ours.generate(PROMPT, max_new_tokens=9, temperature=1.0, seed=s).token_ids) for s in (1, 2)}) == 2


def test_plans_hold_their_weights_and_lend_no_noise_to_the_manifest(engine: Path) -> None:
    manifest = EngineManifest.read(engine)
    assert all(spec.file.endswith(".plan") and spec.weights for spec in manifest.programs.values())
    assert not manifest.lends_weights and manifest.processor == {"tensorrt": tensorrt.release()}
    assert manifest.slots % lowering.SLOTS == 0
    names = {name for spec in manifest.programs.values() for name in spec.inputs}
    assert {"seed", "sample"} <= names == {tensor.name for tensor in manifest.tensors}
    assert not any(name.startswith(tensorrt.NOISE) for name in names)


def test_tensors_at_other_addresses(engine: Path) -> None:
    """What a batch's second row has: an address that TensorRT does not take. A cache there is refused, not copied."""
    manifest, cpu = EngineManifest.read(engine), torch.device("cpu")
    spec, results = manifest.programs["plain"], []
    runner = tensorrt.open_tensorrt(engine / spec.file, spec, cpu)
    made = {t.name: torch.zeros(t.shape, dtype=getattr(torch, t.dtype)) for t in manifest.tensors}
    made |= {"bucket": made["bucket"][:64], "active": torch.tensor([True]), "limit": torch.tensor([90])}
    made |= {"history": made["history"] + 7, "target_length": torch.tensor([3]), "prompt_length": torch.tensor([4])}
    for offset in (0, 1):
        arguments = [_moved(made[name], 0 if "_k_" in name or "_v_" in name else offset) for name in spec.inputs]
        runner(arguments)
        results.append([*runner(arguments), *arguments])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))
    written = {name: tensor for name, tensor in zip(spec.inputs, results[1][len(spec.outputs) :], strict=True)}
    assert written["target_k_0"].any() and (written["history"] != 7).any()
    arguments = [_moved(made[name], int(name == "target_v_0")) for name in spec.inputs]
    with pytest.raises(EngineFault, match="cache target_v_0 is not at a multiple of 64 bytes"):
        runner(arguments)


def _moved(tensor: torch.Tensor, offset: int) -> torch.Tensor:
    """A copy that begins so many elements into its memory."""
    return torch.zeros(tensor.numel() + offset, dtype=tensor.dtype)[offset:].view(tensor.shape).copy_(tensor)


def test_another_stream_of_noise_would_be_seen(
    engine: Path, tiny_engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensorrt, "RACE", 1)
    made, wanted = (
        specc.load(e).generate(PROMPT, max_new_tokens=40, temperature=0.9, seed=5) for e in (engine, tiny_engine)
    )
    assert made.token_ids != wanted.token_ids


def test_rows_and_trees(tiny_folders: tuple[Path, Path], tmp_path: Path) -> None:
    """Of a batch of two, whose second row's numbers are at addresses that TensorRT does not take: looked-up trees."""
    options = OPTIONS | {"batch": 2, "tree": "2,1"}
    made = {b: specc.compile(tiny_folders[0], "ngram", tmp_path / b, **options | {"backend": b}) for b in BOTH}
    prompts = [PROMPT[:5] * 5, PROMPT]
    few = {"allowed_token_ids": [5, 6], "max_new_tokens": 30, "eos_token_id": ()}  # so that texts repeat themselves
    for how in (few, few | {"temperature": 0.9, "seed": 5}):
        ours, theirs = (specc.load(made[b]).generate(prompts, **how) for b in BOTH)
        assert [r.token_ids for r in ours] == [r.token_ids for r in theirs]
        assert [r.stats.accepted_per_position for r in ours] == [r.stats.accepted_per_position for r in theirs]
        assert sum(r.stats.accepted for r in ours) > 3
    alone = specc.load(made["tensorrt"]).generate(prompts[1], max_new_tokens=30, eos_token_id=())
    assert (
        alone.token_ids == specc.load(made["eager"]).generate(prompts[1], max_new_tokens=30, eos_token_id=()).token_ids
    )


def lowered(path: Path) -> Path:
    """The plan of a plain step of the tiny pair."""
    program = empty_program("plain")
    how: dict[str, Any] = {"form": "functional", "noise": "input"}
    run(program, step_passes(tree=DraftTree.chain(0), rule="greedy", drafter=parse_drafter("model"), **how))
    lowering.lower(program, path)
    return path


def test_an_op_that_is_not_taken_is_named_with_its_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake.OnnxParser, "refuses", "ReduceMax")
    with pytest.raises(BackendError, match=r"does not take: ReduceMax \(made by \w+\): no such op.*--without PASS"):
        lowered(tmp_path / "plain.plan")
    assert not list(tmp_path.iterdir())


def test_a_cache_that_would_be_copied_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake.Network, "copies", 1)
    with pytest.raises(BackendError, match="TensorRT would write 3 of 4 caches in place and copy the others"):
        lowered(tmp_path / "plain.plan")


def test_a_builder_that_fails_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake.Network, "fails", "no SM90 here")
    with pytest.raises(BackendError, match=r"cannot build it as one engine \(no SM90 here\); use --backend inductor"):
        lowered(tmp_path / "plain.plan")


def test_a_plan_of_another_release_is_refused(engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: Any, plan: bytes) -> None:
        self.log.log(fake.ILogger.ERROR, "version tag does not match")

    monkeypatch.setattr(fake.Runtime, "deserialize_cuda_engine", none)
    with pytest.raises(EngineFormatError, match="cannot open this plan on cpu .version tag does not match.*compile"):
        specc.load(engine).generate(PROMPT, max_new_tokens=4)
    monkeypatch.setattr(fake, "__version__", "0.1")
    with pytest.raises(EngineVersionError, match=r"plans are for .* 0 \(fake\), and this is .* 0\.1; install that one"):
        specc.load(engine)


def test_what_it_is_not_for(tiny_folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for more, message in (
        ({"acceptance": "coupled,rejection"}, "--acceptance coupled,rejection: --backend tensorrt is given its noise"),
        ({"draft_device": "cpu"}, "--backend tensorrt runs all on one device"),
        ({"quant": "int8"}, "only --backend onnx multiplies"),
        ({"draft_quant": "int4"}, "--draft-quant int4: TensorRT takes no weights packed in bits"),
    ):
        with pytest.raises(ConfigError, match=message):
            specc.compile(*tiny_folders, tmp_path / "e", **OPTIONS, **more)
    with pytest.raises(EngineVersionError, match="TensorRT runs on GPUs, not on cpu; give --device cuda"):
        tensorrt.check_tensorrt(torch.device("cpu"))
    monkeypatch.setattr(fake, "LayerType", object())
    with pytest.raises(EngineVersionError, match=r"cannot update caches in place; pip install -U"):
        tensorrt.check_tensorrt(torch.device("cuda"))
    for name in tensorrt.LIBRARIES:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(EngineVersionError, match="pip install tensorrt, or tensorrt_rtx"):
        tensorrt.check_tensorrt(torch.device("cuda"))


def test_without_a_gpu_it_is_said_before_any_work(
    tiny_folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "check_tensorrt", tensorrt.check_tensorrt)
    pair = [*map(str, tiny_folders), "-o", str(tmp_path / "e"), "--backend", "tensorrt"]
    assert main(["compile", *pair]) == 2
    assert "give --device cuda" in capsys.readouterr().err
