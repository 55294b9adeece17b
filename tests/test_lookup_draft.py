"""LookupDraft: the latest occurrence of the longest suffix, against a plain search."""

from __future__ import annotations

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand
from helpers.check import assert_shapes
from helpers.decoding import built
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.passes.lookup_draft import LookupDraft, lookup
from specc.passes.read_root import ReadRoot
from specc.passes.tree_mask import TreeMask
from specc.program import Level, Model, Program
from specc.tree import DraftTree

SLOTS = 40


def find(text: list[int], drafts: int, limit: int = 16, bucket: int | None = None, junk: int = 1) -> list[int]:
    """Tokens offered behind a text; `junk` stands in the unused part of the history."""
    history = torch.full((1, SLOTS), junk)
    history[0, : len(text)] = torch.tensor(text)
    slots = torch.zeros(bucket or len(text), dtype=torch.uint8)
    parents = DraftTree.chain(drafts).parents
    tokens, valid = lookup(history, torch.tensor([len(text) - 1]), torch.tensor([limit]), slots, parents=parents)
    assert tokens.shape == valid.shape == (1, drafts + 1)
    assert int(tokens[0, 0]) == text[-1] and bool(valid[0, 0])
    offered = valid[0, 1:].tolist()
    assert offered == sorted(offered, reverse=True), "what is offered is a prefix"
    return tokens[0, 1:][valid[0, 1:]].tolist()


@settings(max_examples=150, deadline=None)
@given(text=st.lists(st.integers(0, 3), min_size=1, max_size=30), drafts=st.integers(1, 5), limit=st.integers(0, 6))
def test_equals_the_search(text: list[int], drafts: int, limit: int) -> None:
    assert find(text, drafts, limit) == oracle.lookup(text, drafts)[:limit]


@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.integers(0, 2), min_size=2, max_size=20), bucket=st.integers(0, 15), junk=st.integers(0, 2))
def test_bucket_and_unused_slots_do_not_matter(text: list[int], bucket: int, junk: int) -> None:
    assert find(text, 3, bucket=len(text) + bucket, junk=junk) == oracle.lookup(text, 3)


@pytest.mark.parametrize(
    "text, expected",
    [
        ([5], []),  # nothing stands before
        ([5, 6], []),
        ([5, 5], [5, 5, 5]),  # goes round its period
        ([1, 2, 3, 1, 2], [3, 1, 2]),
        ([1, 2, 1, 2], [1, 2, 1]),
        ([1, 7, 1, 8, 1], [8, 1, 8]),  # the latest
        ([2, 1, 7, 3, 1, 8, 2, 1], [7, 3, 1]),  # longer wins over later
        ([1, 2, 3, 4, 9, 0, 1, 2, 3, 4, 8, 5, 1, 2, 3, 4], [8, 5, 1]),
        ([6, 1, 2, 3, 4, 7, 5, 1, 2, 3, 4, 8, 6, 1, 2, 3, 4], [8, 6, 1]),  # five equal tokens count as four
    ],
)
def test_by_hand(text: list[int], expected: list[int]) -> None:
    assert find(text, 3) == expected == oracle.lookup(text, 3)


def test_zero_in_unused_slots_is_no_match() -> None:
    assert find([4, 0], 2, junk=0, bucket=20) == []


def drafted(tree: DraftTree) -> Program:
    program = hand(Level.CAPTURED, slots=SLOTS)
    program.models["target"] = Model("target", program.graph, {}, 50, 64)
    for pass_ in (ReadRoot(), TreeMask(tree=tree)):
        pass_.run(program)
    assert LookupDraft(tree=tree).run(program) == 1
    assert LookupDraft(tree=tree).run(program) == 0
    return program


def test_graph_keeps_the_bucket_free() -> None:
    """Traced padding once fixed the number of slots at that of the example; longer texts were cut silently."""
    program = drafted(DraftTree.chain(3))
    assert_shapes(program.graph)
    bucket = next(n for n in program.graph.find_nodes(op="placeholder") if n.target == "bucket")
    assert bucket.meta["val"].shape[0].node.maybe_as_int() is None
    run = built(program)
    text = [9, *range(20, 45)][: SLOTS - 6] + [9]
    history = torch.zeros(2, SLOTS, dtype=torch.long)
    history[:, : len(text)] = torch.tensor(text)
    state = {"history": history, "target_length": torch.tensor([len(text) - 1, 0]), "draft_limit": torch.tensor([9, 9])}
    state["forced"] = torch.full((2, 4), -1)
    for slots in (len(text), SLOTS - 1):
        out = run(state, bucket=torch.zeros(slots, dtype=torch.uint8))
        assert out["tokens"][0].tolist() == [9, 20, 21, 22]
        assert out["valid"].tolist() == [[True] * 4, [True, False, False, False]]


@settings(max_examples=200, deadline=None)
@given(
    text=st.lists(st.integers(0, 3), min_size=1, max_size=30),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    longest=st.integers(1, 5),
    limit=st.integers(0, 3),
    bucket=st.integers(0, 9),
)
def test_tree_equals_the_search(text: list[int], widths: list[int], longest: int, limit: int, bucket: int) -> None:
    tree = DraftTree.from_widths(widths)
    history = torch.ones(1, SLOTS).long()
    history[0, : len(text)] = torch.tensor(text)
    state = history, torch.tensor([len(text) - 1]), torch.tensor([limit]), torch.zeros(len(text) + bucket)
    tokens, valid = lookup(*state, parents=tree.parents, longest=longest)
    got = {node: int(tokens[0, node]) for node in range(1, len(tree)) if valid[0, node]}
    expected = oracle.lookup_tree(text, tree, longest)
    assert got == {node: token for node, token in expected.items() if tree.depths[node] <= limit}


@settings(max_examples=200, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=4),
    widths=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    size=st.integers(1, 40),
)
def test_pool_equals_the_search(texts: list[list[int]], widths: list[int], size: int) -> None:
    """Other texts, the oldest of them cut, as the runtime keeps them."""
    tree, (*others, text) = DraftTree.from_widths(widths), texts
    told = [token for other in others for token in [*(t + 1 for t in other), 0]]
    shared = torch.tensor([[*[0] * size, *told][-size:]])
    history = torch.ones(1, SLOTS).long()
    history[0, : len(text)] = torch.tensor(text)
    state = history, torch.tensor([len(text) - 1]), torch.tensor([9]), torch.zeros(len(text)), shared
    tokens, valid = lookup(*state, parents=tree.parents)
    assert int(tokens.min()) >= 0
    kept, line = [], []
    for token in shared[0].tolist():
        line = [*line, token - 1] if token else kept.append(line) or []
    got = {node: int(tokens[0, node]) for node in range(1, len(tree)) if valid[0, node]}
    assert got == oracle.lookup_tree(text, tree, others=kept)


def test_three_continuations_by_hand() -> None:
    text = [1, 7, 5, 1, 8, 6, 2, 1, 9, 4, 2, 1, 7, 3, 1]
    assert oracle.lookup_tree(text, DraftTree.from_widths((3, 1))) == {1: 7, 2: 9, 3: 8, 4: 3, 5: 4, 6: 6}
    assert oracle.lookup_tree(text, DraftTree.from_widths((1, 2))) == {1: 7, 2: 3, 3: 5}
