"""The step as one TensorRT engine: parsed and built ahead of time, without a GPU, by TensorRT-RTX. Nothing is run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bound import captured, eager_step, empty_program, generated, step_program
from helpers.onnx_step import OnnxStep

from specc.cli import main
from specc.drafter import parse_drafter
from specc.lower.onnx import export_onnx
from specc.passes import run, step_passes
from specc.passes.bind_state import BindState
from specc.philox import uniform
from specc.program import Program
from specc.tree import DraftTree

onnx = pytest.importorskip("onnx")

CHAIN, TREE, PLAIN = DraftTree.chain(3), DraftTree.from_widths((3, 2, 1)), DraftTree.chain(0)
PROMPT = tuple((7 * i * i + 3 * i) % 125 + 3 for i in range(30))
SLOTS = 119
MYELIN = pytest.mark.xfail(
    strict=True, reason="TensorRT-RTX 1.6.1 fails inside itself: value.cpp:457: CHECK(is_const())"
)


def bound(tree: DraftTree, rule: str) -> Program:
    program = empty_program("step" if tree.depth else "plain")
    passes = step_passes(tree=tree, rule=rule, drafter=parse_drafter("model"), form="functional")
    run(program, [BindState(form="functional", noise="input") if isinstance(p, BindState) else p for p in passes])
    return program


@pytest.mark.parametrize(("tree", "opset"), [(CHAIN, 18), (CHAIN, 24), (TREE, 18)], ids=["chain", "chain-24", "tree"])
def test_the_forms_for_tensorrt_compute_the_same(tree: DraftTree, opset: int, tmp_path: Path) -> None:
    """In ONNX Runtime: counts by comparison, integer caches scattered."""
    export_onnx(bound(tree, "greedy"), tmp_path / "step.onnx", opset=opset, reader="tensorrt")
    kinds = Counter(node.op_type for node in onnx.load(tmp_path / "step.onnx").graph.node)
    caches = sum("_k_" in name or "_v_" in name for name in names_of(tmp_path / "step.onnx"))
    assert kinds["TensorScatter"] == (caches if opset == 24 else 0)
    wanted = generated(eager_step(step_program(tree, "greedy")), PROMPT, 40, tree.depth, nodes=len(tree))
    assert generated(OnnxStep(tmp_path / "step.onnx"), PROMPT, 40, tree.depth, 75, len(tree)) == wanted
    assert wanted[1] > 3


def names_of(path: Path) -> list[str]:
    return [value.name for value in onnx.load(path).graph.input]


def test_noise_is_an_input(tmp_path: Path) -> None:
    """Filled with the numbers that the graph would have made, the text is the coupled one of that seed."""
    export_onnx(bound(CHAIN, "coupled"), tmp_path / "step.onnx", reader="tensorrt")
    noises = [name for name in names_of(tmp_path / "step.onnx") if name.startswith("noise")]
    assert noises == ["noise_0"]
    step = OnnxStep(tmp_path / "step.onnx")

    def fed(state: dict[str, Any]) -> dict[str, Any]:
        positions = state["target_length"][:, None] + 1 + torch.arange(CHAIN.depth + 1)
        state["noise_0"] = uniform(state["seed"], state["sample"], positions, 0, 128)
        return step(state)

    wanted = generated(eager_step(step_program(CHAIN, "coupled")), PROMPT, 40, CHAIN.depth)
    assert generated(fed, PROMPT, 40, CHAIN.depth, 75) == wanted and wanted[1] > 3


BUILD = """
import json, sys
from collections import Counter
import tensorrt_rtx as trt

logger = trt.Logger(trt.Logger.ERROR)
builder = trt.Builder(logger)
network = builder.create_network()
parser = trt.OnnxParser(network, logger)
assert parser.parse_from_file(sys.argv[1]), [parser.get_error(i).desc() for i in range(parser.num_errors)]
config, profile = builder.create_builder_config(), builder.create_optimization_profile()
for i in range(network.num_inputs):
    value = network.get_input(i)
    if -1 in tuple(value.shape):
        profile.set_shape(value.name, [2], [64], [int(sys.argv[2])])
config.add_optimization_profile(profile)
config.num_compute_capabilities = 1
config.set_compute_capability(trt.ComputeCapability.SM86, 0)
plan = builder.build_serialized_network(network, config)
kinds = Counter(str(network.get_layer(i).type).split(".")[-1] for i in range(network.num_layers))
print(json.dumps({"bytes": plan.nbytes if plan else 0, "kinds": kinds}))
"""


@pytest.mark.parametrize(
    ("tree", "rule", "opset"),
    [
        pytest.param(PLAIN, "greedy", 18, marks=MYELIN),
        (CHAIN, "greedy", 18),
        (CHAIN, "greedy", 24),
        (CHAIN, "coupled", 18),
        (TREE, "greedy", 18),
    ],
    ids=["plain", "chain", "chain-24", "coupled", "tree"],
)
def test_a_step_is_one_engine(tree: DraftTree, rule: str, opset: int, tmp_path: Path) -> None:
    """Every op is taken by the parser, and at opset 24 every cache is TensorRT's own update, once."""
    pytest.importorskip("tensorrt_rtx", reason="make test-tensorrt installs it")
    path = tmp_path / "step.onnx"
    export_onnx(bound(tree, rule), path, opset=opset, reader="tensorrt")
    out = subprocess.run([sys.executable, "-P", "-c", BUILD, path, str(SLOTS)], capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    found = json.loads(out.stdout.splitlines()[-1])
    caches = sum("_k_" in name or "_v_" in name for name in names_of(path))
    assert found["bytes"] > 100_000 and "LOOP" not in found["kinds"] and caches >= 2 * len(captured()[0])
    assert found["kinds"].get("KVCACHE_UPDATE", found["kinds"].get("KV_CACHE_UPDATE", 0)) == (
        caches if opset == 24 else 0
    )


def test_export_refuses_other_readers(tiny_engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, message in ((["--for", "tvm"], "--for 'tvm' is not one of"), (["--opset", "7"], "--opset 7 is not one")):
        assert main(["export", str(tiny_engine), "--onnx", str(tmp_path / "x"), *flags]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
