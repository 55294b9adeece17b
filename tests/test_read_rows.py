"""ReadRows: the head runs on the rows that are read, where the others are not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.by_hand import hand, op
from helpers.check import assert_golden, check_pass, must_not_fire
from helpers.decoding import until
from torch import fx

from specc.drafter import parse_drafter
from specc.passes import prefill_passes, step_passes
from specc.passes.read_rows import ReadRows
from specc.program import Program
from specc.tree import DraftTree

aten = torch.ops.aten
Write = Callable[[Program, fx.Node], fx.Node]


def reading(write: Write, *, also: bool = False, dim: int = 1, spread: bool = True) -> Callable[[], Program]:
    """`write(x)` of `[2, 4, 3]`, of which two rows are read."""

    def make() -> Program:
        program = hand()
        x = program.input("x", (2, 4, 3), torch.float32)
        rows = program.constant("rows", torch.tensor([[3, 1], [0, 0]]))
        logits = write(program, x)
        index = op(program, aten.unsqueeze.default, rows, 2)
        if spread:
            index = op(program, aten.expand.default, index, [-1, -1, logits.meta["val"].shape[2]])
        program.give(read=op(program, aten.gather.default, logits, dim, index))
        if also:
            program.give(all=logits)
        return program

    return make


def linear(program: Program, x: fx.Node, *, bias: bool = False) -> fx.Node:
    head = program.constant("head", torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
    more = [program.constant("bias", torch.arange(5.0))] if bias else []
    return op(program, aten.linear.default, x, head, *more)


def capped(program: Program, x: fx.Node) -> fx.Node:
    scaled = op(program, aten.div.Tensor, linear(program, x), 30.0)
    return op(program, aten.mul.Tensor, op(program, aten.tanh.default, scaled), 30.0)


def test_head() -> None:
    program = check_pass(reading(linear), ReadRows(), rewrites=1, atol=1e-6)
    assert_golden(
        program.graph,
        """
        x: f32[2, 4, 3] = input(x)
        head: f32[5, 3] = weight(head)
        rows: i64[2, 2] = weight(rows)
        unsqueeze_default: i64[2, 2, 1] = unsqueeze(rows, 2)
        expand_default_1: i64[2, 2, 3] = expand(unsqueeze_default, [-1, -1, 3])
        gather_default_1: f32[2, 2, 3] = gather(x, 1, expand_default_1)
        linear_default_1: f32[2, 2, 5] = linear(gather_default_1, head)
        return {read: linear_default_1}
        """,
    )


@pytest.mark.parametrize(
    "write, rewrites",
    [
        (lambda p, x: linear(p, x, bias=True), 1),
        (capped, 4),
        (lambda p, x: op(p, aten._to_copy.default, linear(p, x), dtype=torch.float64), 2),
    ],
    ids=["bias", "capped", "cast"],
)
def test_through_scaling_and_capping(write: Write, rewrites: int) -> None:
    check_pass(reading(write), ReadRows(), rewrites=rewrites, atol=1e-5)


def of_rows(target: Any, *args: Any) -> Write:
    return lambda p, x: op(p, target, linear(p, x), *args)


@pytest.mark.parametrize(
    "make, reason",
    [
        (reading(linear, also=True), "other rows are read as well"),
        (reading(of_rows(aten.softmax.int, 1)), None),  # mixes rows
        (reading(of_rows(aten.cumsum.default, 1)), None),
        (reading(lambda p, x: op(p, aten.mul.Tensor, x, x)), None),  # two tensors
        (reading(linear, dim=2), None),
        (reading(linear, spread=False), None),  # one column a row, not the row
        (
            reading(lambda p, x: op(p, aten.linear.default, x, op(p, aten.neg.default, p.constant("w", torch.eye(3))))),
            None,
        ),
    ],
)
def test_must_not_fire(make: Callable[[], Program], reason: str | None) -> None:
    must_not_fire(make, ReadRows(), reason=reason)


def test_stops_at_what_others_read() -> None:
    """The cap moves, the product behind it is read elsewhere and stays."""

    def make() -> Program:
        program = reading(capped)()
        head = next(n for n in program.graph.nodes if n.target is aten.linear.default)
        program.give(all=head)
        return program

    check_pass(make, ReadRows(), rewrites=3, atol=1e-5, declined=1)


def test_drafter_reads_one_row_of_its_catch_up() -> None:
    passes = step_passes(tree=DraftTree.chain(2), rule="greedy", drafter=parse_drafter("model"))
    program = check_pass(lambda: until("read_rows", passes), ReadRows(), rewrites=1, atol=1e-5)
    heads = [
        n.meta["val"].shape[1]
        for n in program.graph.nodes
        if n.target is aten.linear.default and n.meta["val"].shape[2] == 128
    ]
    assert heads == [1, 1, 3], "catch-up, second level, verification"


def test_prefill_has_no_head_at_all() -> None:
    program = until("share_weights", prefill_passes(model="target"))
    assert not [
        n for n in program.graph.nodes if n.op == "call_function" and 128 in getattr(n.meta["val"], "shape", ())
    ]
