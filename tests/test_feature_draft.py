"""EAGLE drafters: what is drafted, step after step, against one that reads the whole text and its true features."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.decoding import Built, Pair, Session, decode, fresh, lowered, prompt
from helpers.features import KINDS, best_children, drafter_of, feature_pair
from torch import Tensor

from specc.passes.count_tokens import CountTokens
from specc.passes.draw_noise import DrawNoise
from specc.passes.read_root import ReadRoot
from specc.passes.tree_mask import TreeMask
from specc.passes.unroll_draft import UnrollDraft
from specc.tree import DraftTree

CHAIN = DraftTree.chain(3)
ODD = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (2, 0), (2, 1), (2, 1, 0)])


def reference(models: Pair, text: Sequence[int], paths: Sequence[tuple[int, ...]], noise: Tensor | None) -> list[int]:
    """Tokens of the tree behind `text`, each node's row computed from all rows before it; `noise` is `[D, V]`."""
    behind, tokens_of = drafter_of(models, text), {(): ()}
    for path in paths[1:]:
        above = tokens_of[path[:-1]]
        scores = behind(above)
        if noise is not None:
            scores = scores.log_softmax(-1) + noise[len(above)]
        tokens_of[path] = (*above, best_children(scores, 8)[path[-1]][1])
    return [text[-1], *(tokens_of[path][-1] for path in paths[1:])]


@functools.cache
def drafting(kind: str, tree: DraftTree, rule: str) -> Built:
    """The part of a step that drafts."""
    program = fresh(feature_pair(kind), own_store=True)
    passes = [ReadRoot(), TreeMask(tree=tree), CountTokens(), UnrollDraft(tree=tree, rule=rule)]
    if rule != "greedy":
        passes.insert(3, DrawNoise(depth=tree.depth))
    for pass_ in passes:
        pass_.run(program)
    return lowered(program)


def drafted(session: Session, kind: str) -> dict[str, Tensor]:
    """What the next step will draft; the state stays as it is."""
    run = drafting(kind, session.tree, session.rule)
    session.catch_up()
    state = {k: v.clone() for k, v in session.state.items()}
    return run({**run.inputs, **state}, bucket=torch.zeros(90, dtype=torch.uint8))


@pytest.mark.parametrize("tree", [CHAIN, ODD], ids=["chain", "odd"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_step_drafts_from_the_true_features(kind: str, tree: DraftTree) -> None:
    models = feature_pair(kind)
    session = Session(models, tree=tree).start([prompt(19)], new=24)
    for plain in (False, False, True, True, True, True, True, True, False):
        got = drafted(session, kind)
        assert got["tokens"][0].tolist() == reference(models, session.texts[0], tree.paths, None)
        assert bool(got["valid"][0, 1:].all())
        session.step(plain)


def test_coupled_drafts_share_the_noise_of_their_position() -> None:
    kind, tree = "eagle3-pruned", CHAIN
    session = Session(feature_pair(kind), tree=tree, rule="coupled").start([prompt(19)], seeds=[5], temperature=1.0)
    for _ in range(3):
        text = session.texts[0]
        noise = torch.stack([oracle.gumbels(5, len(text) + d, 128) for d in range(tree.depth + 1)])
        assert drafted(session, kind)["tokens"][0].tolist() == reference(session.models, text, tree.paths, noise)
        session.step()


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_text_is_the_targets(kind: str, rule: str) -> None:
    models = feature_pair(kind)
    request: dict[str, Any] = {"new": 30, "seeds": [3], "temperature": 0.7}
    plain = decode(prompt(9), models=models, rule=rule, **request)
    assert decode(prompt(9), models=models, tree=ODD, rule=rule, **request) == plain
    assert len(set(plain)) > 5


def test_one_token_has_no_features_and_nothing_is_offered_behind_it() -> None:
    models = feature_pair("eagle")
    session = Session(models, tree=CHAIN).start([[7]], new=12)
    assert not drafted(session, "eagle")["valid"][0, 1:].any()
    text = session.run()[0]
    assert text == oracle.greedy_text(models.target, [7], 12)
    assert session.stats["offered"] == 3 * (session.stats["steps"] - 1)
