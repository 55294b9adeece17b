"""EAGLE drafters: what is drafted, step after step, against one that reads the whole text and its true features."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import checkpoints, oracle
from helpers.decoding import Built, Pair, Session, decode, fresh, loaded, lowered, prompt
from helpers.models import tiny_model
from torch import Tensor

from specc.capture.feature_drafter import FeatureDrafter, load_feature_drafter
from specc.drafter import parse_drafter
from specc.passes.count_tokens import CountTokens
from specc.passes.draw_noise import DrawNoise
from specc.passes.read_root import ReadRoot
from specc.passes.tree_mask import TreeMask
from specc.passes.unroll_draft import UnrollDraft
from specc.tree import DraftTree

CHAIN = DraftTree.chain(3)
ODD = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (2, 0), (2, 1), (2, 1, 0)])
KINDS = ("eagle", "eagle-deep", "eagle3", "eagle3-pruned")


@functools.cache
def feature_pair(kind: str) -> Pair:
    """A tiny target and a drafter of this kind, read from a published checkpoint."""
    target = tiny_model(num_hidden_layers=3)
    made = {
        "eagle": lambda: checkpoints.eagle(target),
        "eagle-deep": lambda: checkpoints.eagle(target, layers=2),
        "eagle3": lambda: checkpoints.eagle3(target),
        "eagle3-pruned": lambda: checkpoints.eagle3(target, draft_vocab=80),
    }[kind]()
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save(Path(folder), *made)
        spec = parse_drafter(f"{kind.partition('-')[0]}:{folder}")
        return Pair(target, None, features=load_feature_drafter(spec, loaded(target), dtype="float32"))


@torch.no_grad()
def reference(models: Pair, text: Sequence[int], paths: Sequence[tuple[int, ...]], noise: Tensor | None) -> list[int]:
    """Tokens of the tree behind `text`, each node's row computed from all rows before it; `noise` is `[D, V]`."""
    drafter = models.features
    assert drafter is not None
    with drafter.taps.hooked(models.target):
        models.target(torch.tensor([text[:-1]]))
        features = drafter.taps.read()
    rows: dict[tuple[int, ...], tuple[list[int], Tensor]] = {(): (list(text[1:]), features)}
    choices: dict[tuple[int, ...], list[int]] = {}
    handed: dict[tuple[int, ...], Tensor] = {}
    tokens = []
    for path in paths:
        ids, hidden = rows[path[:-1]] if path else rows[()]
        if path:
            tokens.append(choices[path[:-1]][path[-1]])
            ids, hidden = [*ids, tokens[-1]], torch.cat([hidden, handed[path[:-1]]], 1)
        else:
            tokens.append(text[-1])
        logits, out = drafter.module(torch.tensor([ids]), torch.arange(len(ids))[None], hidden)
        rows[path], handed[path] = (ids, hidden), out[:, -1:]
        scores = widened(drafter, logits[0, -1])
        if noise is not None:
            scores = scores.log_softmax(-1) + noise[len(path)]
        choices[path] = scores.topk(8).indices.tolist()
    return tokens


def widened(drafter: FeatureDrafter, logits: Tensor) -> Tensor:
    """Logits over the target's ids."""
    if drafter.column_of is None:
        return logits
    return torch.where(drafter.column_of >= 0, logits[drafter.column_of.clamp(min=0)], float("-inf"))


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
