"""Weights of all products in 8 bits: as ONNX Runtime makes them, and an engine of such a model."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from helpers.bound import step_program
from helpers.decoding import prompt
from helpers.models import tiny_model

import specc
from specc.config import CompileConfig
from specc.errors import ConfigError, PassError
from specc.export import export
from specc.inspect import inspect
from specc.manifest import EngineManifest
from specc.passes.quantise_weights import QuantiseWeights
from specc.runtime.weights import weight_bytes
from specc.tree import DraftTree

pytest.importorskip("onnxruntime")
ON = {"max_new_tokens": 40, "eos_token_id": ()}


@pytest.fixture(scope="module")
def folder(tiny_folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    options = {"backend": "onnx", "quant": "int8", "context": 120, "chunk": 16, "fixed": True}
    return specc.compile(*tiny_folders, tmp_path_factory.mktemp("bytes") / "engine", **options)


@pytest.mark.parametrize(("out", "size"), [(48, 64), (7, 40), (1, 31)])
def test_levels_stand_for_the_weight(out: int, size: int) -> None:
    """Each number is off by half a step at most; rows that are no whole number of blocks too."""
    from specc.lower.onnx_bytes import quantise

    weight = torch.randn(out, size, generator=torch.Generator().manual_seed(1))
    levels, factors = quantise(weight)
    assert levels.dtype == torch.uint8 and levels.shape == (out, -(-size // 32), 32)
    assert factors.dtype == torch.float32 and factors.shape == levels.shape[:2]
    seen = torch.ops.specc.byte_linear(torch.eye(size), levels, factors, size).T
    most = factors.abs().repeat_interleave(32, 1)[:, :size] / 2
    assert ((seen - weight).abs() <= 1.01 * most).all() and 0 < (seen - weight).abs().max() < 0.02


def test_the_quantiser_leaves_logging_alone() -> None:
    from specc.lower import onnx_bytes

    before = logging.getLogger().level, list(logging.getLogger().handlers)
    onnx_bytes._quantiser.cache_clear()
    onnx_bytes.quantise(torch.randn(4, 32))
    assert (logging.getLogger().level, list(logging.getLogger().handlers)) == before


def test_drafts_change_nothing(folder: Path) -> None:
    engine = specc.load(folder)
    for ids in (prompt(3), prompt(30, seed=2)):
        for asked in ({}, {"temperature": 0.8, "seed": 5}):
            plain = engine.generate(ids, draft_length=0, **ON, **asked)
            fast = engine.generate(ids, **ON, **asked)
            assert fast.token_ids == plain.token_ids and fast.stats.accepted > 0


def test_the_text_is_that_of_the_model_with_such_weights(folder: Path) -> None:
    """Log-probabilities against a model of the rounded weights."""
    from specc.lower.onnx_bytes import quantise

    model, ids = tiny_model(), prompt(12)
    found = specc.load(folder).generate(ids, draft_length=0, logprobs=0, **ON)
    text = torch.tensor([ids + found.token_ids])
    whole = model(text).logits
    for linear in (m for m in model.modules() if isinstance(m, torch.nn.Linear)):
        size = linear.in_features
        rounded = torch.ops.specc.byte_linear(torch.eye(size), *quantise(linear.weight.detach()), size).T
        linear.weight = torch.nn.Parameter(rounded.contiguous())
    logits = model(text).logits
    assert not torch.equal(logits, whole)
    said = logits.log_softmax(-1)[0, len(ids) - 1 : -1].gather(1, torch.tensor(found.token_ids)[:, None]).flatten()
    told = torch.tensor([one.logprob for one in found.logprobs])
    assert (said - told).abs().max() < 1e-4


def test_it_is_stored_and_said(folder: Path, tiny_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stored, before = weight_bytes(folder), weight_bytes(tiny_engine)
    products = [name for name in stored if name.endswith("_bytes")]
    assert products and not any(name.removesuffix("_bytes") in stored for name in products if "proj" in name)
    assert sum(size for _, size in stored.values()) < 0.6 * sum(size for _, size in before.values())
    assert EngineManifest.read(folder).config["quant"] == "int8"
    inspect(str(folder))
    assert "products of all models in int8" in " ".join(capsys.readouterr().out.split())


def test_verify_compares_it_with_itself_alone(folder: Path) -> None:
    report = specc.verify(folder, quick=True, draws=100)
    assert report.passed
    told = next(check for check in report.checks if check.name == "transformers")
    assert told.result == "skip" and "weights are int8" in told.compared


def test_export(folder: Path, tmp_path: Path) -> None:
    import onnx

    written = export(folder, tmp_path / "out")
    step = onnx.load(next(path for path in written if path.stem == "step"), load_external_data=False)
    bodies = [step.graph, *step.functions]
    ops = [(node.domain, node.op_type) for body in bodies for node in body.node]
    assert ops.count(("com.microsoft", "MatMulNBits")) > 8
    with pytest.raises(ConfigError, match="--for tensorrt: .* compile without --quant"):
        export(folder, tmp_path / "trt", reader="tensorrt")


def test_the_pass() -> None:
    from specc.lower.onnx_bytes import quantise

    program = step_program(DraftTree.chain(2), "greedy", "functional")
    linears = len(program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default))
    one = QuantiseWeights(quantise=quantise)
    assert one.run(program) == linears > 8 and one.run(program) == 0
    one.ensures(program)
    with pytest.raises(PassError, match="leave --quant out"):
        one.ensures(step_program(DraftTree.chain(1), "greedy", "functional"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"quant": "int4", "backend": "onnx"}, "--quant 'int4' is not one of int8"),
        ({"quant": "int8"}, "only --backend onnx multiplies by such weights"),
        ({"quant": "int8", "backend": "eager"}, "only --backend onnx"),
    ],
)
def test_what_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CompileConfig(target="t", drafter="d", output="o", **options)
