"""The step as one TensorRT engine: parsed and built ahead of time, without a GPU, by TensorRT-RTX. Nothing is run."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.bound import SIZES, eager_step, empty_program, generated, step_program
from helpers.onnx_step import OnnxStep
from transformers import AutoConfig, AutoModelForCausalLM

from specc.capture import capture
from specc.capture.proof import reduced_text
from specc.cli import main
from specc.drafter import parse_drafter
from specc.lower.onnx import export_onnx
from specc.lower.tensorrt import UPDATE
from specc.passes import prefill_passes, run, step_passes
from specc.passes.inputs import role
from specc.philox import uniform
from specc.program import Model, Program, WeightStore
from specc.tree import DraftTree

onnx = pytest.importorskip("onnx")

CHAIN, TREE, PLAIN = DraftTree.chain(3), DraftTree.from_widths((3, 2, 1)), DraftTree.chain(0)
PROMPT = tuple((7 * i * i + 3 * i) % 125 + 3 for i in range(30))
SLOTS = 119
FAMILIES: dict[str, Any] = {"llama": {}, "qwen3": {}, "gemma2": {}, "mixtral": {"sliding_window": 4096}}


def bound(tree: DraftTree, rule: str) -> Program:
    program = empty_program("step" if tree.depth else "plain")
    how: dict[str, Any] = {"form": "functional", "noise": "input"}
    run(program, step_passes(tree=tree, rule=rule, drafter=parse_drafter("model"), **how))
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
from pathlib import Path
from specc.lower.tensorrt import build

plan, layers = build(Path(sys.argv[1]), int(sys.argv[2]), "SM86")
print(json.dumps({"bytes": len(plan), **layers}))
"""


LOOPS = {"LOOP_OUTPUT", "TRIP_LIMIT", "RECURRENCE", "ITERATOR"}


def built(program: Program, path: Path, opset: int) -> dict[str, int]:
    """How many bytes a program's plan has, and layers of each kind; in a process of its own, which may crash."""
    pytest.importorskip("tensorrt_rtx", reason="make test-tensorrt installs it")
    export_onnx(program, path, opset=opset, reader="tensorrt")
    run_alone = [sys.executable, "-P", "-c", BUILD, path, str(SLOTS)]
    out = subprocess.run(run_alone, capture_output=True, text=True)
    assert out.returncode == 0, out.stderr[-2000:]
    layers: dict[str, int] = json.loads(out.stdout.splitlines()[-1])
    assert layers["bytes"] > 100_000 and not LOOPS & layers.keys()
    return layers


@pytest.mark.parametrize(
    ("tree", "rule", "opset"),
    [
        (PLAIN, "greedy", 18),
        (PLAIN, "coupled", 24),
        (CHAIN, "greedy", 18),
        (CHAIN, "coupled", 24),
        (TREE, "greedy", 18),
    ],
    ids=["plain", "plain-coupled-24", "chain", "coupled-24", "tree"],
)
def test_a_step_is_one_engine(tree: DraftTree, rule: str, opset: int, tmp_path: Path) -> None:
    """Every op is taken by the parser, and at opset 24 every cache is TensorRT's own update, once."""
    program = bound(tree, rule)
    assert built(program, tmp_path / "step.onnx", opset).get(UPDATE, 0) == (len(caches(program)) if opset == 24 else 0)


@pytest.mark.parametrize("part", ["plain", "chain", "tree", "prefill"])
@pytest.mark.parametrize("family", FAMILIES)
def test_families_are_one_engine(family: str, part: str, tmp_path: Path) -> None:
    """What an engine of each family needs, reduced and random: no copy of a cache, nothing that falls back."""
    models, weights = pair(family)
    program = Program(
        "prefill_target" if part == "prefill" else "step", {n: m.copy() for n, m in models.items()}, weights, SIZES
    )
    how: dict[str, Any] = {"form": "functional", "noise": "input"}
    if part == "prefill":
        run(program, prefill_passes(model="target", form="functional"))
    else:
        tree = {"plain": PLAIN, "chain": CHAIN, "tree": TREE}[part]
        run(program, step_passes(tree=tree, rule="greedy", drafter=parse_drafter("model"), **how))
    assert built(program, tmp_path / f"{part}.onnx", 24)[UPDATE] == len(caches(program)) >= 4


@functools.cache
def pair(family: str) -> tuple[dict[str, Model], WeightStore]:
    """A reduced, random model of a family, as target and as drafter."""
    config = AutoConfig.for_model(family, **FAMILIES[family])
    small, _, _ = reduced_text(config, AutoModelForCausalLM._model_mapping[type(config)])
    models = {name: capture(small, name=name) for name in ("target", "drafter")}
    store = WeightStore()
    for model in models.values():
        for name, tensor in model.weights.items():
            store.add(name, tensor)
    return models, store


def caches(program: Program) -> list[str]:
    """Names of the caches that a program writes, but for the history, which is of integers."""
    return [name for name, node in program.values.items() if role(name) == "cache" and node.meta["val"].ndim == 4]


def test_export_refuses_noise_that_nobody_can_give(
    tiny_engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of rejection, whose last draw is for the position that the step ends at."""
    assert main(["export", str(tiny_engine), "--onnx", str(tmp_path / "x"), "--for", "tensorrt"]) == 2
    assert "compile the engine without --acceptance" in capsys.readouterr().err


def test_export_refuses_other_readers(tiny_engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for flags, message in ((["--for", "tvm"], "--for 'tvm' is not one of"), (["--opset", "7"], "--opset 7 is not one")):
        assert main(["export", str(tiny_engine), "--onnx", str(tmp_path / "x"), *flags]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
