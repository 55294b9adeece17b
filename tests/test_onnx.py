"""ONNX export: checked by onnx, and run in ONNX Runtime step by step with the caches as inputs and outputs."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bound import eager_step, empty_program, generated, step_program
from helpers.onnx_step import OnnxStep
from safetensors.torch import save_file
from torch import Tensor

from specc.drafter import parse_drafter
from specc.errors import BackendError
from specc.lower.graphs import load_graph, save_graph, weight_layouts
from specc.lower.onnx import _tidy, export_onnx
from specc.lower.onnx_ops import float_bits
from specc.passes import bound_passes, run, step_passes
from specc.passes.graph import call
from specc.program import Program
from specc.tree import DraftTree

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")

PROMPTS = (tuple(range(3, 12)), tuple((7 * i * i + 3 * i) % 125 + 3 for i in range(30)))
CHAIN, TREE, PLAIN = DraftTree.chain(3), DraftTree.from_widths((3, 2, 1)), DraftTree.chain(0)


@functools.cache
def exported(folder: Path, tree: DraftTree, rule: str, opset: int = 18) -> Path:
    """A step's model, exported once."""
    path = folder / f"{len(tree)}-{rule}-{opset}.onnx"
    export_onnx(step_program(tree, rule, "functional"), path, opset=opset)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("onnx")


@pytest.mark.parametrize(
    ("tree", "rule", "opset"),
    [
        (PLAIN, "greedy", 18),
        (CHAIN, "greedy", 18),
        (CHAIN, "greedy", 24),
        (CHAIN, "coupled", 18),
        (TREE, "greedy", 18),
    ],
    ids=["plain", "chain", "chain-opset24", "coupled", "tree"],
)
def test_same_tokens_as_eager(folder: Path, tree: DraftTree, rule: str, opset: int) -> None:
    path = exported(folder, tree, rule, opset)
    step = OnnxStep(path)
    model = onnx.load(path)
    written = {function.name: [n for n in function.node if _writes_cache(n, opset)] for function in model.functions}
    stages = [node.op_type for node in model.graph.node]
    assert stages == ["draft", "verify", "accept", "commit"] and set(written) == set(stages)
    assert not any(nodes for stage, nodes in written.items() if stage in ("verify", "accept"))
    writes = [node for nodes in written.values() for node in nodes]
    caches = [name for name in step.outputs if "_k_" in name or "_v_" in name]
    assert len(writes) == len(caches) + 1  # and the history
    told = {"report", "path", "logits", "processed"}
    assert {name.removesuffix("_out") for name in step.outputs} - told <= set(step.inputs)
    for prompt in PROMPTS:
        wanted, accepted = generated(eager_step(step_program(tree, rule)), prompt, 40, tree.depth, nodes=len(tree))
        assert generated(step, prompt, 40, tree.depth, 75, len(tree)) == (wanted, accepted)
        assert len(set(wanted)) >= 8 and (accepted > 3 or tree is PLAIN)


def _writes_cache(node: Any, opset: int) -> bool:
    """Counts for the penalties are scattered too, along other axes or as sums."""
    kinds = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if opset >= 24:
        return node.op_type == "TensorScatter"
    return node.op_type == "ScatterElements" and kinds["axis"] == 2 and kinds.get("reduction", b"none") == b"none"


def test_names_and_shapes(folder: Path) -> None:
    session = OnnxStep(exported(folder, PLAIN, "greedy")).session
    shapes = {value.name: value.shape for value in [*session.get_inputs(), *session.get_outputs()]}
    assert shapes["bucket"] == ["n"]
    assert shapes["history"] == shapes["history_out"] == [1, 120]
    assert shapes["target_k_0"] == shapes["target_k_0_out"] == [1, 2, 120, 8]
    assert shapes["report"] == [1, 4]


