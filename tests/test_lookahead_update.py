"""LookaheadUpdate: the window goes up a level, and each column leaves an n-gram."""

from __future__ import annotations

import torch
from helpers.check import assert_shapes
from helpers.decoding import build, until

from specc.drafter import parse_drafter
from specc.passes import step_passes
from specc.passes.lookahead_update import LookaheadUpdate, advance
from specc.tree import DraftTree

TREE = DraftTree.from_widths((2, 1))
NAME = "lookahead:3,3,2"


def test_by_hand() -> None:
    moved = torch.tensor([[[1, 2, 3], [4, 5, 6]]]).repeat(2, 1, 1)
    logits = torch.nn.functional.one_hot(torch.tensor([[7, 8, 9]] * 2), 10).float()
    window, pool = torch.zeros(2, 2, 3).long(), torch.zeros(2, 6, 3).long()
    state = window, pool, torch.tensor([3, 3]), torch.tensor([11, 11]), torch.tensor([True, False])
    window, pool, made_for = advance(moved, logits, *state)
    assert window.tolist() == [[[4, 5, 6], [7, 8, 9]], [[0, 0, 0]] * 2]
    assert (pool[0] - 1).tolist() == [[-1] * 3] * 3 + [[1, 4, 7], [2, 5, 8], [3, 6, 9]]
    assert pool[1].sum() == 0 and made_for.tolist() == [12, 3]


def test_the_oldest_go_first() -> None:
    pool = torch.arange(1, 5).view(1, 4, 1).repeat(1, 1, 2)
    logits = torch.zeros(1, 2, 10)
    one = torch.ones(1).long()
    _, pool, _ = advance(torch.full((1, 1, 2), 5), logits, torch.zeros(1, 1, 2).long(), pool, one, one, one > 0)
    assert pool[0].tolist() == [[3, 3], [4, 4], [6, 1], [6, 1]]


def test_state_goes_out_and_nothing_else_does() -> None:
    passes = step_passes(tree=TREE, rule="greedy", drafter=parse_drafter(NAME))
    program = until("commit", passes)
    assert LookaheadUpdate().run(program) == 0, "once is enough"
    assert_shapes(program.graph)
    outputs = build("step", tree=TREE, drafter=NAME).outputs
    assert {"window", "ngrams", "window_at"} <= set(outputs)
    assert not {name for name in outputs if name.startswith("more")}


def test_only_rows_that_are_read_reach_the_head() -> None:
    """5 rows of the tree and 3 of the window's last level; the other 3 need no logits."""
    passes = step_passes(tree=TREE, rule="greedy", drafter=parse_drafter(NAME))
    values = [node.meta.get("val") for node in until("share_weights", passes).graph.nodes]
    rows = {v.shape[1] for v in values if isinstance(v, torch.Tensor) and v.ndim == 3 and v.shape[2] == 128}
    assert 8 in rows and 11 not in rows
