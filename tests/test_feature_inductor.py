"""A feature drafter in native code: pruned vocabulary, a dynamic tree, compiled once."""

from __future__ import annotations

import pytest
from helpers import checkpoints, oracle
from helpers.decoding import prompt
from helpers.models import save_tiny, tiny_model

import specc
from specc.runtime import Engine


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("native")
    target = tiny_model(num_hidden_layers=3)
    save_tiny(folder / "target", model=target)
    checkpoints.save(folder / "eagle3", *checkpoints.eagle3(target, draft_vocab=80))
    given = {"tree": "dynamic:8,3,3", "context": 120, "chunk": 16, "fixed": True}
    return specc.load(specc.compile(folder / "target", f"eagle3:{folder / 'eagle3'}", folder / "engine", **given))


@pytest.mark.parametrize("length", [1, 2, 9, 40])
def test_greedy_text_is_the_targets(engine: Engine, length: int) -> None:
    ids, new = prompt(length, seed=length), 60
    found = engine.generate(ids, max_new_tokens=new, eos_token_id=())
    assert found.token_ids == oracle.greedy_text(tiny_model(num_hidden_layers=3), ids, new)
    assert found.stats.accepted > 0


def test_sampled_text_is_that_of_the_plain_step(engine: Engine) -> None:
    given = {"temperature": 0.8, "seed": 3, "max_new_tokens": 40, "eos_token_id": ()}
    found = engine.generate(prompt(9), **given)
    assert found.token_ids == engine.generate(prompt(9), draft_length=0, **given).token_ids
    assert found.stats.accepted > 0


def test_many_plain_steps_leave_the_drafter_behind_and_it_catches_up(engine: Engine) -> None:
    model, ids = tiny_model(num_hidden_layers=3), prompt(9)
    plain = engine.generate(ids, max_new_tokens=30, eos_token_id=(), draft_length=0)
    held = [*ids, *plain.token_ids]
    assert engine.resume(max_new_tokens=20, eos_token_id=()).token_ids == oracle.greedy_text(model, held, 20)
