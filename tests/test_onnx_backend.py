"""The ONNX back end: models without weights, caches written where they are, the provider that really runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.bound import eager_step, generated, step_program
from torch import Tensor

import specc
from specc.config import CompileConfig
from specc.errors import BackendError, ConfigError, EngineFormatError, EngineVersionError
from specc.lower import onnx as lowering
from specc.manifest import EMBEDDED_BYTES, EngineManifest, ProgramSpec
from specc.passes.inputs import role
from specc.runtime.backends.onnx import open_onnx
from specc.runtime.call import Runner
from specc.tree import DraftTree

onnxruntime = pytest.importorskip("onnxruntime")

CPU = torch.device("cpu")
CHAIN = DraftTree.chain(3)
PROMPTS = (tuple(range(3, 12)), tuple((7 * i * i + 3 * i) % 125 + 3 for i in range(30)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ProgramSpec, dict[str, Tensor]]:
    """A greedy step's model, how it is called, and the weights it is lent."""
    program, path = step_program(CHAIN, "greedy", "functional"), tmp_path_factory.mktemp("onnx") / "step.onnx"
    lowering.lower(program, path)
    names = tuple(program.weight_names())
    inputs = tuple(str(n.target) for n in program.graph.find_nodes(op="placeholder"))
    outputs = tuple(name for name in program.values if role(name) != "cache")
    spec = ProgramSpec(file=path.name, inputs=inputs, outputs=outputs, weights=names, batch=1)
    return path, spec, {name: program.weights[name] for name in names}


def as_step(runner: Runner, spec: ProgramSpec) -> Any:
    return lambda state: dict(zip(spec.outputs, runner([state[n] for n in spec.inputs]), strict=True))


def test_tokens_are_those_of_eager_mode_whatever_ran_before(
    model: tuple[Path, ProgramSpec, dict[str, Tensor]],
) -> None:
    """One session serves the caches of several texts in turn, as rows of a batch are."""
    path, spec, weights = model
    step = as_step(open_onnx(path, spec, weights, CPU, 1), spec)
    for prompt in (*PROMPTS, PROMPTS[0]):
        wanted = generated(eager_step(step_program(CHAIN, "greedy")), prompt, 40, CHAIN.depth)
        assert generated(step, prompt, 40, CHAIN.depth, 75) == wanted and wanted[1] > 3


def test_caches_are_written_where_they_are(model: tuple[Path, ProgramSpec, dict[str, Tensor]]) -> None:
    path, spec, weights = model
    step, caches = as_step(open_onnx(path, spec, weights, CPU, 1), spec), []

    def watched(state: dict[str, Tensor]) -> dict[str, Tensor]:
        caches.append((state["target_k_0"], state["target_k_0"].clone(), state["history"], state["history"].clone()))
        return step(state)

    generated(watched, PROMPTS[0], 12, CHAIN.depth)
    for (cache, before, history, told), (again, after, same, more) in zip(caches, caches[1:], strict=False):
        assert again is cache and not torch.equal(before, after)
        assert same is history and not torch.equal(told, more)


def test_results_outlive_the_next_run(model: tuple[Path, ProgramSpec, dict[str, Tensor]]) -> None:
    path, spec, weights = model
    step, kept = as_step(open_onnx(path, spec, weights, CPU, 1), spec), []

    def watched(state: dict[str, Tensor]) -> dict[str, Tensor]:
        results = step(state)
        kept.append((results["report"], results["report"].clone()))
        return results

    generated(watched, PROMPTS[0], 12, CHAIN.depth)
    assert len(kept) > 2 and all(torch.equal(now, then) for now, then in kept)


