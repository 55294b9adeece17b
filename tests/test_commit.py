"""Commit: rows of the path, tokens and lengths become the state, once."""

from __future__ import annotations

import pytest
import torch
from helpers.by_hand import hand, op
from helpers.check import assert_shapes
from helpers.decoding import built
from torch import Tensor

from specc.errors import PassError
from specc.passes import run
from specc.passes.accept_draft import AcceptDraft
from specc.passes.commit import Commit
from specc.passes.manager import check_order
from specc.program import Block, Level, Program

ROWS, NODES, DEPTH, SLOTS = 3, 5, 2, 12
COMMITTED = ["report", "target_length", "active", "history", "target_k_0", "target_v_0"]


def before() -> Program:
    """A step in which path and block are inputs, and one layer's rows as well."""
    program = hand(Level.CAPTURED, batch=ROWS, slots=SLOTS)
    shape = (ROWS, 2, NODES, 4)
    q, k, v = (program.input(name, shape, torch.float32) for name in ("q", "k", "v"))
    marker = op(program, torch.ops.specc.attend.default, q, k, v, 0, 0.5)
    length = program.input("target_length", (ROWS,), torch.int64)
    program.blocks.append(Block("target", length, length, length, [], [marker]))
    for name, sizes in (
        ("path", (ROWS, DEPTH + 1)),
        ("accepted", (ROWS,)),
        ("block", (ROWS, DEPTH + 1)),
        ("offered", (ROWS,)),
    ):
        program.give(**{name: program.input(f"given_{name}", sizes, torch.int64)})
    program.give(drafter_length=program.input("caught_up", (ROWS,), torch.int64))
    return program


def state(**changes: Tensor) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    rows = {name: torch.randn(ROWS, 2, NODES, 4, generator=generator) for name in "qkv"}
    cache = {f"target_{kind}_0": torch.randn(ROWS, 2, SLOTS, 4, generator=generator) for kind in "kv"}
    given = {
        "given_path": torch.tensor([[0, 2, 4], [0, 0, 0], [0, 1, 1]]),
        "given_accepted": torch.tensor([2, 0, 1]),
        "given_block": torch.tensor([[11, 12, 13], [21, 21, 21], [31, 32, 32]]),
        "given_offered": torch.tensor([2, 2, 1]),
        "caught_up": torch.tensor([5, 6, 7]),
        "target_length": torch.tensor([4, 5, 6]),
        "history": torch.arange(ROWS * SLOTS).view(ROWS, SLOTS),
        "limit": torch.full((ROWS,), SLOTS),
        "eos": torch.full((ROWS, 8), -1),
        "active": torch.ones(ROWS, dtype=torch.bool),
    }
    return {**rows, **cache, **given, **changes}


def committed(given: dict[str, Tensor]) -> dict[str, Tensor]:
    program = before()
    assert Commit().run(program) == 1
    program.level = Level.FUSED
    assert_shapes(program.graph)
    assert set(program.values) == {*COMMITTED, "drafter_length", "path"}
    return built(program)({k: v.clone() for k, v in given.items()})


def test_rows_of_the_path_are_written_behind_the_length() -> None:
    given = state()
    out = committed(given)
    for kind in "kv":
        old, new = given[f"target_{kind}_0"], out[f"target_{kind}_0"]
        for row in range(ROWS):
            length, path = int(given["target_length"][row]), given["given_path"][row]
            expected = old[row].clone()
            expected[:, length : length + DEPTH + 1] = given[kind][row][:, path]
            assert torch.equal(new[row], expected)
            count = int(out["report"][row, DEPTH + 1])
            assert torch.equal(new[row][:, :length], old[row][:, :length])
            assert torch.equal(new[row][:, length : length + count], given[kind][row][:, path[:count]])


def test_tokens_and_lengths() -> None:
    given = state()
    out = committed(given)
    assert out["report"].tolist() == [[11, 12, 13, 3, 2, 2], [21, 21, 21, 1, 0, 2], [31, 32, 32, 2, 1, 1]]
    assert out["target_length"].tolist() == [7, 6, 8]
    assert out["drafter_length"].tolist() == [5, 6, 7], "what the drafter caught up with stands"
    for row, (length, count) in enumerate(((4, 3), (5, 1), (6, 2))):
        text = out["history"][row].flatten().tolist()  # written as a cache of one head and one number a slot
        assert text[: length + 1] == given["history"][row, : length + 1].tolist()
        assert text[length + 1 : length + 1 + count] == given["given_block"][row, :count].tolist()
    assert out["active"].tolist() == [True] * 3


def test_inactive_rows_emit_nothing() -> None:
    out = committed(state(active=torch.tensor([False, True, False])))
    assert out["report"][:, DEPTH + 1 :].tolist() == [[0, 0, 0], [1, 0, 2], [0, 0, 0]]
    assert out["target_length"].tolist() == [4, 6, 6] and out["active"].tolist() == [False, True, False]


@pytest.mark.parametrize("room, count, accepted", [(0, 0, 0), (1, 1, 1), (2, 2, 2), (3, 3, 2), (9, 3, 2)])
def test_limit(room: int, count: int, accepted: int) -> None:
    limit = torch.tensor([4 + 1 + room, 99, 99])
    out = committed(state(limit=limit))
    assert out["report"][0, DEPTH + 1 :].tolist() == [count, accepted, 2]
    assert bool(out["active"][0]) == (room > 3)


def test_end_of_text_cuts_tokens_rows_and_counters() -> None:
    eos = torch.full((ROWS, 8), -1)
    eos[:, 0], eos[:, 1] = 12, 77
    out = committed(state(eos=eos))
    assert out["report"][:, DEPTH + 1 :].tolist() == [[2, 2, 2], [1, 0, 2], [2, 1, 1]]
    assert out["active"].tolist() == [False, True, True]
    assert out["target_length"].tolist() == [6, 6, 8]


def test_graph_writes_each_cache_once() -> None:
    program = before()
    Commit().run(program)
    updates = program.graph.find_nodes(op="call_function", target=torch.ops.specc.kv_update.default)
    assert len(updates) == 3, "keys, values and history"
    assert {str(n.args[0].target) for n in updates[:2]} == {"target_k_0", "target_v_0"}


def test_runs_once_and_needs_acceptance() -> None:
    with pytest.raises(PassError, match="commit reads CAPTURED but finds FUSED"):
        check_order([Commit()], Level.FUSED)
    with pytest.raises(PassError, match="commit needs accept_draft before it"):
        run(before(), [Commit()])
    assert AcceptDraft in Commit.needs