def test_from_a_saved_graph_with_weights_beside_it(tmp_path: Path) -> None:
    """As an engine is exported: no models, no weight values in memory, one file of weights for all programs."""
    program = step_program(PLAIN, "greedy")
    save_file({n: program.weights[n].contiguous() for n in program.weight_names()}, tmp_path / "weights.safetensors")
    save_graph(program, tmp_path / "plain.json")
    loaded = load_graph(tmp_path / "plain.json", weight_layouts(tmp_path / "weights.safetensors"))
    run(loaded, bound_passes(form="functional"))
    export_onnx(loaded, tmp_path / "plain.onnx", weights=tmp_path / "weights.safetensors")
    stored = onnx.load(tmp_path / "plain.onnx", load_external_data=False)
    head = next(t for t in stored.graph.initializer if t.name == "target.lm_head.weight")
    assert {entry.key: entry.value for entry in head.external_data}["location"] == "weights.safetensors"
    wanted = generated(eager_step(program), PROMPTS[1], 40, 0)
    assert generated(OnnxStep(tmp_path / "plain.onnx"), PROMPTS[1], 40, 0) == wanted


def test_a_saved_graph_comes_back_whole(tmp_path: Path) -> None:
    program = step_program(CHAIN, "coupled")
    save_graph(program, tmp_path / "step.json")
    loaded = load_graph(tmp_path / "step.json", program.weights)
    run(loaded, bound_passes())

    def nodes(program: Program) -> list[tuple[object, ...]]:
        return [(n.op, str(n.target), str(n.meta.get("val")), n.meta.get("specc_pass")) for n in program.graph.nodes]

    assert [n[:2] for n in nodes(loaded)] == [n[:2] for n in nodes(program)]
    assert [n[3] for n in nodes(loaded)] == [n[3] for n in nodes(program)]
    assert list(loaded.values) == list(program.values)


def test_bits_of_floats(tmp_path: Path) -> None:
    """Every exponent, borders, zero, infinity and random numbers, in ONNX Runtime against PyTorch."""
    powers = 2.0 ** torch.arange(-126, 128, dtype=torch.float64)
    borders = torch.cat([powers, powers * (2 - 2.0**-23), torch.tensor([0.0, 1e-40, float("inf")])]).float()
    x = torch.cat([borders, -borders[borders > 0], torch.randn(2000), torch.rand(2000).log()])

    class Module(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.view(torch.int32)

    table = {torch.ops.aten.view.dtype: float_bits}
    made = torch.onnx.export(Module(), (x,), custom_translation_table=table, opset_version=18, optimize=False)
    assert made is not None
    _tidy(made.model)
    made.save(tmp_path / "bits.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "bits.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert torch.equal(torch.from_numpy(found), x.view(torch.int32))


def test_an_op_without_onnx_function_is_named_with_its_pass(tmp_path: Path) -> None:
    program = empty_program("plain")
    run(program, step_passes(tree=PLAIN, rule="greedy", drafter=parse_drafter("model"), form="functional"))

    class Planted:
        pass

    report = program.values["report"]
    with program.graph.inserting_before(program.output):
        row = call(program, Planted(), torch.ops.aten.bucketize.Tensor, report, report.args[0][0])
    program.give(report=row)
    with pytest.raises(BackendError, match=r"aten\.bucketize\.Tensor \(made by Planted\)"):
        export_onnx(program, tmp_path / "plain.onnx")


def test_programs_that_write_in_place_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="functional"):
        export_onnx(step_program(PLAIN, "greedy"), tmp_path / "plain.onnx")


def test_weights_of_another_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BackendError, match="own folder"):
        export_onnx(step_program(PLAIN, "greedy", "functional"), tmp_path / "p.onnx", weights=Path("/w.safetensors"))


def test_linked_weights_are_refused(tmp_path: Path) -> None:
    save_file({"w": torch.zeros(1)}, tmp_path / "weights.safetensors")
    (tmp_path / "again.safetensors").hardlink_to(tmp_path / "weights.safetensors")
    with pytest.raises(BackendError, match="hard links"):
        program = step_program(PLAIN, "greedy", "functional")
        export_onnx(program, tmp_path / "plain.onnx", weights=tmp_path / "weights.safetensors")
