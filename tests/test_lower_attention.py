"""LowerAttention: attention over the cache and the rows of a step, against attention over everything at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand, op
from helpers.check import check_pass
from helpers.decoding import built
from torch import Tensor

from specc.attention import two_part_attention
from specc.passes.lower_attention import LowerAttention
from specc.program import Block, Level, Program

B, H, G, T, D, SLOTS = 2, 4, 2, 3, 8, 16
LENGTHS = (5, 0)
TREE = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]).bool()  # two siblings under a root


def program_of(
    *, values: int = D, window: int | None = None, softcap: float | None = None, sinks: bool = False, blocks: int = 1
) -> Program:
    """One layer over T rows; with two blocks the second sees the rows of the first as well."""
    program = hand(Level.FUSED, batch=B, slots=SLOTS)
    length = program.input("target_length", (B,), torch.int64)
    prior: list[Block] = []
    for index in range(blocks):
        q = program.input(f"q{index}", (B, H, T, D), torch.float32)
        k = program.input(f"k{index}", (B, G, T, D), torch.float32)
        v = program.input(f"v{index}", (B, G, T, values), torch.float32)
        sink = [program.input("sinks", (H,), torch.float32)] if sinks else [None]
        marker = op(program, torch.ops.specc.attend.default, q, k, v, 0, 0.3, window, softcap, *sink)
        positions = program.input(f"positions{index}", (B, T), torch.int64)
        mask = program.input(f"mask{index}", (1, T, T * (index + 1)), torch.bool)
        block = Block("target", length, positions, mask, list(prior), [marker])
        program.blocks.append(block)
        prior.append(block)
        program.give(**{f"out{index}": op(program, torch.ops.aten.neg.default, marker)})
    return program


def state(program: Program, blocks: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    given = {}
    for node in program.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        if value.dtype == torch.float32:
            given[node.target] = torch.randn(tuple(value.shape), generator=generator)
    depth = torch.tensor([0, 1, 1])
    lengths = torch.tensor(LENGTHS)
    for index in range(blocks):
        given[f"positions{index}"] = lengths[:, None] + depth + 2 * index
        given[f"mask{index}"] = torch.cat([TREE] * (index + 1), 2)
    return {**given, "target_length": lengths, "bucket": torch.zeros(9, dtype=torch.uint8)}


def reference(given: dict[str, Tensor], index: int, window: int | None, **options: Any) -> Tensor:
    """Cache and rows side by side, one row of the batch at a time."""
    out = []
    for row, length in enumerate(LENGTHS):
        blocks = range(index + 1)
        keys = torch.cat([given["target_k_0"][row, :, :length], *(given[f"k{i}"][row] for i in blocks)], 1)[None]
        values = torch.cat([given["target_v_0"][row, :, :length], *(given[f"v{i}"][row] for i in blocks)], 1)[None]
        seen = torch.cat([torch.ones(T, length).bool(), given[f"mask{index}"][0]], 1)
        if window is not None:
            where = torch.cat([torch.arange(length), *(given[f"positions{i}"][row] for i in blocks)])
            seen &= given[f"positions{index}"][row][:, None] - where < window
        out.append(oracle.attention(given[f"q{index}"][row : row + 1], keys, values, seen, 0.3, **options))
    return torch.cat(out)


CASES = [
    {},
    {"values": 6},
    {"window": 3},
    {"window": 1},
    {"softcap": 2.0},
    {"sinks": True},
    {"blocks": 2},
    {"blocks": 2, "window": 4, "softcap": 5.0, "sinks": True},
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_one_softmax(case: dict[str, Any]) -> None:
    blocks = case.get("blocks", 1)
    caches = ["bucket", "target_k_0", "target_v_0"]
    make: Callable[[], Program] = lambda: program_of(**case)  # noqa: E731
    program = check_pass(make, LowerAttention(), gone=["specc::attend"], rewrites=blocks, atol=None, new_inputs=caches)
    given = state(program, blocks)
    out = built(program)(given)
    sinks = given.get("sinks") if case.get("sinks") else None
    for index in range(blocks):
        expected = reference(given, index, case.get("window"), softcap=case.get("softcap"), sinks=sinks)
        torch.testing.assert_close(-out[f"out{index}"], expected, rtol=0, atol=2e-6)


def test_slots_past_the_length_are_never_seen() -> None:
    program = program_of()
    LowerAttention().run(program)
    given = state(program)
    run = built(program)
    first = run(given)["out0"]
    for kind in "kv":
        for row, length in enumerate(LENGTHS):
            given[f"target_{kind}_0"][row, :, length:] = 1e4
    assert torch.equal(run(given)["out0"], first)
    for slots in (5, 12, SLOTS - 1):
        torch.testing.assert_close(
            run(given, bucket=torch.zeros(slots, dtype=torch.uint8))["out0"], first, rtol=0, atol=1e-6
        )


def test_siblings_do_not_see_each_other() -> None:
    program = program_of()
    LowerAttention().run(program)
    given, run = state(program), built(program)
    first = run(given)["out0"].clone()
    given["v0"][:, :, 2] += 9.0
    second = run(given)["out0"]
    assert torch.equal(first[:, :, :2], second[:, :, :2]) and not torch.equal(first[:, :, 2], second[:, :, 2])


def test_cache_is_not_written() -> None:
    program = program_of(blocks=2)
    LowerAttention().run(program)
    given = state(program, 2)
    before = {k: v.clone() for k, v in given.items()}
    built(program)(given)
    assert all(torch.equal(given[k], before[k]) for k in given)


def test_causal_block_without_a_cache_is_the_markers_own_body() -> None:
    generator = torch.Generator().manual_seed(2)
    q, k, v = (torch.randn(B, n, T, D, generator=generator) for n in (H, G, G))
    empty = torch.zeros(B, G, SLOTS, D)
    for window in (None, 2):
        got = two_part_attention(
            q,
            empty,
            empty,
            k,
            v,
            length=torch.zeros(B).long(),
            slots=4,
            mask=torch.ones(1, T, T).tril().bool(),
            scale=0.3,
            window=window,
            positions=torch.arange(T).expand(B, -1),
        )
        torch.testing.assert_close(got, torch.ops.specc.attend(q, k, v, 0, 0.3, window), rtol=0, atol=2e-6)


def test_bfloat16_rows_keep_their_dtype() -> None:
    q, k, v = (torch.randn(B, n, T, D, generator=torch.Generator().manual_seed(n)).bfloat16() for n in (H, G, G))
    cache = torch.randn(B, G, SLOTS, D, generator=torch.Generator().manual_seed(9)).bfloat16()
    options = {"length": torch.tensor(LENGTHS), "slots": 9, "mask": TREE, "scale": 0.3}
    got = two_part_attention(q, cache, cache, k, v, **options)
    exact = two_part_attention(*(x.float() for x in (q, cache, cache, k, v)), **options)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), exact, rtol=0, atol=0.03)


def test_nothing_to_lower() -> None:
    program = hand(Level.FUSED)
    program.give(out=program.input("x", (2,), torch.float32))
    assert LowerAttention().run(program) == 0
    assert [n.target for n in program.graph.find_nodes(op="placeholder")] == ["x"]
