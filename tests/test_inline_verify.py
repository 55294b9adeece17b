"""InlineVerify: the target over the tree, every node behind its own path only."""

from __future__ import annotations

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand
from helpers.check import assert_shapes
from helpers.decoding import Session, fresh, lowered, pair, prompt
from torch import fx

from specc.errors import PassError
from specc.passes import inputs
from specc.passes.inline_verify import InlineVerify, known_ids
from specc.passes.manager import _run_one, check_order
from specc.passes.read_root import ReadRoot
from specc.passes.tree_mask import TreeMask
from specc.program import Level, Program
from specc.tree import DraftTree

TREES = [DraftTree.chain(0), DraftTree.chain(3), DraftTree.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 1), (1, 1, 0)])]


def before(tree: DraftTree) -> Program:
    """The drafted tokens are an input."""
    program = fresh(pair(), own_store=True)
    ReadRoot().run(program)
    TreeMask(tree=tree).run(program)
    program.give(tokens=program.input("drafted", (1, len(tree)), torch.int64))
    inputs.vector(program, "target_length")
    return program


@pytest.mark.parametrize("tree", TREES, ids=len)
def test_logits_of_every_path(tree: DraftTree) -> None:
    program = before(tree)
    assert _run_one(program, InlineVerify()) == 1
    assert InlineVerify().run(program) == 0
    assert_shapes(program.graph)
    text, drafts = prompt(12), prompt(len(tree) - 1, seed=4) if len(tree) > 1 else []
    session = Session(tree=tree).start([text])
    tokens = [text[-1], *drafts]
    state = {**session.state, "drafted": torch.tensor([tokens])}
    for kind in "kv":  # what lies past the length is never seen
        for layer in (0, 1):
            state[f"target_{kind}_{layer}"][:, :, len(text) - 1 :] = 50.0
    logits = lowered(program)(state, bucket=torch.zeros(len(text) + 3, dtype=torch.uint8))["logits"]
    assert logits.shape == (1, len(tree), 128)
    for node, path in enumerate(tree.paths):
        branch = [tokens[tree.paths.index(path[:i])] for i in range(1, len(path) + 1)]
        expected = oracle.next_logits(pair().target, text + branch)
        torch.testing.assert_close(logits[0, node], expected, rtol=0, atol=5e-5)


def test_needs_the_tree() -> None:
    with pytest.raises(PassError, match="inline_verify needs read_root .* inline_verify needs tree_mask before it"):
        check_order([InlineVerify()], Level.CAPTURED)


def test_logits_must_belong_to_the_tokens() -> None:
    program = hand(Level.CAPTURED)
    program.give(tokens=program.input("t", (2, 3), torch.int64), logits=program.input("l", (2, 4, 8), torch.float32))
    with pytest.raises(PassError, match=r"logits \(2, 4, 8\) do not belong to tokens \(2, 3\)"):
        InlineVerify().ensures(program)


def known(size: int, dtype: torch.dtype) -> tuple[fx.Node, fx.Node]:
    program = hand(Level.CAPTURED)
    logits = program.input("logits", (2, 3, 8), dtype)
    return logits, known_ids(program, None, logits, size)


def test_padded_ids_are_cut_and_numbers_are_float32() -> None:
    _, cut = known(6, torch.bfloat16)
    assert cut.meta["val"].shape == (2, 3, 6) and cut.meta["val"].dtype == torch.float32


def test_nothing_to_cut() -> None:
    given, same = known(8, torch.float32)
    assert same is given
