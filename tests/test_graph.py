"""Helpers of the passes: calls, inlined graphs and emitted functions."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from helpers.by_hand import hand, op
from helpers.check import assert_golden, assert_shapes
from helpers.decoding import module_of
from torch import Tensor, fx

from specc.errors import PassError
from specc.passes.graph import call, emit, inline

aten = torch.ops.aten


def _minus_twice(x: Tensor, y: Tensor) -> Tensor:
    return x - 2 * y


def test_emit_writes_what_the_function_does() -> None:
    program = hand()
    a, b = (program.input(name, (2, 3), torch.float32) for name in "ab")
    program.give(out=emit(program, program, _minus_twice, a, b))
    assert_golden(
        program.graph,
        """
        a: f32[2, 3] = input(a)
        b: f32[2, 3] = input(b)
        mul_tensor: f32[2, 3] = mul.Tensor(b, 2)
        sub_tensor: f32[2, 3] = sub.Tensor(a, mul_tensor)
        return {out: sub_tensor}
        """,
    )
    assert_shapes(program.graph)
    assert all(n.meta["specc_pass"] == "Program" for n in program.graph.nodes if n.op == "call_function")
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    assert torch.equal(module_of(program)(x, y)["out"], x - 2 * y)


def test_a_trace_of_one_tensor_twice_serves_two_tensors() -> None:
    program = hand()
    a, b = (program.input(name, (2,), torch.float32) for name in "ab")
    program.give(same=emit(program, None, _minus_twice, a, a), different=emit(program, None, _minus_twice, a, b))
    out = module_of(program)(torch.ones(2), torch.zeros(2))
    assert out["same"].tolist() == [-1, -1]
    assert out["different"].tolist() == [1, 1]


def test_emit_traces_once_a_shape() -> None:
    program = hand()
    a, b, c = (program.input(n, (s,), torch.float32) for n, s in (("a", 2), ("b", 2), ("c", 3)))
    emit(program, None, _minus_twice, a, b)
    emit(program, None, _minus_twice, b, a)
    assert len(program.traces) == 1
    emit(program, None, _minus_twice, c, c)
    assert len(program.traces) == 2


class _Line(NamedTuple):
    slope: Tensor
    start: Tensor


class _Enil(NamedTuple):
    start: Tensor
    slope: Tensor


def _at(x: Tensor, line: _Line | _Enil) -> Tensor:
    return line.slope * x + line.start


def test_emit_reads_named_tensors_by_their_names() -> None:
    program = hand()
    x, slope, start = (program.input(name, (2,), torch.float32) for name in ("x", "slope", "start"))
    lines = _Line(slope=slope, start=start), _Enil(slope=slope, start=start)
    program.give(**{type(line).__name__: emit(program, None, _at, x, line) for line in lines})
    out = module_of(program)(torch.ones(2), torch.full((2,), 3.0), torch.full((2,), 4.0))
    assert out["_Line"].tolist() == out["_Enil"].tolist() == [7, 7]
    with pytest.raises(AttributeError, match="slope"):
        emit(program, None, _at, lines[0], x)


def test_emit_keeps_static_values_apart() -> None:
    def scaled(x: Tensor, *, factor: float) -> Tensor:
        return x * factor

    program = hand()
    a = program.input("a", (2,), torch.float32)
    program.give(**{f"by_{f}": emit(program, None, scaled, a, factor=float(f)) for f in (2, 3)})
    out = module_of(program)(torch.ones(2))
    assert out["by_2"].tolist() == [2, 2] and out["by_3"].tolist() == [3, 3]


def test_emit_refuses_hidden_constants() -> None:
    table = torch.tensor([1.0, 2.0])

    def looks_up(x: Tensor) -> Tensor:
        return x + table

    program = hand()
    with pytest.raises(PassError, match="looks_up makes the tensor constant .*; use program.constant"):
        emit(program, None, looks_up, program.input("a", (2,), torch.float32))


def test_sizes_that_are_known_become_numbers() -> None:
    program = hand()
    a = program.input("a", (2, 3), torch.float32)
    assert op(program, aten.sym_size.int, a, 1) == 3
    assert all(node.op != "call_function" for node in program.graph.nodes)


def test_call_carries_the_stack_trace_of_what_it_replaces() -> None:
    program = hand()
    a = program.input("a", (2,), torch.float32)
    a.meta["stack_trace"] = "model.py:7"
    with program.graph.inserting_before(program.output):
        node = call(program, program, aten.neg.default, a, origin=a)
    assert node.meta["stack_trace"] == "model.py:7"


def test_inline_refuses_what_cannot_stand_in_a_program() -> None:
    graph = fx.Graph()
    graph.output(graph.call_method("relu", (graph.placeholder("x"),)))
    program = hand()
    with pytest.raises(PassError, match="call_method relu cannot stand in a program"):
        inline(program, None, graph, [program.input("a", (2,), torch.float32)])
