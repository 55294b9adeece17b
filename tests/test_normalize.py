"""Normalize: what returns its input goes, what is equal is computed once, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.by_hand import hand_model, op
from helpers.check import assert_golden, check_pass, must_not_fire
from helpers.decoding import until
from torch import fx

from specc.drafter import parse_drafter
from specc.passes import step_passes
from specc.passes.normalize import Normalize
from specc.program import Program
from specc.tree import DraftTree

aten = torch.ops.aten
LAST = 2**63 - 1
Write = Callable[[Program, fx.Node, fx.Node], fx.Node]


def floats(program: Program, tokens: fx.Node) -> fx.Node:
    """`[1, 4, 16]` float32 from the tokens."""
    table = program.constant("table", torch.randn(16, 16, generator=torch.Generator().manual_seed(0)))
    return op(program, aten.embedding.default, table, tokens)


def on_floats(target: Any, *args: Any, **kwargs: Any) -> Write:
    """A model whose last op is `target(x, ...)`."""
    return lambda p, tokens, positions: op(p, target, floats(p, tokens), *args, **kwargs)


def on_ids(target: Any, *args: Any, **kwargs: Any) -> Write:
    """The same on integers."""
    return lambda p, tokens, positions: op(p, target, tokens, *args, **kwargs)


@pytest.mark.parametrize(
    "write, name",
    [
        (on_floats(aten.mul.Tensor, 1.0), "mul.Tensor"),
        (on_floats(aten.mul.Tensor, 1), "mul.Tensor"),
        (on_floats(aten.div.Tensor, 1.0), "div.Tensor"),
        (on_ids(aten.add.Tensor, 0), "add.Tensor"),
        (on_ids(aten.sub.Tensor, 0), "sub.Tensor"),
        (on_floats(aten._to_copy.default, dtype=torch.float32), "_to_copy"),
        (on_floats(aten.alias.default), "alias"),
        (on_floats(aten.slice.Tensor, 1, 0, LAST), "slice.Tensor"),
        (on_floats(aten.slice.Tensor, 2), "slice.Tensor"),
        (on_floats(aten.expand.default, [1, 4, 16]), "expand"),
        (on_floats(aten.view.default, [1, 4, 16]), "view"),
    ],
)
def test_what_returns_its_input_goes(write: Write, name: str) -> None:
    check_pass(lambda: hand_model(write), Normalize(), gone=[name], rewrites=1, atol=0)


@pytest.mark.parametrize(
    "write",
    [
        on_floats(aten.mul.Tensor, 2.0),
        on_floats(aten.div.Tensor, -1),
        on_floats(aten.add.Tensor, 0.0),  # -0.0 + 0 is 0.0
        on_floats(aten.add.Tensor, 1),
        on_ids(aten.mul.Tensor, 1.0),  # becomes float
        on_ids(aten.div.Tensor, 1),  # becomes float
        on_floats(aten._to_copy.default, dtype=torch.float64),
        on_floats(aten.slice.Tensor, 1, 1, LAST),
        on_floats(aten.slice.Tensor, 1, 0, 3),
        on_floats(aten.slice.Tensor, 1, 0, LAST, 2),
        on_floats(aten.expand.default, [2, 4, 16]),
        on_floats(aten.view.default, [4, 16]),
        on_floats(aten.transpose.int, 0, 0),
        on_floats(aten.neg.default),
    ],
)
def test_must_not_fire(write: Write) -> None:
    must_not_fire(lambda: hand_model(write), Normalize())


def twice(first: tuple[Any, ...], second: tuple[Any, ...]) -> Write:
    """`first(x) + second(x)`."""

    def write(p: Program, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        x = floats(p, tokens)
        return op(p, aten.add.Tensor, *(op(p, target, x, *args) for target, *args in (first, second)))

    return write


def test_equal_things_are_computed_once() -> None:
    write = twice((aten.unsqueeze.default, 1), (aten.unsqueeze.default, 1))
    program = check_pass(lambda: hand_model(write), Normalize(), rewrites=1, atol=0)
    assert_golden(
        program.models["target"].graph,
        """
        tokens: i64[1, 4] = input(tokens)
        positions: i64[1, 4] = input(positions)
        table: f32[16, 16] = weight(table)
        embedding_default: f32[1, 4, 16] = embedding(table, tokens)
        unsqueeze_default: f32[1, 1, 4, 16] = unsqueeze(embedding_default, 1)
        add_tensor: f32[1, 1, 4, 16] = add.Tensor(unsqueeze_default, unsqueeze_default)
        return [add_tensor]
        """,
    )


@pytest.mark.parametrize(
    "first, second",
    [
        ((aten.unsqueeze.default, 0), (aten.unsqueeze.default, 1)),
        ((aten.mul.Tensor, 2), (aten.mul.Tensor, 3)),
        ((aten.pow.Tensor_Scalar, 2), (aten.pow.Tensor_Scalar, 2.0)),  # numbers keep their type
        ((aten.sin.default,), (aten.cos.default,)),
    ],
)
def test_different_things_stay_apart(first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
    must_not_fire(lambda: hand_model(twice(first, second)), Normalize())


def test_chains_of_equal_things_fold_at_once() -> None:
    def write(p: Program, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        x = floats(p, tokens)
        ends = [op(p, aten.neg.default, op(p, aten.sin.default, x)) for _ in range(3)]
        return op(p, aten.add.Tensor, op(p, aten.add.Tensor, ends[0], ends[1]), ends[2])

    check_pass(lambda: hand_model(write), Normalize(), rewrites=4, atol=0)


def test_dead_code_counts() -> None:
    def write(p: Program, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        op(p, aten.cumsum.default, positions, 1)
        return floats(p, tokens)

    check_pass(lambda: hand_model(write), Normalize(), gone=["cumsum"], rewrites=1, atol=0)


def test_two_uses_of_what_goes() -> None:
    """The identity is read by another op and is the output's part as well."""

    def write(p: Program, tokens: fx.Node, positions: fx.Node) -> fx.Node:
        same = op(p, aten.mul.Tensor, floats(p, tokens), 1.0)
        return op(p, aten.add.Tensor, op(p, aten.neg.default, same), op(p, aten.mul.Tensor, same, 3.0))

    check_pass(lambda: hand_model(write), Normalize(), rewrites=1, atol=0)


def test_on_captured_models() -> None:
    passes = step_passes(tree=DraftTree.chain(1), rule="greedy", drafter=parse_drafter("model"))
    make = lambda: until("normalize", passes)  # noqa: E731
    rewrites = Normalize().run(make())
    assert rewrites > 0
    check_pass(make, Normalize(), rewrites=rewrites, atol=0)
