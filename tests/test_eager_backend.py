"""The eager back end: saved, opened in another process by PyTorch alone, same tokens, caches written in place."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from helpers.bound import eager_step, generated, neutral, prefilled, step_program
from safetensors.torch import save_file
from torch import Tensor

from specc.errors import BackendError
from specc.lower import eager
from specc.program import Program
from specc.tree import DraftTree

PROMPT = tuple((7 * i * i + 3 * i) % 125 + 3 for i in range(30))
CHAIN = DraftTree.chain(3)

OPEN = """
import json, sys, torch
from safetensors.torch import load_file

folder, rounds = sys.argv[1], int(sys.argv[2])
names = json.load(open(f"{folder}/names.json"))
module = torch.export.load(f"{folder}/step.pt2").module()
state, weights = load_file(f"{folder}/state.safetensors"), load_file(f"{folder}/weights.safetensors")
first = state["target_k_0"].clone()
reports = []
for _ in range(rounds):
    with torch.no_grad():
        results = module(*[state[n] for n in names["inputs"]], *[weights[n] for n in names["weights"]])
    results = dict(zip(names["outputs"], results))
    reports.append(results.pop("report")[0].tolist())
    state.update(results)
assert not any(n.startswith("specc") for n in sys.modules), "opened with the compiler's help"
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
    eager.lower(program, tmp_path / "step.pt2")
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
    eager.lower(program, tmp_path / "step.pt2")
    module = torch.export.load(tmp_path / "step.pt2").module()
    ours, theirs = _request(40), _request(40)
    places = {name: tensor.data_ptr() for name, tensor in ours.items()}
    before = {name: tensor.clone() for name, tensor in ours.items()}
    with torch.no_grad():
        module(*[ours[n] for n in _inputs(program)], *[program.weights[n] for n in program.weight_names()])
    eager_step(program)(theirs)
    for name in _inputs(program):
        assert ours[name].data_ptr() == places[name]
        assert torch.equal(ours[name], theirs[name])
        cache = name == "history" or "_k_" in name or "_v_" in name
        assert torch.equal(ours[name], before[name]) != cache, name


def test_the_file_holds_no_tensor(tmp_path: Path) -> None:
    program = step_program(CHAIN, "greedy")
    eager.lower(program, tmp_path / "step.pt2")
    with zipfile.ZipFile(tmp_path / "step.pt2") as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    assert sum(size for name, size in sizes.items() if not name.endswith(".json")) < 1000, sizes
    assert sum(sizes.values()) < 1000 * len(program.graph.nodes)  # bytes a node


def test_what_cannot_be_saved_is_said(tmp_path: Path) -> None:
    program = step_program(DraftTree.chain(0), "greedy", "functional")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.export, "save", _refuse)
        with pytest.raises(BackendError, match="program plain: ValueError: no form"):
            eager.lower(program, tmp_path / "plain.pt2")


def _refuse(*_: object) -> None:
    raise ValueError("no form for this")
