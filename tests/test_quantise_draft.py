"""`--draft-quant`: the drafter's weights in few bits, the target's as they are; the text is the target's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand, op
from helpers.decoding import Session, built, fresh, pair, prompt
from helpers.exact import K3, greedy
from helpers.models import tiny_model
from torch import Tensor

import specc
from specc.config import BITS, CompileConfig, DraftConfig
from specc.drafter import parse_drafter
from specc.errors import ConfigError, PassError
from specc.inspect import weight_bytes
from specc.passes import run, step_passes
from specc.passes.quantise_draft import QuantiseDraft, quantised
from specc.program import Level, Program

_linear, _dequantise = torch.ops.aten.linear.default, torch.ops.specc.dequantise.default
KINDS = tuple(BITS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [16, 48, 96, 576])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_levels_stand_for_the_weight(kind: str, size: int, dtype: torch.dtype) -> None:
    """Within half a level of every number (and what bfloat16 rounds), by the factor of its row or group."""
    weight = torch.randn(24, size, generator=torch.Generator().manual_seed(0)).to(dtype)
    weight[3] = 0.0
    bits = BITS[kind]
    levels, scale = quantised(weight, bits)
    assert levels.dtype == torch.int32 and levels.shape == (24, size * bits // 32)
    assert scale.dtype == dtype and scale.shape == (24, {8: 1, 4: 8}[bits])
    found = torch.ops.specc.dequantise(levels, scale, bits)
    assert found.shape == weight.shape and found.dtype == dtype
    step = scale.float().repeat_interleave(size // scale.shape[1], 1)
    rounding = {torch.float32: 2**-22, torch.bfloat16: 2**-7}[dtype]  # of the factor, and of its product with a level
    assert ((found.float() - weight.float()).abs() <= step / 2 * (1 + rounding) + weight.float().abs() * rounding).all()
    assert (found[3] == 0).all()


def test_words_hold_runs_of_columns() -> None:
    """Four bits: column 0 of 16 in the lowest bits of the first word, column 2 in the next, with their signs."""
    weight = torch.zeros(1, 16)
    weight[0, 0], weight[0, 2], weight[0, 15] = 7.0, -7.0, -3.5
    levels, scale = quantised(weight, 4)
    assert [word & 0xFFFFFFFF for word in levels[0].tolist()] == [0x00000097, 0x90000000]
    assert scale[0, [0, 1, 7]].tolist() == [1.0, 1.0, 0.5]


def quantised_step(models: str, kind: str) -> Program:
    program = fresh(pair(models), own_store=True)
    run(program, step_passes(tree=K3, rule="greedy", drafter=parse_drafter("model"), draft_quant=kind))
    return program


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_drafters_products_change(kind: str) -> None:
    """7 weights a layer in 4 products, two layers, and a head: the drafter's are replaced, the target's are not."""
    program = fresh(pair(), own_store=True)
    passes = step_passes(tree=K3, rule="greedy", drafter=parse_drafter("model"), draft_quant=kind)
    place = [p.stem() for p in passes].index("quantise_draft")
    run(program, passes[:place])
    before = program.graph.find_nodes(op="call_function", target=_linear)
    drafts = [n for n in before if str(n.args[1].target).startswith("drafter.")]
    assert {n.meta["specc_model"] for n in drafts} == {"drafter"} and len(drafts) < len(before)
    assert QuantiseDraft(kind=kind).run(program) == len(drafts)
    assert QuantiseDraft(kind=kind).run(program) == 0
    for node in program.graph.find_nodes(op="call_function", target=_linear):
        assert (node.args[1].target is _dequantise) == (node.meta["specc_model"] == "drafter")
    whole = {n for n in program.weight_names() if n.startswith("drafter.") and n.endswith(".weight")}
    assert {n for n in whole if program.weights[n].ndim == 2} == {"drafter.model.embed_tokens.weight"}
    run(program, passes[place + 1 :])
    assert not program.graph.find_nodes(op="call_function", target=_dequantise)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("models", ["near", "equal"])
def test_text_is_the_targets_and_acceptance_nearly_as_before(kind: str, models: str) -> None:
    """`equal`: drafter and target share every tensor, and the target's products still read them whole."""
    program = quantised_step(models, kind)
    sessions = [Session(pair(models), tree=K3, step=step) for step in (None, built(program))]
    rates = []
    for session in sessions:
        assert session.start([prompt()], new=40).run()[0] == list(greedy(tuple(prompt()), 40))
        rates.append(session.stats["accepted"] / session.stats["offered"])
    assert rates[1] > rates[0] - {"int8": 0.1, "int4": 0.8}[kind]  # a tiny random model takes rounding hard
    assert rates[1] > 0.2


