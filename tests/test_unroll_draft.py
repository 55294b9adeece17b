"""UnrollDraft: catch-up, then level by level, against a drafter that reads the whole text again for every node."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand
from helpers.check import assert_shapes
from helpers.decoding import Built, Session, fresh, lowered, pair, prompt
from torch import Tensor

from specc.errors import PassError
from specc.passes.count_tokens import CountTokens
from specc.passes.draw_noise import DrawNoise
from specc.passes.manager import check_order
from specc.passes.read_root import ReadRoot
from specc.passes.tree_mask import TreeMask
from specc.passes.unroll_draft import UnrollDraft
from specc.program import Level, Program
from specc.tree import DraftTree

CHAIN = DraftTree.chain(3)
WIDE = DraftTree.from_widths((3, 2))
ODD = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (2, 0), (2, 1), (2, 1, 0)])
SAMPLING = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}
SEED = 5


def drafting(tree: DraftTree, rule: str) -> Program:
    program = fresh(pair(), own_store=True)
    ReadRoot().run(program)
    TreeMask(tree=tree).run(program)
    CountTokens().run(program)
    if rule != "greedy":
        DrawNoise(depth=tree.depth).run(program)
    pass_ = UnrollDraft(tree=tree, rule=rule)
    pass_.requires(program)
    assert pass_.run(program) == 1
    assert pass_.run(program) == 0
    assert_shapes(program.graph)
    return program


@functools.cache
def runnable(tree: DraftTree, rule: str) -> Built:
    return lowered(drafting(tree, rule))


def drafted(tree: DraftTree, rule: str, *, behind: int = 0, junk: float = 50.0, **request: Any) -> dict[str, Tensor]:
    """What is drafted behind the prompt; the drafter's cache lacks `behind` tokens more than the root."""
    session = Session(tree=tree).start([prompt()], seeds=[SEED], **SAMPLING, **request)
    state = session.state
    length = int(state["target_length"]) - behind
    state["drafter_length"] = torch.tensor([length])
    for kind in "kv":
        for layer in (0, 1):
            state[f"drafter_{kind}_{layer}"][:, :, length:] = junk
    state["history"][:, len(prompt()) :] = 9
    run = runnable(tree, rule)
    return run(
        {**state, **{k: v for k, v in run.inputs.items() if k not in state}}, bucket=torch.zeros(40, dtype=torch.uint8)
    )


def expected(tree: DraftTree, rule: str) -> list[int]:
    def score(logits: Tensor, depth: int) -> Tensor:
        if rule == "greedy":
            return logits
        logits = oracle.processed(logits[None], **SAMPLING)[0]
        return logits + oracle.gumbels(SEED, len(prompt()) - 1 + depth, len(logits)) if rule == "coupled" else logits

    return oracle.draft_tree(pair().drafter, prompt(), tree.paths, score)


@pytest.mark.parametrize("tree", [CHAIN, WIDE, ODD], ids=["chain", "wide", "odd"])
@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_tokens(tree: DraftTree, rule: str) -> None:
    out = drafted(tree, rule)
    assert out["tokens"].tolist() == [expected(tree, rule)]
    assert out["valid"].tolist() == [[True] * len(tree)]


def test_children_under_rejection_are_the_drafters_best() -> None:
    assert drafted(WIDE, "rejection")["tokens"].tolist() == [expected(WIDE, "rejection")]


@pytest.mark.parametrize("behind", [0, 1, 3])
def test_catch_up(behind: int) -> None:
    """Up to D + 1 pending tokens: the same drafts, and a cache as if every token had been seen one by one."""
    out = drafted(CHAIN, "greedy", behind=behind)
    assert out["tokens"].tolist() == [expected(CHAIN, "greedy")]
    assert out["drafter_length"].tolist() == [len(prompt())]
    tokens = torch.tensor([prompt()])
    with torch.no_grad():
        cache = pair().drafter(input_ids=tokens, use_cache=True).past_key_values
    for layer, own in enumerate(cache.layers):
        for kind, rows in (("k", own.keys), ("v", own.values)):
            got = out[f"drafter_{kind}_{layer}"][:, :, : len(prompt())]
            torch.testing.assert_close(got, rows, rtol=0, atol=5e-5)


def test_more_than_the_catch_up_holds_is_the_hosts_duty() -> None:
    """Planted: a gap of D + 2. The drafts are wrong, which only costs speed, and no length goes backwards."""
    out = drafted(CHAIN, "greedy", behind=CHAIN.depth + 1)
    assert out["tokens"].tolist() != [expected(CHAIN, "greedy")]


def test_what_lies_past_the_lengths_does_not_matter() -> None:
    assert torch.equal(drafted(ODD, "greedy", junk=50.0)["tokens"], drafted(ODD, "greedy", junk=0.0)["tokens"])


def test_rejection_draws_from_q_and_tells_it() -> None:
    out = drafted(CHAIN, "rejection")
    (tokens,), (q,) = out["tokens"].tolist(), out["q"]
    assert q.shape == (3, 128)
    torch.testing.assert_close(q.sum(-1), torch.ones(3), rtol=0, atol=1e-5)
    text = prompt()
    for level, token in enumerate(tokens[1:]):
        law = oracle.processed(oracle.next_logits(pair().drafter, text)[None], **SAMPLING)[0].softmax(-1)
        torch.testing.assert_close(q[level], law, rtol=0, atol=5e-5)
        assert law[token] > 0
        text = [*text, token]


@pytest.mark.parametrize("limit", [0, 1, 2, 9])
def test_draft_limit(limit: int) -> None:
    out = drafted(ODD, "greedy", draft_limit=limit)
    assert out["valid"].tolist() == [[depth <= limit for depth in ODD.depths]]


def test_drafter_that_was_not_captured() -> None:
    with pytest.raises(PassError, match="no drafter was captured; use LookupDraft or the plain step"):
        UnrollDraft(tree=CHAIN, rule="greedy").requires(hand(Level.CAPTURED))


def test_order() -> None:
    with pytest.raises(PassError, match="unroll_draft needs tree_mask before it") as caught:
        check_order([UnrollDraft(tree=CHAIN, rule="coupled"), DrawNoise(depth=3)], Level.CAPTURED)
    assert "unroll_draft must come after draw_noise" in str(caught.value)


def test_trees_of_one_engine_keep_their_masks() -> None:
    """Two trees with equal node numbers in every level, whose nodes have other parents, over one store."""
    first = DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 1, 0)])
    second = DraftTree.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 1), (0, 0, 0), (1, 0, 0)])
    program = drafting(first, "greedy")
    again = fresh(pair(), own_store=True)
    again.weights = program.weights
    for pass_ in (ReadRoot(), TreeMask(tree=second), CountTokens(), UnrollDraft(tree=second, rule="greedy")):
        pass_.run(again)
    masks = [
        {n: p.weights[n] for n in p.weight_names() if p.weights[n].dtype == torch.bool and n.endswith(".1_2.3_4")}
        for p in (program, again)
    ]
    assert [len(m) for m in masks] == [1, 1] and not set(masks[0]) & set(masks[1])
    assert [next(iter(m.values()))[0].tolist() for m in masks] == [
        [[True, False, True, False], [True, False, False, True]],
        [[True, False, True, False], [False, True, False, True]],
    ]


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_more_children_than_the_sampler_keeps(rule: str) -> None:
    tree = DraftTree.from_widths((70,))
    (tokens,) = drafted(tree, rule)["tokens"].tolist()
    assert len(set(tokens[1:])) == 70
    if rule == "greedy":
        assert tokens == expected(tree, rule)
