"""The walk along the target's choices, against a plain loop."""

from __future__ import annotations

import pytest
import torch
from helpers import oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.passes.accept.walk import path_to, walk
from specc.tree import DraftTree

TREES = [
    DraftTree.chain(0),
    DraftTree.chain(3),
    DraftTree.from_widths((2, 2)),
    DraftTree.from_widths((3, 2, 1)),
    DraftTree.from_paths([(0,), (1,), (1, 0), (1, 1), (1, 1, 0)]),
]


@settings(max_examples=40, deadline=None)
@given(tree=st.sampled_from(TREES), vocab=st.integers(1, 4), seed=st.integers(0, 10**6), limits=st.booleans())
def test_equals_the_loop(tree: DraftTree, vocab: int, seed: int, limits: bool) -> None:
    rows, generator = 40, torch.Generator().manual_seed(seed)
    choices, tokens = (torch.randint(0, vocab, (rows, len(tree)), generator=generator) for _ in range(2))
    valid = torch.ones(rows, len(tree), dtype=torch.bool)
    if limits:
        valid = torch.rand(rows, len(tree), generator=generator) < 0.8
    tables = torch.tensor([tree.parents]), torch.tensor([tree.depths])
    path, accepted, block = walk(choices, tokens, *tables, valid, depth=tree.depth)
    assert path.shape == block.shape == (rows, tree.depth + 1)
    for row in range(rows):
        expected, emitted = oracle.walk(choices[row].tolist(), tokens[row].tolist(), tree.parents, valid[row].tolist())
        assert path[row, : len(expected)].tolist() == expected
        assert set(path[row, len(expected) :].tolist()) <= {expected[-1]}, "past the end the path repeats the last"
        assert int(accepted[row]) == len(expected) - 1
        assert block[row, : len(emitted)].tolist() == emitted


def test_the_roots_entry_of_valid_is_not_read() -> None:
    tokens = choices = torch.tensor([[1, 2]])
    tables = torch.tensor([[0, 0]]), torch.tensor([[0, 1]])
    choices = torch.tensor([[2, 3]])
    _, accepted, block = walk(choices, tokens, *tables, torch.tensor([[False, True]]), depth=1)
    assert int(accepted) == 1 and block.tolist() == [[2, 3]]


def test_an_orphan_is_not_accepted() -> None:
    """A grandchild that agrees under a child that does not."""
    tree = DraftTree.chain(2)
    tokens, choices = torch.tensor([[1, 5, 3]]), torch.tensor([[2, 3, 4]])
    tables = torch.tensor([tree.parents]), torch.tensor([tree.depths])
    _, accepted, block = walk(choices, tokens, *tables, torch.ones(1, 3).bool(), depth=2)
    assert int(accepted) == 0 and block[0, 0] == 2


@pytest.mark.parametrize("behind, node", [((9, 9), 1), ((9, 7), 2)])
def test_siblings_that_repeat_a_token(behind: tuple[int, int], node: int) -> None:
    """Both twins agree with the root's choice; the one with a right child wins, else the lower index."""
    tree = DraftTree.from_widths((2, 1))
    tokens = torch.tensor([[1, 5, 5, *behind]])
    choices = torch.tensor([[5, 7, 7, 8, 8]])
    tables = torch.tensor([tree.parents]), torch.tensor([tree.depths])
    path, accepted, _ = walk(choices, tokens, *tables, torch.ones(1, 5).bool(), depth=2)
    assert path[0, 1] == node and int(accepted) == 1 + (behind[node - 1] == 7)


def test_rows_may_have_trees_of_their_own() -> None:
    parents, depths = torch.tensor([[0, 0, 1], [0, 0, 0]]), torch.tensor([[0, 1, 2], [0, 1, 1]])
    tokens, choices = torch.tensor([[1, 2, 3], [1, 4, 2]]), torch.tensor([[2, 3, 9], [2, 9, 6]])
    path, accepted, block = walk(choices, tokens, parents, depths, torch.ones(2, 3).bool(), depth=2)
    assert accepted.tolist() == [2, 1]
    assert block[0].tolist() == [2, 3, 9] and block[1, :2].tolist() == [2, 6]
    assert path.tolist() == [[0, 1, 2], [0, 2, 2]]


def test_path_to_the_root_itself() -> None:
    tree = DraftTree.chain(2)
    tables = torch.tensor([tree.parents]), torch.tensor([tree.depths])
    path, accepted, block = path_to(
        torch.tensor([[0]]), torch.tensor([[8]]), torch.tensor([[1, 2, 3]]), *tables, depth=2
    )
    assert path.tolist() == [[0, 0, 0]] and accepted.tolist() == [0] and block[0, 0] == 8
