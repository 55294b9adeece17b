"""The automaton in the graph: functions against loops, and texts that obey it for every tree and rule."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from helpers import oracle
from helpers.decoding import PLAIN, Session, build, pair, prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.passes.accept.automaton import follow_block, follow_tree, forbid
from specc.tree import DraftTree

CHAIN, TREE = DraftTree.chain(3), DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0)])
STATES, CLASSES, SIZE = 5, 4, 64


def automaton(seed: int, vocab: int) -> tuple[list[list[int]], list[int]]:
    """A random table, every state with an allowed class, and the class of each token; every class has tokens."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randint(-2, STATES, (STATES, CLASSES), generator=generator).clamp(min=-1).tolist()
    for state, row in enumerate(table):
        if max(row) < 0:
            row[state % CLASSES] = (state + 1) % STATES
    return table, [token % CLASSES for token in torch.randperm(vocab, generator=generator).tolist()]


def tensors(table: Sequence[Sequence[int]], token_class: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
    flat = [entry for row in table for entry in row]
    padded = torch.tensor([flat + [-7] * (SIZE - len(flat))], dtype=torch.int32)
    return padded, torch.tensor([list(token_class)], dtype=torch.int32), torch.tensor([CLASSES])


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), tree=st.sampled_from([PLAIN, CHAIN, TREE]), start=st.integers(0, STATES - 1))
def test_states_follow_every_path(seed: int, tree: DraftTree, start: int) -> None:
    vocab = 10
    table, token_class = automaton(seed, vocab)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (1, len(tree)), generator=generator)
    first, inputs = torch.tensor([start]), tensors(table, token_class)
    got = follow_tree(first, tokens, torch.tensor([tree.parents]), *inputs, depth=tree.depth)
    expected = [start]
    for node in range(1, len(tree)):
        before = expected[tree.parents[node]]
        expected.append(-1 if before < 0 else table[before][token_class[int(tokens[0, node])]])
    assert got.tolist() == [expected]
    scores = forbid(torch.zeros(1, len(tree), vocab), got, *inputs)
    for node, state in enumerate(expected):
        if state >= 0:
            allowed = [table[state][token_class[token]] >= 0 for token in range(vocab)]
            assert scores[0, node].isfinite().tolist() == allowed


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_state_behind_a_block(count: int) -> None:
    """Chain of 2, both drafts accepted: the state follows the tokens that were emitted, and no more."""
    table, token_class = [[1, -1], [0, 2], [3, 3], [0, 0]], [0, 1, 0]
    states, path, block = torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1, 2]]), torch.tensor([[0, 1, 2]])
    flat = torch.tensor([[e for row in table for e in row]], dtype=torch.int32)
    inputs = flat, torch.tensor([token_class], dtype=torch.int32), torch.tensor([2])
    emitted = torch.tensor([count])
    got = follow_block(states, path, block, torch.tensor([2]), emitted, torch.tensor([0]), *inputs)
    assert got.tolist() == [[0, 1, 2, 3][count]]


def constrained(seed: int, text: list[int], new: int, noise: int | None = None) -> list[int]:
    """The target alone, its forbidden tokens at -inf."""
    table, token_class = automaton(seed, 128)
    state, out = 0, list(text)
    for _ in range(new):
        scores = oracle.next_logits(pair().target, out)
        allowed = torch.tensor([table[state][token_class[token]] >= 0 for token in range(128)])
        scores = torch.where(allowed, scores, float("-inf"))
        if noise is not None:
            scores = scores + oracle.gumbels(noise, len(out), 128)
        out.append(int(scores.argmax()))
        state = table[state][token_class[out[-1]]]
    return out[len(text) :]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("tree", [PLAIN, CHAIN, TREE], ids=["plain", "chain", "tree"])
def test_constrained_text(tree: DraftTree, rule: str, seed: int) -> None:
    table, token_class = automaton(seed, 128)
    next_state, classes, count = tensors(table, token_class)
    session = Session(tree=tree, rule=rule, grammar=SIZE)
    tables = {"grammar_next": next_state, "grammar_class": classes, "grammar_classes": count}
    session.start([prompt()], new=20, seeds=[5], **tables)
    noise = 5 if rule == "coupled" else None
    assert session.run()[0] == constrained(seed, prompt(), 20, noise)
    state = 0
    for token in session.new()[0]:
        state = table[state][token_class[token]]
    assert session.state["grammar_state"].tolist() == [state], "the state goes with the text"
    assert tree is PLAIN or session.stats["accepted"] > 2


def test_drafter_obeys_the_grammar_too() -> None:
    """A drafter equal to the target accepts every level, or it drafts what may not follow."""
    next_state, classes, count = tensors(*automaton(1, 128))
    session = Session(pair("equal"), tree=CHAIN, grammar=SIZE)
    session.start([prompt()], new=20, grammar_next=next_state, grammar_class=classes, grammar_classes=count)
    session.run()
    assert session.stats["steps"] == 20 // 4


def test_without_a_grammar_there_are_no_tables() -> None:
    assert not [name for name in build("step", tree=CHAIN).inputs if name.startswith("grammar")]
