"""SkinnyLinears: what is asked, what is rewritten, and the choice that a machine's own timings make."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.bound import empty_program
from torch import nn

from specc.drafter import parse_drafter
from specc.lower import native
from specc.lower.forms import FORMS, FormTable
from specc.passes import run, step_passes
from specc.passes.skinny_linears import SkinnyLinears
from specc.passes.skinny_linears import native as native_product
from specc.program import Program
from specc.tree import DraftTree

LINEAR, SKINNY = torch.ops.aten.linear.default, torch.ops.specc.skinny_linear.default


def fused_program() -> Program:
    """A step of the tiny pair as SkinnyLinears finds it."""
    program = empty_program("step")
    passes = step_passes(tree=DraftTree.chain(3), rule="greedy", drafter=parse_drafter("model"))
    run(program, passes[: [p.stem() for p in passes].index("skinny_linears")])
    return program


def count(program: Program, op: object) -> int:
    return len(program.graph.find_nodes(op="call_function", target=op))


@pytest.mark.parametrize("bias", (False, True))
def test_it_is_the_product(bias: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(24, 64, bias=bias)
    with torch.no_grad():
        for x in (torch.randn(1, 4, 24), torch.randn(1, 24, 4).mT):
            torch.testing.assert_close(native_product(x, layer.weight, layer.bias), layer(x), atol=1e-6, rtol=1e-5)


def test_the_choice_sees_rows_of_the_block_and_nothing_else() -> None:
    asked: set[tuple[int, int, int, torch.dtype]] = set()

    def skinny(out: int, size: int, rows: int, dtype: torch.dtype) -> bool:
        asked.add((out, size, rows, dtype))
        return False

    program = fused_program()
    assert SkinnyLinears(skinny=skinny).run(program) == 0 == SkinnyLinears().run(program)
    rows = {r for _, _, r, _ in asked}
    assert rows == {1, 4}  # levels of the chain, and its four rows at catch-up and verification
    assert all(dtype == torch.float32 for *_, dtype in asked)
    assert (128, 32, 4, torch.float32) in asked  # the target's head
    assert (64, 32, 4, torch.float32) in asked  # q, k and v side by side


def test_a_second_run_finds_nothing_and_a_computed_weight_is_declined() -> None:
    program = fused_program()
    pass_ = SkinnyLinears(skinny=lambda out, size, rows, dtype: rows == 4)
    before = count(program, LINEAR)
    fired = pass_.run(program)
    assert fired == count(program, SKINNY) > 0 and before - count(program, LINEAR) == fired
    assert pass_.run(program) == 0
    node = program.graph.find_nodes(op="call_function", target=LINEAR)[0]
    with program.graph.inserting_before(node):
        computed = program.graph.call_function(torch.ops.aten.alias.default, (node.args[1],))
    computed.meta["val"] = node.args[1].meta["val"]
    node.args = (node.args[0], computed, *node.args[2:])
    assert SkinnyLinears(skinny=lambda *_: True).run(program) > 0
    assert [d.reason for d in program.declined if d.pass_name == "SkinnyLinears"] == ["the weight is computed"]


def test_the_faster_form_is_taken_and_the_native_one_at_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"linear": 1.0, "native": 1.0}
    monkeypatch.setattr(FormTable, "seconds", lambda self, out, size, rows, dtype, form: times[form])
    for linear, native_wins in ((1.0, True), (0.96, True), (0.94, False), (2.0, True)):
        times["linear"] = linear
        assert FormTable(None, "this machine").skinny(256, 128, 4, torch.float32) is native_wins


def test_what_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    table = FormTable(None, "this machine")
    monkeypatch.setattr(table, "seconds", lambda *_: pytest.fail("was timed"))
    assert table.skinny(128, 128, 4, torch.float32)  # small: always
    assert not table.skinny(128, 64, 64, torch.float32)  # rows of a prefill
    assert not table.skinny(128, 64, 4, torch.bfloat16)
    assert table.skinny(128, 64, 4, torch.int32) and not table.skinny(128, 64, 64, torch.int32)
    monkeypatch.setattr(native, "vectors", lambda: None)
    assert not table.skinny(128, 64, 4, torch.float32) and not table.skinny(128, 64, 4, torch.int32)


def test_measured_forms_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "forms.json"
    answer = FormTable(path, "this machine").skinny(256, 128, 4, torch.float32)
    again = FormTable(path, "this machine")
    assert set(again.answers.values()) <= set(FORMS)
    monkeypatch.setattr(again, "seconds", lambda *_: pytest.fail("was timed again"))
    assert again.skinny(256, 128, 4, torch.float32) is answer


def test_damaged_answers_are_measured_again(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"k": "no such form"}', '{"k": ["linear"]}'):
        (tmp_path / "forms.json").write_text(text)
        assert FormTable(tmp_path / "forms.json", "this machine").answers == {}
