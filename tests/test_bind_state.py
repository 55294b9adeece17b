"""BindState: caches written in place behind every read, noise as integer ops."""

from __future__ import annotations

import pytest
import torch
from helpers.by_hand import hand, op
from helpers.check import assert_golden, check_pass
from helpers.decoding import built, until
from torch import Tensor

from specc.drafter import parse_drafter
from specc.errors import PassError
from specc.passes import step_passes
from specc.passes.bind_state import BindState
from specc.passes.dump import operator_name
from specc.passes.levels import check
from specc.philox import uniform
from specc.program import Level, Program
from specc.tree import DraftTree


def writing() -> Program:
    """One cache that is read and written at each row's start."""
    program = hand(batch=2, slots=6)
    cache = program.input("target_k_0", (2, 1, 6, 1), torch.float32)
    rows = program.input("rows", (2, 1, 2, 1), torch.float32)
    start = program.input("start", (2,), torch.int64)
    program.give(target_k_0=op(program, torch.ops.specc.kv_update.default, cache, rows, start))
    program.give(total=op(program, torch.ops.aten.sum.dim_IntList, cache, [2]))
    return program


def state() -> dict[str, Tensor]:
    cache = torch.arange(12.0).view(2, 1, 6, 1)
    return {"target_k_0": cache, "rows": -torch.ones(2, 1, 2, 1), "start": torch.tensor([0, 4])}


def test_in_place() -> None:
    program = check_pass(
        writing, BindState(), gone=["specc::kv_update"], rewrites=1, atol=None, lost_outputs=["target_k_0"]
    )
    given = state()
    out = built(program)(given)
    assert given["target_k_0"].flatten().tolist() == [-1, -1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1]
    assert out["total"].flatten().tolist() == [15, 51], "read before it is written"
    assert_golden(
        program.graph,
        """
        target_k_0: f32[2, 1, 6, 1] = input(target_k_0)
        rows: f32[2, 1, 2, 1] = input(rows)
        start: i64[2] = input(start)
        sum_dim_int_list: f32[2, 1, 1] = sum.dim_IntList(target_k_0, [2])
        unsqueeze_default: i64[2, 1] = unsqueeze(start, 1)
        arange_default: i64[2] = arange(2, device=cpu, pin_memory=False)
        add_tensor: i64[2, 2] = add.Tensor(unsqueeze_default, arange_default)
        arange_default_1: i64[2] = arange(2, device=cpu, pin_memory=False)
        unsqueeze_default_1: i64[2, 1] = unsqueeze(arange_default_1, 1)
        unsqueeze_default_2: i64[2, 1, 1] = unsqueeze(unsqueeze_default_1, 2)
        arange_default_2: i64[1] = arange(1, device=cpu, pin_memory=False)
        unsqueeze_default_3: i64[1, 1] = unsqueeze(arange_default_2, 0)
        unsqueeze_default_4: i64[1, 1, 1] = unsqueeze(unsqueeze_default_3, 2)
        unsqueeze_default_5: i64[2, 1, 2] = unsqueeze(add_tensor, 1)
        index_put__default: f32[2, 1, 6, 1] = index_put_(target_k_0, INDEX, rows)
        return {total: sum_dim_int_list}
        """.replace("INDEX", "[unsqueeze_default_2, unsqueeze_default_4, unsqueeze_default_5]"),
    )


def test_functional() -> None:
    program = check_pass(writing, BindState(form="functional"), rewrites=0, atol=0)
    given = state()
    out = built(program)(given)
    assert torch.equal(given["target_k_0"], state()["target_k_0"]), "the input stays"
    assert out["target_k_0"].flatten().tolist() == [-1, -1, 2, 3, 4, 5, 6, 7, 8, 9, -1, -1]


def drawing() -> Program:
    program = hand(batch=2)
    seed, sample = (program.input(name, (2,), torch.int64) for name in ("seed", "sample"))
    position = program.input("position", (2, 3), torch.int64)
    program.give(noise=op(program, torch.ops.specc.noise.default, seed, sample, position, 2, 5))
    return program


def test_noise_becomes_integer_ops_bit_for_bit() -> None:
    program = check_pass(drawing, BindState(), gone=["specc::noise"], rewrites=1, atol=0)
    given = {"seed": torch.tensor([-7, 2**45]), "sample": torch.tensor([0, 3]), "position": torch.arange(6).view(2, 3)}
    assert torch.equal(built(program)(given)["noise"], uniform(*given.values(), 2, 5))


def test_nothing_of_ours_is_left_in_a_step() -> None:
    passes = step_passes(tree=DraftTree.from_widths((2, 1)), rule="coupled", drafter=parse_drafter("model"))
    program = until(None, passes)
    names = {operator_name(n.target) for n in program.graph.nodes if n.op == "call_function"}
    assert not [n for n in names if n.startswith("specc::")]
    told = {"path", "logits", "processed"}
    assert set(program.values) == {"report", "target_length", "drafter_length", "active", *told}
    written = [
        str(n.args[0].target)
        for n in program.graph.nodes
        if operator_name(n.target) == "index_put_" and n.args[0].op == "placeholder"
    ]
    assert sorted(written) == sorted(
        f"{m}_{kind}_{layer}" for m in ("target", "drafter") for kind in "kv" for layer in (0, 1)
    )
    first = min(i for i, n in enumerate(program.graph.nodes) if operator_name(n.target) == "index_put_")
    behind = list(program.graph.nodes)[first:]
    caches = {n for n in program.graph.find_nodes(op="placeholder") if "_k_" in n.target or "_v_" in n.target}
    readers = [n for n in behind if operator_name(n.target) != "index_put_" and caches & set(n.all_input_nodes)]
    assert not readers, "a cache is read behind a write"


@pytest.mark.parametrize("make, op_name", [(writing, "specc::kv_update"), (drawing, "specc::noise")])
def test_the_grammar_names_what_was_forgotten(make: object, op_name: str) -> None:
    program = make()  # type: ignore[operator]
    with pytest.raises(PassError, match=f"op that should have been lowered at level ENGINE: .*{op_name}"):
        check(program, Level.ENGINE)
    check(program, Level.ENGINE, frozenset({torch.ops.specc.kv_update.default, torch.ops.specc.noise.default}))
