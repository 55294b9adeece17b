"""ExpandAttention: the op in plain ops, or as native code takes it."""

from __future__ import annotations

import pytest
import torch
from helpers.by_hand import hand, op
from helpers.check import check_pass
from torch import Tensor

from specc.passes.expand_attention import ExpandAttention
from specc.passes.inputs import bucket
from specc.program import Level, Program

ATTENTION = torch.ops.specc.cached_attention.default
B, H, G, T, D, SLOTS = 2, 4, 2, 3, 8, 16


def attending(*, window: int | None = None, sinks: bool = False, straight: bool = True) -> Program:
    """One attention over a bucket of a cache, its floats as models hand them over, or turned about."""
    program = hand(Level.ENGINE, batch=B, slots=SLOTS)

    def given(name: str, heads: int, rows: int) -> torch.fx.Node:
        if straight:
            node = program.input(name, (B, rows, heads, D), torch.float32)
            return op(program, torch.ops.aten.permute.default, node, [0, 2, 1, 3])
        return op(
            program,
            torch.ops.aten.permute.default,
            program.input(name, (D, heads, rows, B), torch.float32),
            [3, 1, 2, 0],
        )

    caches = [program.input(f"target_{kind}_0", (B, G, SLOTS, D), torch.float32) for kind in "kv"]
    mask = program.input("mask", (1, T, T) if straight else (T, 1, T), torch.bool)
    if not straight:
        mask = op(program, torch.ops.aten.permute.default, mask, [1, 2, 0])
    tensors = [given("q", H, T), *caches, given("k", G, T), given("v", G, T)]
    tensors += [program.input("target_length", (B,), torch.int64), mask, bucket(program)]
    positions = program.input("positions", (B, T), torch.int64) if window else None
    sink = program.input("sinks", (H,), torch.float32) if sinks else None
    program.give(out=op(program, ATTENTION, *tensors, 0.3, window, None, positions, sink))
    return program


def natively(rows: int, dtype: torch.dtype) -> bool:
    return rows == T and dtype == torch.float32


@pytest.mark.parametrize("case", ({}, {"window": 2}, {"sinks": True}), ids=str)
def test_plain_ops_are_the_op(case: dict[str, object]) -> None:
    program = check_pass(
        lambda: attending(**case), ExpandAttention(), gone=["specc::cached_attention"], rewrites=1, atol=2e-6
    )
    assert len(program.graph.find_nodes(op="call_function", target=torch.ops.aten.bmm.default)) == 4


@pytest.mark.parametrize("straight", (True, False))
def test_native_attention_gets_what_it_can_read(straight: bool) -> None:
    """Rows as a model makes them go to it without a copy."""
    program = check_pass(
        lambda: attending(window=2, sinks=True, straight=straight),
        ExpandAttention(attends=natively),
        rewrites=0 if straight else 1,
        atol=0,
    )
    (node,) = program.graph.find_nodes(op="call_function", target=ATTENTION)
    values: list[Tensor] = [arg.meta["val"] for arg in node.args if isinstance(arg, torch.fx.Node)]
    assert all(value.stride(-1) == 1 for value in values) and values[6].is_contiguous()


def test_other_rows_and_dtypes_stay_plain() -> None:
    seen = []
    program = attending()
    ExpandAttention(attends=lambda *asked: bool(seen.append(asked))).run(program)
    assert seen == [(T, torch.float32)] and not program.graph.find_nodes(op="call_function", target=ATTENTION)
