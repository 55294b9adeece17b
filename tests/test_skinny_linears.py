"""SkinnyLinears: every form computes the product; the choice is asked for with the right numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.bound import empty_program
from torch import nn

from specc.drafter import parse_drafter
from specc.lower.forms import FormTable
from specc.passes import run, step_passes
from specc.passes.skinny_linears import FORMS, SkinnyLinears, usual_form
from specc.program import Program
from specc.tree import DraftTree


def fused_program() -> Program:
    """A step of the tiny pair as SkinnyLinears finds it."""
    program = empty_program("step")
    passes = step_passes(tree=DraftTree.chain(3), rule="greedy", drafter=parse_drafter("model"))
    run(program, passes[: [p.stem() for p in passes].index("skinny_linears")])
    return program


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bias", (False, True))
@pytest.mark.parametrize("rows", (1, 4, 5))
def test_every_form_is_the_product(form: str, bias: bool, rows: int) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 64, bias=bias)
    x = torch.randn(1, rows, 24)
    with torch.no_grad():
        torch.testing.assert_close(FORMS[form](x, layer.weight, layer.bias), layer(x), atol=1e-6, rtol=1e-5)
        strided = torch.randn(1, 24, rows).mT
        torch.testing.assert_close(FORMS[form](strided, layer.weight, layer.bias), layer(strided), atol=1e-6, rtol=1e-5)
        assert FORMS[form](x, layer.weight, layer.bias).is_contiguous()  # as what stands behind was traced


def test_the_choice_sees_rows_of_the_block_and_nothing_else() -> None:
    asked: set[tuple[int, int, int, torch.dtype]] = set()

    def choose(out: int, size: int, rows: int, dtype: torch.dtype) -> str:
        asked.add((out, size, rows, dtype))
        return "linear"

    program = fused_program()
    assert SkinnyLinears(choose=choose).run(program) == 0
    rows = {r for _, _, r, _ in asked}
    assert rows == {1, 4}  # levels of the chain, and its four rows at catch-up and verification
    assert all(dtype == torch.float32 for *_, dtype in asked)
    assert (128, 32, 4, torch.float32) in asked  # the target's head
    assert (64, 32, 4, torch.float32) in asked  # q, k and v side by side


def test_a_second_run_finds_nothing_and_a_computed_weight_is_declined() -> None:
    program = fused_program()
    pass_ = SkinnyLinears(choose=lambda out, size, rows, dtype: "split" if rows == 4 else "linear")
    before = len(program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default))
    fired = pass_.run(program)
    left = len(program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default))
    assert fired > 0 and before - left == fired
    assert pass_.run(program) == 0
    node = program.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)[0]
    with program.graph.inserting_before(node):
        computed = program.graph.call_function(torch.ops.aten.alias.default, (node.args[1],))
    computed.meta["val"] = node.args[1].meta["val"]
    node.args = (node.args[0], computed, *node.args[2:])
    assert SkinnyLinears(choose=lambda *_: "transposed").run(program) > 0
    assert [d.reason for d in program.declined if d.pass_name == "SkinnyLinears"] == ["the weight is computed"]


def test_usual_form_leaves_what_it_cannot_split() -> None:
    assert usual_form(1536, 576, 4, torch.float32) == "split"
    assert usual_form(1530, 576, 4, torch.float32) == "linear"  # not a multiple of 8
    assert usual_form(1536, 576, 1, torch.float32) == "linear"
    assert usual_form(1536, 576, 64, torch.float32) == "linear"
    assert usual_form(1536, 576, 4, torch.bfloat16) == "linear"


def test_measured_forms_are_kept(tmp_path) -> None:
    path = tmp_path / "forms.json"
    table = FormTable(path, "this machine")
    table.vectors = "NEITHER"
    answer = table.choose(128, 64, 4, torch.float32)
    assert answer in {"linear", *FORMS}
    again = FormTable(path, "this machine")
    again.vectors = "NEITHER"
    again._measure = None  # type: ignore[assignment,method-assign]  # must not be called
    assert again.choose(128, 64, 4, torch.float32) == answer
    assert table.choose(128, 64, 64, torch.float32) == "linear"
    assert table.choose(128, 64, 4, torch.bfloat16) == "linear"


def test_streams_are_taken_where_registers_are_wide() -> None:
    table = FormTable(None, "this machine")
    table.vectors = "AVX512"
    assert {table.choose(32000, 64, rows, torch.float32) for rows in (1, 4, 8)} == {"streams"}
    assert {table.choose(3072, 576, rows, torch.float32) for rows in (4, 8)} == {"streams"}  # gate and up
    assert table.choose(32000, 64, 64, torch.float32) == "linear"
    assert table.choose(3072, 576, 1, torch.float32) != "streams"  # of little use there
    table.vectors = "AVX2"
    assert {table.choose(3072, 576, rows, torch.float32) for rows in (1, 4, 8)} == {"streams"}
    assert table.choose(576, 576, 1, torch.float32) != "streams"
    table.vectors = "NEITHER"
    assert table.choose(3072, 576, 4, torch.float32) != "streams"


def test_damaged_answers_are_measured_again(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"k": "no such form"}', '{"k": ["linear"]}'):
        (tmp_path / "forms.json").write_text(text)
        assert FormTable(tmp_path / "forms.json", "this machine").answers == {}