def test_planted_words_read_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The upper half of every word taken for the lower: acceptance tells."""
    from specc.passes import quantised_linears

    right = quantised_linears.spread

    def swapped(x: Tensor, levels: Tensor, *more: Tensor, bits: int) -> Tensor:
        return right(x, ((levels >> 16) & 0xFFFF) | (levels << 16), *more, bits=bits)

    monkeypatch.setattr(quantised_linears, "spread", swapped)
    session = Session(tree=K3, step=built(quantised_step("near", "int4"))).start([prompt()], new=40)
    assert session.run()[0] == list(greedy(tuple(prompt()), 40))
    assert session.stats["accepted"] / session.stats["offered"] < 0.1


@pytest.mark.parametrize("size, kind, made", [(20, "int4", 0), (20, "int8", 1), (24, "int4", 1)])
def test_rows_that_do_not_divide_stay(size: int, kind: str, made: int) -> None:
    program = hand()
    weight = program.constant("drafter.w", torch.randn(8, size))
    y = op(program, _linear, program.input("x", (2, 3, size), torch.float32), weight)
    y.meta["specc_model"] = "drafter"
    program.give(y=y)
    assert QuantiseDraft(kind=kind).run(program) == made
    assert [d.reason for d in program.declined] == ["rows of the weight are no multiple of 8 long"] * (1 - made)


def test_nothing_to_store_is_told() -> None:
    program = hand(Level.STATIC)
    program.give(y=program.input("x", (1, 4, 32), torch.float32))
    with pytest.raises(PassError, match="nothing of the drafter .*not written as `linear`; leave --draft-quant out"):
        QuantiseDraft(kind="int4").ensures(program)


def test_choices_are_checked() -> None:
    with pytest.raises(ConfigError, match="--draft-quant 'int2' is not one of int8, int4"):
        DraftConfig(draft_quant="int2")
    with pytest.raises(ConfigError, match="--draft-quant stores the weights of a drafting model, and ngram has none"):
        CompileConfig(target="t", drafter="ngram", output="o", draft=DraftConfig(draft_quant="int8"))


def drafter_bytes(engine: Path) -> int:
    found = weight_bytes(engine)
    return sum(size for name, (_, size) in found.items() if name.startswith("drafter.") and "embed" not in name)


def test_an_engine(tmp_path: Path, tiny_folders: tuple[Path, Path], tiny_engine: Path) -> None:
    """Text, prefill longer than a chunk included, and the bytes that are stored."""
    options = {"backend": "eager", "context": 120, "chunk": 16, "fixed": True, "draft_quant": "int8"}
    output, ids = specc.compile(*tiny_folders, tmp_path / "engine", **options), prompt(40)
    result = specc.load(output).generate(ids, max_new_tokens=30, eos_token_id=())
    assert result.token_ids == oracle.greedy_text(tiny_model(), ids, 30)
    assert result.stats.accepted > 0
    assert drafter_bytes(output) < 0.4 * drafter_bytes(tiny_engine)


def test_inductor(tmp_path: Path, tiny_folders: tuple[Path, Path]) -> None:
    """All of it compiled: 4 bits, a cut head, one program for one draft; the target alone as in `inductor_engine`."""
    options = {"context": 200, "chunk": 16, "fixed": True, "draft_length": 1, "draft_quant": "int4", "draft_vocab": 96}
    engine = specc.load(specc.compile(*tiny_folders, tmp_path / "engine", **options))
    ids = prompt(20)
    result = engine.generate(ids, max_new_tokens=30, eos_token_id=())
    assert result.token_ids == oracle.greedy_text(tiny_model(), ids, 30)
    assert result.stats.accepted > 0


def test_onnx(tmp_path: Path) -> None:
    """The levels stay whole numbers in the model, and ONNX Runtime drafts what eager mode drafts."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    from helpers.bound import eager_step, empty_program, generated
    from helpers.onnx_step import OnnxStep

    from specc.lower.onnx import export_onnx

    programs = {form: empty_program("step") for form in ("in_place", "functional")}
    for form, program in programs.items():
        options = {"tree": K3, "rule": "greedy", "drafter": parse_drafter("model"), "draft_quant": "int4"}
        run(program, step_passes(form=form, **options))
    export_onnx(programs["functional"], tmp_path / "step.onnx")
    stored = {t.name: t.data_type for t in onnx.load(tmp_path / "step.onnx").graph.initializer}
    assert {kind for name, kind in stored.items() if name.endswith("_int4")} == {onnx.TensorProto.INT32}
    ids = tuple(prompt(20))
    wanted = generated(eager_step(programs["in_place"]), ids, 30, K3.depth)
    assert wanted[1] > 3
    assert generated(OnnxStep(tmp_path / "step.onnx"), ids, 30, K3.depth, 75) == wanted
