"""Lookahead as an engine, on both back ends: one text, whatever else the request asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.decoding import pair, prompt
from helpers.exact import greedy

import specc
from specc import build
from specc.plan import ProgramPlan
from specc.runtime import Engine

REPEATING = prompt(6, seed=3) * 3
NEW = {"max_new_tokens": 30, "eos_token_id": ()}


def compiled(folder: Path, target: Path, drafter: str = "lookahead:4,4,3", **options: Any) -> Engine:
    options = {"context": 120, "chunk": 16, "fixed": True, **options}
    return specc.load(specc.compile(target, drafter, folder / drafter, **options))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory, tiny_folders: tuple[Path, Path]) -> Engine:
    return compiled(tmp_path_factory.mktemp("e"), tiny_folders[0], backend="eager", batch=2, grammar=20_000)


def greedy_alone(plans: Callable[..., Iterator[ProgramPlan]]) -> Callable[..., Iterator[ProgramPlan]]:
    """Only the programs of greedy requests: those of a compiled engine take half a minute each."""
    return lambda *args: (plan for plan in plans(*args) if plan.rule in ("greedy", ""))


def test_text_is_the_targets_own_as_native_code(
    tmp_path: Path, tiny_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "plan_programs", greedy_alone(build.plan_programs))
    engine = compiled(tmp_path, tiny_folders[0])
    for text in (REPEATING, prompt()):
        result = engine.generate(text, **NEW)
        assert result.token_ids == list(greedy(tuple(text), 40))[:30]
    assert engine.generate(REPEATING, **NEW).stats.accepted > 4


def test_text_is_the_targets_own(engine: Engine) -> None:
    assert engine.manifest.drafter_kind == "lookahead" and engine.manifest.drafter is None
    roles = {spec.name: spec.role for spec in engine.manifest.tensors}
    assert {roles[name] for name in ("window", "window_at", "ngrams")} == {"draft"}
    for text in (REPEATING, prompt()):
        assert engine.generate(text, **NEW).token_ids == list(greedy(tuple(text), 40))[:30]
    assert len(pair().target.model.layers) >= 2, "one layer could not tell a wrong mask"


def test_a_request_does_not_depend_on_the_one_before(engine: Engine) -> None:
    first = engine.generate(REPEATING, **NEW).stats
    engine.generate(prompt(30, seed=8), **NEW)
    again = engine.generate(REPEATING, **NEW).stats
    assert first.accepted > 4
    assert (first.steps, first.accepted, first.drafted) == (again.steps, again.accepted, again.drafted)


def test_rows_and_resumed_texts(engine: Engine) -> None:
    texts = [REPEATING, prompt(), prompt(9, seed=4)]
    alone = [engine.generate(text, **NEW).token_ids for text in texts]
    assert [result.token_ids for result in engine.generate(texts, **NEW)] == alone
    whole = engine.generate(REPEATING, **NEW)
    engine.truncate(len(REPEATING) + 11)
    assert engine.resume(max_new_tokens=19, eos_token_id=()).token_ids == whole.token_ids[11:]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.8, "seed": 3},
        {"temperature": 0.8, "seed": 3, "logprobs": 3},
        {"repetition_penalty": 1.4, "presence_penalty": 0.3, "logprobs": 2},
        {"regex": "[a-z]{3}( [a-z]{2,4}){2}[.]"},
        {"bad_token_ids": [40, 50, 77, 30], "min_new_tokens": 12},
    ],
    ids=lambda options: "-".join(options),
)
def test_everything_a_request_may_ask_for(engine: Engine, options: dict[str, Any]) -> None:
    plain = engine.generate(REPEATING, draft_length=0, **NEW, **options)
    result = engine.generate(REPEATING, **NEW, **options)
    assert result.token_ids == plain.token_ids
    if "regex" in options:
        assert re.fullmatch(options["regex"], result.text)
    for ours, theirs in zip(result.logprobs or (), plain.logprobs or (), strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)


def test_pool_of_lookup(tmp_path: Path, tiny_folders: tuple[Path, Path]) -> None:
    """What one request wrote is drafted in the next, in every row; texts stay as they are."""
    engine = compiled(tmp_path, tiny_folders[0], "ngram", backend="eager", batch=2, ngram_pool=64)
    first = engine.generate(prompt(), **NEW)
    again = engine.generate([prompt(), prompt()], **NEW)
    assert [r.token_ids for r in (first, *again)] == [list(greedy(tuple(prompt()), 40))[:30]] * 3
    assert all(r.stats.accepted > max(15, first.stats.accepted) for r in again)
    sampled = {**NEW, "temperature": 0.8, "seed": 3}
    assert engine.generate(prompt(), **sampled).token_ids == engine.generate(prompt(), **sampled).token_ids
    shared = engine.machine.state.tensors["shared"]
    assert shared.shape == (2, 64) and (shared[0] == shared[1]).all() and int(shared[0, -1]) == 0


def test_trees_of_lookup_as_an_engine(tmp_path: Path, tiny_folders: tuple[Path, Path]) -> None:
    engine = compiled(tmp_path, tiny_folders[0], "ngram:3", backend="eager", tree="3,1,1")
    result = engine.generate(REPEATING, **NEW)
    assert result.token_ids == list(greedy(tuple(REPEATING), 40))[:30] and result.stats.accepted > 4
