"""Medusa's heads: what every step drafts, against the file's tensors over the whole text."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.decoding import Built, Session, fresh, lowered, prompt
from helpers.features import feature_pair, features
from torch import Tensor

from specc.passes.count_tokens import CountTokens
from specc.passes.draw_noise import DrawNoise
from specc.passes.heads_draft import HeadsDraft
from specc.passes.read_root import ReadRoot
from specc.passes.tree_mask import TreeMask
from specc.tree import DraftTree

CHAIN = DraftTree.chain(3)
ODD = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (2, 1), (2, 1, 0), (2, 1, 0, 0)])
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.8}


@functools.cache
def drafting(tree: DraftTree, rule: str, batch: int) -> Built:
    """The part of a step that drafts."""
    program = fresh(feature_pair("medusa"), batch=batch, own_store=True)
    passes = [ReadRoot(), TreeMask(tree=tree), CountTokens(), HeadsDraft(tree=tree, rule=rule)]
    if rule != "greedy":
        passes.insert(3, DrawNoise(depth=tree.depth))
    for pass_ in passes:
        pass_.run(program)
    return lowered(program)


def session(tree: DraftTree, rule: str = "greedy", batch: int = 1) -> Session:
    return Session(feature_pair("medusa"), tree=tree, rule=rule, drafter="medusa:x", batch=batch)


def drafted(session: Session, **more: Tensor) -> dict[str, Tensor]:
    run = drafting(session.tree, session.rule, session.batch)
    state = {k: v.clone() for k, v in session.state.items()}
    return run({**run.inputs, **state, **more})


def reference(session: Session, row: int = 0, seed: int | None = None, **penalties: Any) -> list[int]:
    """Tokens of the tree: each the child-th best of its level's head."""
    text, drafter = session.texts[row], session.models.features
    assert drafter is not None
    with torch.no_grad():
        logits = drafter.module(features(session.models, text[:-1])[:, -1:])[0]
    tokens = [text[-1]]
    for path in session.tree.paths[1:]:
        scores = logits[len(path) - 1]
        if penalties:
            scores = oracle.penalized(scores, text, session.prompts[row], **penalties)
        if seed is not None:
            scores = scores.log_softmax(-1) + oracle.gumbels(seed, len(text) + len(path) - 1, 128)
        tokens.append(int(scores.sort(descending=True, stable=True).indices[path[-1]]))
    return tokens


@pytest.mark.parametrize("tree", [CHAIN, ODD], ids=["chain", "odd"])
def test_every_step_drafts_from_the_true_state(tree: DraftTree) -> None:
    one = session(tree).start([prompt(19)], new=24)
    for plain in (False, False, True, True, False, True, False):
        got = drafted(one)
        assert got["tokens"][0].tolist() == reference(one) and bool(got["valid"].all())
        one.step(plain)


def test_rows_of_their_own_lengths() -> None:
    two = session(ODD, batch=2).start([prompt(4), prompt(33, seed=2)], new=24)
    for _ in range(4):
        got = drafted(two)
        assert [got["tokens"][row].tolist() for row in range(2)] == [reference(two, row) for row in range(2)]
        two.step()


def test_coupled_drafts_share_the_noise_of_their_position() -> None:
    one = session(ODD, "coupled").start([prompt(9)], seeds=[5], temperature=1.0)
    for _ in range(4):
        assert drafted(one)["tokens"][0].tolist() == reference(one, seed=5)
        one.step()


def test_penalties_of_the_text() -> None:
    one = session(ODD).start([prompt(9)], **PENALTIES)
    for _ in range(4):
        assert drafted(one)["tokens"][0].tolist() == reference(one, **PENALTIES)
        one.step()


def test_one_token_has_no_state_in_front_of_it() -> None:
    one = session(CHAIN).start([[7]], new=12)
    assert not drafted(one)["valid"][0, 1:].any()
    assert one.run()[0] == oracle.greedy_text(one.models.target, [7], 12)


def test_forced_drafts_and_limits() -> None:
    one = session(ODD).start([prompt(9)], new=20, draft_limit=2)
    got = drafted(one, forced=torch.tensor([[-1, 5, -1, 200, -1, -1, -1, -1, -1, -1]]))
    plain = reference(one)
    assert got["tokens"][0].tolist() == [plain[0], 5, plain[2], 127, *plain[4:]]
    assert got["valid"][0].tolist() == [d <= 2 and i != 3 for i, d in enumerate(ODD.depths)]


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_the_text_is_the_plain_one(rule: str) -> None:
    one, target = session(ODD, rule), feature_pair("medusa").target
    found = one.start([prompt(9)], new=30, seeds=[3], temperature=0.7).run()[0]
    if rule == "greedy":
        assert found == oracle.greedy_text(target, prompt(9), 30)
    else:
        assert found == oracle.sampled_text(target, prompt(9), 30, 3, temperature=0.7)
    assert one.stats["accepted"] > 0 and len(set(found)) > 5
