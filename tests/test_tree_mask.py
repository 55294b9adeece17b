"""TreeMask: the tree as constants."""

from __future__ import annotations

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand
from helpers.check import check_pass
from helpers.decoding import built

from specc.passes.read_root import ReadRoot
from specc.passes.tree_mask import TreeMask, label
from specc.program import Level, Program
from specc.tree import DraftTree

TREES = [
    DraftTree.chain(0),
    DraftTree.chain(3),
    DraftTree.from_widths((2, 2)),
    DraftTree.from_paths([(0,), (1,), (1, 0), (1, 1), (1, 1, 0)]),
]
NAMES = ["parents", "depths", "ancestors"]


def rooted() -> Program:
    program = hand(Level.CAPTURED)
    ReadRoot().run(program)
    return program


@pytest.mark.parametrize("tree", TREES)
def test_tables(tree: DraftTree) -> None:
    program = check_pass(rooted, TreeMask(tree=tree), rewrites=1, atol=0, new_outputs=NAMES, new_weights=3)
    out = built(program)({"history": torch.zeros(2, 8).long(), "target_length": torch.zeros(2).long()})
    parents, depths, ancestors = oracle.tree_tables(tree.paths)
    assert out["parents"].tolist() == [parents] and out["depths"].tolist() == [depths]
    assert out["ancestors"].dtype == torch.bool and out["ancestors"].tolist() == [ancestors]


def test_names_tell_trees_apart() -> None:
    """Programs of one engine share the store: one name, one tree."""
    assert len({label(tree) for tree in TREES}) == len(TREES)
    assert label(DraftTree.from_widths((1, 1))) == label(DraftTree.chain(2))
    first, second = rooted(), rooted()
    second.weights = first.weights
    for program, tree in ((first, TREES[1]), (second, TREES[2])):
        TreeMask(tree=tree).run(program)
    assert len(first.weights.tensors) == 6
