"""The eager back end: saved, opened in another process without the compiler, same tokens, caches written in place."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.bound import eager_step, generated, neutral, prefilled, step_program
from safetensors.torch import save_file
from torch import Tensor, fx

from specc.errors import BackendError
from specc.graph_text import decode, encode
from specc.lower import eager
from specc.manifest import ProgramSpec
from specc.program import Program
from specc.runtime.backends.eager import open_eager
from specc.tree import DraftTree

PROMPT = tuple((7 * i * i + 3 * i) % 125 + 3 for i in range(30))
CHAIN = DraftTree.chain(3)

OPEN = """
import json, sys, torch
from pathlib import Path
from safetensors.torch import load_file
from specc.manifest import ProgramSpec
from specc.runtime.backends.eager import open_eager

folder, rounds = Path(sys.argv[1]), int(sys.argv[2])
names = json.loads((folder / "names.json").read_text())
state, weights = load_file(folder / "state.safetensors"), load_file(folder / "weights.safetensors")
spec = ProgramSpec(file="step.json", **{kind: tuple(found) for kind, found in names.items()})
step = open_eager(folder / "step.json", spec, weights, torch.device("cpu"))
first = state["target_k_0"].clone()
reports = []
for _ in range(rounds):
    results = dict(zip(names["outputs"], step([state[n] for n in names["inputs"]])))
    reports.append(results.pop("report")[0].tolist())
    state.update(results)
compiler = [n for n in sys.modules if n.startswith(("specc.passes", "specc.lower", "specc.capture", "transformers"))]
assert not compiler, compiler
print(json.dumps({"reports": reports, "written": not torch.equal(first, state["target_k_0"])}))
"""


def _request(count: int) -> dict[str, Tensor]:
    state = {name: tensor.clone() for name, tensor in prefilled(PROMPT).items()}
    state |= {"limit": torch.tensor([len(PROMPT) + count]), "eos": torch.full((1, 8), -1)}
    state |= {"draft_limit": torch.tensor([CHAIN.depth]), "bucket": torch.zeros(80, dtype=torch.uint8)}
    return {**state, **neutral(len(PROMPT), len(CHAIN))}


def _inputs(program: Program) -> list[str]:
    return [str(node.target) for node in program.graph.find_nodes(op="placeholder")]


def test_same_tokens_in_a_new_process(tmp_path: Path) -> None:
    program = step_program(CHAIN, "greedy")
    eager.lower(program, tmp_path / "step.json")
    save_file({n: program.weights[n].contiguous() for n in program.weight_names()}, tmp_path / "weights.safetensors")
    save_file(_request(40), tmp_path / "state.safetensors")
    names = {"inputs": _inputs(program), "weights": program.weight_names(), "outputs": list(program.values)}
    (tmp_path / "names.json").write_text(json.dumps(names))
    wanted, accepted = generated(eager_step(program), PROMPT, 40, CHAIN.depth)
    rounds = 40 - accepted  # every step emits one token more than it accepts
    command = [sys.executable, "-c", OPEN, str(tmp_path), str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    depth = CHAIN.depth
    assert [t for r in found["reports"] for t in r[: r[depth + 1]]] == wanted
    assert found["written"]


def test_caches_are_written_where_they_are(tmp_path: Path) -> None:
    program = step_program(CHAIN, "greedy")
    eager.lower(program, tmp_path / "step.json")
    names = {"inputs": _inputs(program), "weights": program.weight_names(), "outputs": list(program.values)}
    spec = ProgramSpec(file="step.json", **{kind: tuple(found) for kind, found in names.items()})
    step = open_eager(tmp_path / "step.json", spec, program.weights.tensors, torch.device("cpu"))
    ours, theirs = _request(40), _request(40)
    places = {name: tensor.data_ptr() for name, tensor in ours.items()}
    before = {name: tensor.clone() for name, tensor in ours.items()}
    step([ours[n] for n in _inputs(program)])
    eager_step(program)(theirs)
    for name in _inputs(program):
        assert ours[name].data_ptr() == places[name]
        assert torch.equal(ours[name], theirs[name])
        cache = name == "history" or "_k_" in name or "_v_" in name
        assert torch.equal(ours[name], before[name]) != cache, name


def test_the_file_holds_no_tensor(tmp_path: Path) -> None:
    program = step_program(CHAIN, "greedy")
    eager.lower(program, tmp_path / "step.json")
    assert (tmp_path / "step.json").stat().st_size < 200 * len(program.graph.nodes)


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    program = step_program(DraftTree.chain(0), "greedy")
    node = next(node for node in program.graph.nodes if node.op == "call_function")
    node.kwargs = {**node.kwargs, "made_of": object()}
    with pytest.raises(BackendError, match="a graph file has no form for <object"):
        eager.lower(program, tmp_path / "plain.json")


def test_every_kind_of_argument_survives() -> None:
    """What a graph may hold beside tensors, through JSON and back."""
    graph = fx.Graph()
    node = graph.placeholder("x")
    held = [
        node,
        torch.int8,
        torch.strided,
        torch.preserve_format,
        torch.device("cpu"),
        None,
        True,
        3,
        0.5,
        "text",
        [1],
    ]
    found = decode(json.loads(json.dumps(encode({"held": held}))), {"x": node})
    assert found == {"held": held} and [type(value) for value in found["held"]] == [type(value) for value in held]
    assert math.isinf(decode(json.loads(json.dumps(encode(float("-inf")))), {}))