def test_the_same_again_is_up_to_date_and_can_become_another(
    onnx_engine: Path, tiny_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Compiled(Exception):
        pass

    def refuse(*args: Any, **more: Any) -> None:
        raise Compiled

    monkeypatch.setattr("specc.driver.load_pair", refuse)
    options: dict[str, Any] = {"context": 200, "chunk": 16, "fixed": True}
    specc.compile(*tiny_folders, onnx_engine, backend="onnx", **options)
    with pytest.raises(Compiled):
        specc.compile(*tiny_folders, onnx_engine, backend="eager", **options)


def test_what_is_missing_is_said_before_any_work(tiny_folders: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        right = importlib.util.find_spec
        patch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else right(name))
        patch.setattr("specc.driver.load_pair", lambda *_: pytest.fail("too late"))
        with pytest.raises(BackendError, match=r"needs onnxruntime; pip install 'specc\[onnx\]'"):
            specc.compile(*tiny_folders, tmp_path / "e", backend="onnx")


def test_weights_are_not_in_the_models(onnx_engine: Path) -> None:
    onnx = pytest.importorskip("onnx")
    manifest = EngineManifest.read(onnx_engine)
    assert manifest.backend == "onnx" and all(spec.file.endswith(".onnx") for spec in manifest.programs.values())
    spec = manifest.programs["step"]
    made = onnx.load(onnx_engine / spec.file, load_external_data=False)
    weights = {value.name: value for value in made.graph.initializer if value.name in spec.weights}
    apart = {name for name, value in weights.items() if value.data_location == onnx.TensorProto.EXTERNAL}
    assert len(apart) > 20 and all(len(weights[name].raw_data) <= EMBEDDED_BYTES for name in weights.keys() - apart)


def test_a_session_elsewhere_is_refused(
    model: tuple[Path, ProgramSpec, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime goes on with another provider without a word."""
    path, spec, weights = model
    monkeypatch.setattr(onnxruntime.InferenceSession, "get_providers", lambda self: ["AzureExecutionProvider"])
    with pytest.raises(EngineVersionError, match="would run on AzureExecutionProvider, not on CPUExecutionProvider"):
        open_onnx(path, spec, weights, CPU, 1)([])


def test_without_onnx_runtime(
    model: tuple[Path, ProgramSpec, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, spec, weights = model
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(EngineVersionError, match="pip install onnxruntime"):
        open_onnx(path, spec, weights, CPU, 1)


def test_float16(tmp_path: Path, tiny_folders: tuple[Path, Path]) -> None:
    """Weights, caches and files of half the size; the text is that of the eager programs."""
    given: dict[str, Any] = {"dtype": "float16", "context": 80, "chunk": 16, "draft_length": 2, "fixed": True}
    engines = {
        name: specc.load(specc.compile(*tiny_folders, tmp_path / name, backend=name, **given))
        for name in ("eager", "onnx")
    }
    for options in ({}, {"temperature": 0.9, "seed": 3}):
        texts = [
            engine.generate([1, 5, 9], max_new_tokens=40, eos_token_id=(), draft_length=length, **options).token_ids
            for engine in engines.values()
            for length in (0, 2)
        ]
        assert texts[1:] == texts[:-1] and len(set(texts[0])) > 8
    caches = [t for t in engines["onnx"].manifest.tensors if t.name.startswith("target_k")]
    assert caches and {t.dtype for t in caches} == {"float16"}


def test_a_damaged_model(model: tuple[Path, ProgramSpec, dict[str, Tensor]], tmp_path: Path) -> None:
    path, spec, weights = model
    (tmp_path / "step.onnx").write_bytes(path.read_bytes()[:-300])
    with pytest.raises(EngineFormatError, match="cannot open this program .* compile again"):
        open_onnx(tmp_path / "step.onnx", spec, weights, CPU, 1)([])


def test_choices_that_it_cannot_honour() -> None:
    with pytest.raises(ConfigError, match="--backend onnx takes --dtype float32 or float16, not bfloat16"):
        CompileConfig(target="t", drafter="d", output="o", backend="onnx", dtype="bfloat16")


def test_a_gpu_needs_the_runtime_that_was_built_for_it(
    tiny_folders: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Said before any work, although torch would see the device."""
    monkeypatch.setattr("specc.environment.check_device", lambda device: None)
    monkeypatch.setattr("specc.driver.load_pair", lambda *_: pytest.fail("too late"))
    with pytest.raises(EngineVersionError, match="no provider for cuda .*pip install onnxruntime-gpu"):
        specc.compile(*tiny_folders, tmp_path / "e", backend="onnx", device="cuda")


def test_on_a_gpu_everything_is_bound_there(
    model: tuple[Path, ProgramSpec, dict[str, Tensor]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No GPU is here: what is asked of ONNX Runtime is noted, and done on the CPU. The text is the same."""
    path, spec, weights = model
    asked: list[Any] = []
    session, binding = onnxruntime.InferenceSession, onnxruntime.IOBinding

    class Session(session):  # type: ignore[misc, valid-type]
        def __init__(self, path: str, options: Any, providers: Any) -> None:
            asked.append(providers)
            super().__init__(path, options)

        def get_providers(self) -> list[str]:
            return ["CUDAExecutionProvider", "CPUExecutionProvider"]

    def elsewhere(right: Any) -> Any:
        def bind(self: Any, name: str, kind: str, index: int, *more: Any) -> None:
            asked.append((kind, index))
            right(self, name, "cpu", 0, *more)

        return bind

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    for name in ("bind_input", "bind_output"):
        monkeypatch.setattr(binding, name, elsewhere(getattr(binding, name)))
    waits: list[Any] = []
    stream = SimpleNamespace(synchronize=lambda: waits.append(1))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    step = as_step(open_onnx(path, spec, weights, torch.device("cuda", 1), 1), spec)
    wanted = generated(eager_step(step_program(CHAIN, "greedy")), PROMPTS[0], 20, CHAIN.depth)
    assert generated(step, PROMPTS[0], 20, CHAIN.depth) == wanted
    assert asked[0] == [("CUDAExecutionProvider", {"device_id": "1"})]
    assert set(asked[1:]) == {("cuda", 1)} and len(waits) > 3


def test_threads_are_those_of_load(onnx_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    right = onnxruntime.InferenceSession.__init__

    def noting(self: Any, path: str, options: Any, **more: Any) -> None:
        asked.append(options.intra_op_num_threads)
        right(self, path, options, **more)

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", noting)
    engine = specc.load(onnx_engine, threads=1)
    assert not asked, "programs are opened when they are called"
    engine.generate([3, 4, 5], max_new_tokens=8, draft_length=3)
    assert set(asked) == {1} and len(asked) < len(engine.manifest.programs)


def test_linear_reads_the_weight_as_it_is_stored(onnx_engine: Path) -> None:
    """`MatMul` would want it transposed, and ONNX Runtime would keep that copy for every session."""
    onnx = pytest.importorskip("onnx")
    manifest = EngineManifest.read(onnx_engine)
    graph = onnx.load(onnx_engine / manifest.programs["step"].file, load_external_data=False).graph
    products = {name for node in graph.node if node.op_type in ("MatMul", "Transpose") for name in node.input}
    read = {node.input[1] for node in graph.node if node.op_type == "Gemm"}
    assert len(read) > 10 and not products & set(manifest.programs["step"].weights)
