"""FuseLinears: products of one input side by side, where nothing is stored twice by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from helpers.by_hand import hand, op
from helpers.check import assert_golden, check_pass, must_not_fire
from helpers.decoding import until
from torch import fx

from specc.drafter import parse_drafter
from specc.errors import PassError
from specc.passes import step_passes
from specc.passes.dump import operator_name
from specc.passes.fuse_linears import FuseLinears
from specc.program import Program
from specc.tree import DraftTree

aten = torch.ops.aten


def weight(program: Program, name: str, out: int, dtype: torch.dtype = torch.float32) -> fx.Node:
    seed = sum(map(ord, name))
    return program.constant(name, torch.randn(out, 3, generator=torch.Generator().manual_seed(seed)).to(dtype))


def product(program: Program, x: fx.Node, name: str, out: int, bias: bool = False) -> fx.Node:
    more = [program.constant(f"{name}_bias", torch.arange(float(out)))] if bias else []
    node = op(program, aten.linear.default, x, weight(program, name, out), *more)
    program.give(**{name.replace(".", "_"): op(program, aten.neg.default, node)})
    return node


def making(write: Callable[[Program, fx.Node], object]) -> Callable[[], Program]:
    def make() -> Program:
        program = hand()
        write(program, program.input("x", (2, 4, 3), torch.float32))
        return program

    return make


def test_strides_of_what_follows_are_the_real_ones() -> None:
    """Passes that come later trace over them: a `view` that a slice of the joined product does not allow is a copy."""
    program = hand()
    x = program.input("x", (2, 1, 3), torch.float32)
    turned = []
    for name in ("layer.q", "layer.k"):
        heads = op(
            program, aten.view.default, op(program, aten.linear.default, x, weight(program, name, 4)), [2, 1, 2, 2]
        )
        turned.append(op(program, aten.transpose.int, heads, 1, 2))
    program.give(q=turned[0], k=turned[1])
    assert FuseLinears().run(program) == 1
    real = torch.randn(2, 1, 8)[..., :4].reshape(2, 1, 2, 2).transpose(1, 2)
    for node in turned:
        assert (
            [node.meta["val"].stride(dim) for dim in (0, 1, 3)] == [real.stride(dim) for dim in (0, 1, 3)] == [8, 2, 1]
        )


@pytest.mark.parametrize("bias", [False, True])
def test_three_products(bias: bool) -> None:
    def write(p: Program, x: fx.Node) -> None:
        for name, out in (("layer.q", 4), ("layer.k", 2), ("layer.v", 2)):
            product(p, x, name, out, bias)

    program = check_pass(making(write), FuseLinears(), rewrites=1, atol=1e-6, new_weights=1 + bias)
    if not bias:
        assert_golden(
            program.graph,
            """
            x: f32[2, 4, 3] = input(x)
            layer_q_layer_k_layer_v: f32[8, 3] = weight(layer.q+k+v)
            linear_default_3: f32[2, 4, 8] = linear(x, layer_q_layer_k_layer_v)
            slice_tensor: f32[2, 4, 4] = slice.Tensor(linear_default_3, 2, 0, 4)
            slice_tensor_1: f32[2, 4, 2] = slice.Tensor(linear_default_3, 2, 4, 6)
            slice_tensor_2: f32[2, 4, 2] = slice.Tensor(linear_default_3, 2, 6, 8)
            neg_default: f32[2, 4, 4] = neg(slice_tensor)
            neg_default_1: f32[2, 4, 2] = neg(slice_tensor_1)
            neg_default_2: f32[2, 4, 2] = neg(slice_tensor_2)
            return {layer_q: neg_default, layer_k: neg_default_1, layer_v: neg_default_2}
            """.replace("layer_q_layer_k_layer_v", _joined(program)),
        )


def _joined(program: Program) -> str:
    return next(n.name for n in program.graph.find_nodes(op="get_attr"))


def test_view_of_a_part_becomes_reshape() -> None:
    """A part is not contiguous any more."""

    def write(p: Program, x: fx.Node) -> None:
        for name in "ab":
            node = op(p, aten.linear.default, x, weight(p, name, 4))
            p.give(**{name: op(p, aten.view.default, node, [2, 4, 2, 2])})

    check_pass(making(write), FuseLinears(), gone=["view"], rewrites=1, atol=1e-6, new_weights=1)


def test_view_behind_a_view_becomes_reshape() -> None:
    """With several rows and one token, heads in front of tokens are no longer in one piece."""

    def write(p: Program, x: fx.Node) -> None:
        one = op(p, aten.slice.Tensor, x, 1, 0, 1)
        product(p, one, "q", 4)
        heads = op(p, aten.view.default, op(p, aten.linear.default, one, weight(p, "k", 4)), [2, 1, 2, 2])
        p.give(k=op(p, aten.view.default, op(p, aten.transpose.int, heads, 1, 2), [4, 1, 2]))

    program = check_pass(making(write), FuseLinears(), rewrites=1, atol=1e-6, new_weights=1)
    assert len(program.graph.find_nodes(op="call_function", target=aten.reshape.default)) == 2


def test_two_inputs_make_two_products() -> None:
    def write(p: Program, x: fx.Node) -> None:
        y = op(p, aten.sin.default, x)
        for source, names in ((x, "ab"), (y, "cd")):
            for name in names:
                product(p, source, name, 2)

    check_pass(making(write), FuseLinears(), rewrites=2, atol=1e-6, new_weights=2)


def one(p: Program, x: fx.Node) -> None:
    product(p, x, "a", 2)


def other_inputs(p: Program, x: fx.Node) -> None:
    product(p, x, "a", 2)
    product(p, op(p, aten.sin.default, x), "b", 2)


def mixed_bias(p: Program, x: fx.Node) -> None:
    product(p, x, "a", 2)
    product(p, x, "b", 2, bias=True)


def tied(p: Program, x: fx.Node) -> None:
    product(p, x, "a", 4)
    product(p, x, "b", 4)
    ids = p.constant("ids", torch.tensor([[0, 1]]))
    p.give(rows=op(p, aten.embedding.default, p.weight("a"), ids))


def one_weight_twice(p: Program, x: fx.Node) -> None:
    first, second = (op(p, aten.linear.default, x, weight(p, "a", 2)) for _ in range(2))
    p.give(sum=op(p, aten.add.Tensor, first, second))


def computed(p: Program, x: fx.Node) -> None:
    product(p, x, "a", 2)
    p.give(b=op(p, aten.linear.default, x, op(p, aten.neg.default, weight(p, "b", 2))))


@pytest.mark.parametrize(
    "write, reason",
    [
        (one, None),
        (other_inputs, None),
        (mixed_bias, None),
        (tied, "read by other ops as well"),
        (one_weight_twice, "one weight twice"),
        (computed, "the weight is computed"),
    ],
)
def test_must_not_fire(write: Callable[[Program, fx.Node], None], reason: str | None) -> None:
    must_not_fire(making(write), FuseLinears(), reason=reason)


def test_programs_share_the_joined_weight() -> None:
    first, second = hand(), hand()
    second.weights = first.weights
    for program in (first, second):
        x = program.input("x", (2, 4, 3), torch.float32)
        product(program, x, "l.q", 2)
        product(program, x, "l.k", 2)
        FuseLinears().run(program)
    assert first.weight_names() == second.weight_names() == ["l.q+k"]
    assert len(first.weights.tensors) == 3


def joining(*names: str, store: Program | None = None) -> Program:
    """A program in which `FuseLinears` joins these weights; with the weights of another program."""
    program = hand()
    program.weights = store.weights if store else program.weights
    x = program.input("x", (2, 4, 3), torch.float32)
    for name in names:
        product(program, x, name, 2)
    return program


def test_a_joined_weight_is_made_and_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same names are the same content: another program reads none of the 500 MB again."""
    first = joining("l.q", "l.k")
    second = joining("l.q", "l.k", store=first)
    assert FuseLinears().run(first) == 1
    made = first.weights["l.q+k"]
    for op_that_reads in ("equal", "cat"):
        monkeypatch.setattr(torch, op_that_reads, lambda *_: pytest.fail("the weights were read again"))
    assert FuseLinears().run(second) == 1 and second.weights["l.q+k"] is made


def test_one_joined_name_is_one_content() -> None:
    """`l.q` with `l.k`, and `l.q` with `k`, are both called `l.q+k`: the second is never taken for the first."""
    first = joining("l.q", "l.k")
    second = joining("l.q", "k", store=first)
    assert FuseLinears().run(first) == 1
    with pytest.raises(PassError, match=r"weight l\.q\+k is stored .* one name, two tensors"):
        FuseLinears().run(second)
    third = joining("m.q", "m.k")
    third.weights.add("m.q+k", torch.zeros(4, 3))
    with pytest.raises(PassError, match=r"weight m\.q\+k is stored"):
        FuseLinears().run(third)


def test_on_a_step() -> None:
    passes = step_passes(tree=DraftTree.chain(1), rule="greedy", drafter=parse_drafter("model"))
    make = lambda: until("fuse_linears", passes)  # noqa: E731
    count = len([n for n in make().graph.nodes if operator_name(n.target) == "linear"])
    program = check_pass(make, FuseLinears(), rewrites=8, atol=1e-5, new_weights=8)
    after = len([n for n in program.graph.nodes if operator_name(n.target) == "linear"])
    assert count - after == 4 * (2 + 1), "four layers: q, k, v in one and gate, up in one"
