"""ShareWeights: by content, never by name."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.by_hand import hand, op
from helpers.check import assert_golden, check_pass, must_not_fire
from helpers.decoding import pair, until
from torch import Tensor

from specc.drafter import parse_drafter
from specc.passes import step_passes
from specc.passes.share_weights import ShareWeights
from specc.program import Program
from specc.tree import DraftTree

aten = torch.ops.aten


def reading(*tensors: Tensor) -> Callable[[], Program]:
    """A program that reads tensors under the names a, b, c..."""

    def make() -> Program:
        program = hand()
        for name, tensor in zip("abc", tensors, strict=False):
            program.give(**{f"out_{name}": op(program, aten.neg.default, program.constant(name, tensor))})
        return program

    return make


def test_equal_bytes_become_one() -> None:
    one = torch.arange(4.0)
    program = check_pass(reading(one, one.clone(), one + 1), ShareWeights(), rewrites=1, atol=0)
    assert_golden(
        program.graph,
        """
        c: f32[4] = weight(c)
        b: f32[4] = weight(b)
        neg_default: f32[4] = neg(b)
        neg_default_1: f32[4] = neg(b)
        neg_default_2: f32[4] = neg(c)
        return {out_a: neg_default, out_b: neg_default_1, out_c: neg_default_2}
        """,
    )


@pytest.mark.parametrize(
    "first, second",
    [
        (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),  # equal bytes, another dtype
        (torch.zeros(4), torch.zeros(2, 2)),  # another shape
        (torch.zeros(4), -torch.zeros(4)),  # equal numbers, other bytes
        (torch.zeros(4), torch.full((4,), 1e-30)),
    ],
)
def test_must_not_fire(first: Tensor, second: Tensor) -> None:
    must_not_fire(reading(first, second), ShareWeights())


def test_strides_do_not_count() -> None:
    """A transposed copy of equal content is equal content."""
    tensor = torch.arange(6.0).view(2, 3)
    check_pass(reading(tensor, tensor.T.contiguous().T), ShareWeights(), rewrites=1, atol=0)


def test_programs_agree_on_the_name() -> None:
    """Two programs over one store, which meet the equal tensors in another order."""
    first, second = hand(), hand()
    second.weights = first.weights
    for name in "ab":
        first.weights.add(name, torch.ones(3))
    for program, names in ((first, "ab"), (second, "ba")):
        for name in names:
            program.give(**{name: op(program, aten.neg.default, program.weight(name))})
        ShareWeights().run(program)
    assert first.weight_names() == second.weight_names()
    assert len(first.weight_names()) == 1


def test_drafter_that_is_the_target_adds_nothing() -> None:
    passes = step_passes(tree=DraftTree.chain(1), rule="greedy", drafter=parse_drafter("model"))
    program = until("fuse_linears", passes, models=pair("equal"))
    names = [
        n for n in program.weight_names() if "layers" in n or "embed" in n or "head" in n or n.endswith("norm.weight")
    ]
    tensors = {name: program.weights[name] for name in names}
    parameters = {n for n, _ in pair("equal").target.named_parameters()}
    assert len({t.data_ptr() for t in tensors.values()}) == len(names) <= len(parameters)


def test_near_drafter_shares_what_was_not_disturbed() -> None:
    passes = step_passes(tree=DraftTree.chain(1), rule="greedy", drafter=parse_drafter("model"))
    before, after = (until(stem, passes).weight_names() for stem in ("share_weights", "fuse_linears"))
    norms = [n for n in before if n.startswith("drafter.") and "norm" in n]
    assert norms and not set(norms) & set(after), "norms of the drafter are the target's"
    assert [n for n in after if n.startswith("drafter.") and "proj" in n]
