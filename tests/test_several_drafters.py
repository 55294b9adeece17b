"""Several drafters: each drafts its own tree, all are verified under one root, and the text stays the target's."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.decoding import Built, Pair, Session, decode, fresh, lowered, prompt
from helpers.exact import LAW, LAW_SLOTS, LAW_TEXT, law_tail
from helpers.models import save_tiny, tiny_drafter, tiny_model

import specc
from specc.drafter import parse_drafter
from specc.passes import step_passes
from specc.passes.inline_verify import InlineVerify
from specc.tree import DraftTree

BOTH = "a+b"
CHAINS = DraftTree.chain(3).times(2)
TREES = DraftTree.from_paths([(0,), (1,), (0, 0), (1, 0), (1, 1), (1, 1, 0)]).times(2)
PROMPT = [1, 40, 50, 60, 70, 33, 90]


@functools.cache
def two(vocab: int = 128) -> Pair:
    """A tiny target, and two drafters that err in different places."""
    target = tiny_model(vocab_size=vocab)
    return Pair(target, tiny_drafter(target, 0.04), vocab, second=tiny_drafter(target, 0.04, seed=8))


@functools.cache
def drafting(tree: DraftTree) -> Built:
    """The part of a step that drafts."""
    program = fresh(two(), own_store=True)
    for pass_ in step_passes(tree=tree, rule="greedy", drafter=parse_drafter(BOTH)):
        if isinstance(pass_, InlineVerify):
            break
        pass_.run(program)
    return lowered(program)


@pytest.mark.parametrize("tree", [CHAINS, TREES], ids=["chains", "trees"])
def test_each_drafts_its_share(tree: DraftTree) -> None:
    models = two()
    session = Session(models, tree=tree, drafter=BOTH).start([prompt(19)], new=24)
    run = drafting(tree)
    for plain in (False, True, True, True, True, True, False, False):
        session.catch_up()
        state = {name: value.clone() for name, value in session.state.items()}
        got = run({**run.inputs, **state}, bucket=torch.zeros(90, dtype=torch.uint8))["tokens"][0].tolist()
        for place, drafter in enumerate((models.drafter, models.second)):
            part, nodes = tree.share(place, 2)
            expected = oracle.draft_tree(drafter, session.texts[0], part.paths, lambda logits, depth: logits)
            assert [got[node] for node in nodes] == expected
        session.step(plain)


def test_both_caches_follow_the_text() -> None:
    """Behind some steps, plain ones too, they hold what a prefill makes of the same text."""
    session = Session(two(), tree=TREES, drafter=BOTH).start([prompt(19)], new=30)
    for plain in (False, True, False, False):
        session.step(plain)
    held = int(session.state["drafter_length"][0])
    again = Session(two(), tree=TREES, drafter=BOTH).start([session.texts[0]], new=1)
    for name, value in session.state.items():
        if name.startswith("drafter") and value.ndim == 4:
            assert torch.allclose(value[:, :, :held], again.state[name][:, :, :held], atol=1e-5), name


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("tree", [CHAINS, TREES], ids=["chains", "trees"])
def test_the_text_is_the_targets_and_both_are_of_use(tree: DraftTree, rule: str) -> None:
    request: dict[str, Any] = {"new": 40, "seeds": [3], "temperature": 0.7}
    plain = decode(prompt(9), models=two(), rule=rule, **request)
    session = Session(two(), tree=tree, rule=rule, drafter=BOTH).start([prompt(9)], **request)
    assert session.run()[0] == plain
    alone = Session(Pair(two().target, two().drafter), tree=tree.share(0, 2)[0], rule=rule).start(
        [prompt(9)], **request
    )
    assert alone.run()[0] == plain
    assert session.stats["steps"] < alone.stats["steps"]


def test_the_law_under_rejection_is_the_targets() -> None:
    found: list[tuple[int, ...]] = []
    session = Session(two(16), tree=CHAINS, rule="rejection", drafter=BOTH, batch=5000, slots=LAW_SLOTS)
    for number in range(4):
        seeds = range(number * 5000, (number + 1) * 5000)
        found += map(tuple, session.start([LAW_TEXT], new=3, seeds=list(seeds), **LAW).run())
    assert law_tail(found) > 1e-5


def test_an_engine_of_two(tmp_path: Path) -> None:
    models = two()
    folders = [
        save_tiny(tmp_path / name, model=model)
        for name, model in (("t", models.target), ("a", models.drafter), ("b", models.second))
    ]
    options: dict[str, Any] = {"backend": "eager", "context": 80, "chunk": 16, "fixed": True, "tree": "2,1"}
    made = specc.compile(folders[0], f"{folders[1]}+{folders[2]}", tmp_path / "e", **options)
    engine = specc.load(made)
    assert engine.manifest.drafter_prefills == ["prefill_drafter", "prefill_drafter2"]
    assert [Path(drafter.source).name for drafter in engine.manifest.more_drafters] == ["b"]
    for sampling in ({}, {"temperature": 0.9, "seed": 4}):
        asked: dict[str, Any] = {"max_new_tokens": 30, "eos_token_id": (), **sampling}
        plain = engine.generate(PROMPT, draft_length=0, **asked)
        fast = engine.generate(PROMPT, **asked)
        assert fast.token_ids == plain.token_ids and fast.stats.steps < plain.stats.steps
    for name, held in engine.machine.state.tensors.items():
        if name.startswith("drafter2_k"):
            assert float(held[:, :, : len(PROMPT) + 20].abs().amin((1, 3)).min()) > 0, "a slot was never written"
