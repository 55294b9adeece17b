"""Engines whose drafter reads hidden states, through the real runtime: texts, and the state behind every operation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import checkpoints, oracle
from helpers.decoding import prompt
from helpers.models import save_tiny, tiny_model

import specc
from specc.runtime import Engine

CONTEXT = 150
POSITIONS = 110  # of the eagle drafter, which ends before the context does
ON: dict[str, Any] = {"eos_token_id": ()}  # no token ends a text
MADE: dict[str, tuple[Callable[..., Any], dict[str, Any], dict[str, Any]]] = {
    "eagle": (checkpoints.eagle, {"layers": 2}, {"draft_length": 3, "acceptance": "coupled,rejection"}),
    "eagle3": (checkpoints.eagle3, {"draft_vocab": 80}, {"tree": "dynamic:8,3,3", "batch": 3, "backend": "onnx"}),
    "medusa": (checkpoints.medusa, {"heads": 3}, {"tree": "3,2,1"}),
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folder of the target, and one for the drafters."""
    folder = tmp_path_factory.mktemp("features")
    return save_tiny(folder / "target", model=tiny_model(num_hidden_layers=3)), folder


@pytest.fixture(scope="module")
def engines(folders: tuple[Path, Path]) -> Callable[[str], Engine]:
    """An engine by kind, compiled once and opened anew."""
    target, folder = folders

    def engine(kind: str) -> Engine:
        output = folder / f"{kind}.engine"
        if not output.exists():
            make, more, options = MADE[kind]
            config, tensors = make(tiny_model(num_hidden_layers=3), **more)
            if kind == "eagle":
                config["max_position_embeddings"] = POSITIONS
            drafter = checkpoints.save(folder / kind, config, tensors)
            given = {"backend": "eager", "context": CONTEXT, "chunk": 16, "fixed": True, **options}
            specc.compile(target, f"{kind}:{drafter}", output, **given)
        return specc.load(output)

    return engine


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model(num_hidden_layers=3)


def text(model: Any, ids: list[int], new: int) -> list[int]:
    return oracle.greedy_text(model, ids, new)


def assert_as_fresh(engine: Engine, fresh: Engine) -> None:
    """What every row's caches hold is what a prefill of its text into another engine gives."""
    for row in engine.machine.rows:
        if len(row.ids) < 2:
            continue
        own = fresh.machine.rows[row.index]
        own.keep(0)
        own.append(row.ids[: row.target_length + 1])
        assert own.target_length == row.target_length
        own.state.hold("target_length", [r.target_length for r in fresh.machine.rows])
        if row.drafter_length:
            own.drafter_length = own._prefill("prefill_drafter", 0, row.drafter_length, own.shift)
            assert own.drafter_length == row.drafter_length
        assert row.drafter_length <= row.caught_up
        for name, spec in engine.machine.state.specs.items():
            if spec.role == "cache" and len(spec.shape) == 4:
                end = row.drafter_length if name.startswith("drafter_") else row.target_length
                found, wanted = (e.machine.state.tensors[name][row.index, :, :end] for e in (engine, fresh))
                assert torch.allclose(found, wanted, atol=1e-4), (name, row.index, end)


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa"])
def test_the_state_is_that_of_a_fresh_prefill(engines: Callable[[str], Engine], model: Any, kind: str) -> None:
    engine, fresh = engines(kind), engines(kind)
    ids = prompt(23)
    assert "features" in engine.machine.state.tensors
    assert engine.generate(ids, max_new_tokens=20, **ON).token_ids == text(model, ids, 20)
    assert_as_fresh(engine, fresh)
    for length, new in ((0, 25), (None, 9), (1, 5)):  # many plain steps leave the drafter far behind
        held = engine.token_ids
        assert engine.resume(max_new_tokens=new, **ON, draft_length=length).token_ids == text(model, held, new)
        assert_as_fresh(engine, fresh)
    for total in (60, 41, 12, 2, 1):
        engine.truncate(total)
        held = engine.token_ids
        assert engine.resume([9], max_new_tokens=6, **ON).token_ids == text(model, [*held, 9], 6)
        assert_as_fresh(engine, fresh)
    engine.truncate(5)
    again = [*engine.token_ids, *prompt(30, seed=4)]
    result = engine.generate(again, reuse=True, max_new_tokens=12, **ON)
    assert result.token_ids == text(model, again, 12) and result.stats.reused_tokens == 4
    assert_as_fresh(engine, fresh)


def test_rows_are_refilled_and_copied(engines: Callable[[str], Engine], model: Any) -> None:
    engine, fresh = engines("eagle3"), engines("eagle3")
    texts = [prompt(n, seed=n) for n in (3, 40, 17, 2, 29)]
    found = engine.generate(texts, max_new_tokens=15, **ON)
    assert [one.token_ids for one in found] == [text(model, ids, 15) for ids in texts]
    assert sum(one.stats.accepted for one in found) > 0
    assert_as_fresh(engine, fresh)
    samples = engine.generate(texts[1], n=3, temperature=0.9, seed=4, max_new_tokens=12, **ON)
    plain = engine.generate(texts[1], n=3, temperature=0.9, seed=4, max_new_tokens=12, **ON, draft_length=0)
    assert [one.token_ids for one in samples] == [one.token_ids for one in plain]
    assert_as_fresh(engine, fresh)
    with engine.session() as session:
        jobs = [
            session.add(texts[0], max_new_tokens=30, **ON),
            session.add(texts[1], max_new_tokens=4, **ON, draft_length=0),
        ]
        for advanced in session:
            if jobs[1] in advanced and jobs[1].result and len(jobs) == 2:
                jobs.append(session.add(texts[2], max_new_tokens=10, **ON))
    assert [job.token_ids for job in jobs] == [text(model, i, n) for i, n in zip(texts, (30, 4, 10), strict=False)]
    assert_as_fresh(engine, fresh)


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
@pytest.mark.parametrize("early", [True, False])
def test_an_interrupt(
    engines: Callable[[str], Engine], model: Any, kind: str, early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the program's writes and what the row knows of them, and before: the text goes on as if neither."""
    engine, fresh = engines(kind), engines(kind)
    ids, state = prompt(23), engine.machine.state
    right, left = state.call, [4]

    def interrupted(name: str, *given: Any, **more: Any) -> Any:
        left[0] -= 1
        if early and not left[0]:
            raise KeyboardInterrupt
        results = right(name, *given, **more)
        if not left[0]:
            raise KeyboardInterrupt
        return results

    with monkeypatch.context() as patch:
        patch.setattr(state, "call", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(ids, max_new_tokens=30, **ON)
    held = engine.token_ids
    assert held[:23] == ids and engine.resume(max_new_tokens=9, **ON).token_ids == text(model, held, 9)
    assert_as_fresh(engine, fresh)


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_sampled_texts_of_a_seed(engines: Callable[[str], Engine], rule: str) -> None:
    engine = engines("eagle")
    given: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_new_tokens": 20, **ON}
    found = engine.generate(prompt(12), acceptance=rule, **given)
    if rule == "coupled":
        assert found.token_ids == engine.generate(prompt(12), draft_length=0, **given).token_ids
    assert found.token_ids == engine.generate(prompt(12), acceptance=rule, **given).token_ids


class TestBeyondTheDraftersPositions:
    """The text goes on as the target's, by plain steps."""

    def test_greedy(self, engines: Callable[[str], Engine], model: Any) -> None:
        engine, fresh = engines("eagle"), engines("eagle")
        called: list[str] = []
        right = engine.machine.state.call

        def noting(name: str, *given: Any, **more: Any) -> Any:
            called.append(name)
            return right(name, *given, **more)

        engine.machine.state.call = noting  # type: ignore[method-assign]
        found = engine.generate(prompt(20), max_new_tokens=125, **ON)
        assert found.token_ids == text(model, prompt(20), 125)
        assert found.stats.drafted > 0
        # Behind n tokens the drafter stands at n - 2: at POSITIONS + 1 tokens it is at its last, and drafts a level.
        assert 145 - called.count("plain") in (POSITIONS + 2, POSITIONS + 3)
        assert called.index("plain") > called.index("step") and "step" not in called[called.index("plain") :]
        assert_as_fresh(engine, fresh)
        engine.truncate(30)
        called.clear()
        held = engine.token_ids
        assert engine.resume(max_new_tokens=10, **ON).token_ids == text(model, held, 10) and "plain" not in called

    @pytest.mark.parametrize("rule", ["coupled", "rejection"])
    def test_sampled(self, engines: Callable[[str], Engine], rule: str) -> None:
        engine = engines("eagle")
        given: dict[str, Any] = {"temperature": 0.8, "seed": 7, "max_new_tokens": 110, **ON}
        found = engine.generate(prompt(20), acceptance=rule, **given)
        assert (
            len(found.token_ids) == 110
            and found.token_ids == engine.generate(prompt(20), acceptance=rule, **given).token_ids
        )
        if rule == "coupled":
            assert found.token_ids == engine.generate(prompt(20), draft_length=0, **given).token_ids

    def test_a_prompt_that_is_longer_is_not_shown_to_the_drafter(
        self, engines: Callable[[str], Engine], model: Any
    ) -> None:
        engine = engines("eagle")
        found = engine.generate(prompt(115), max_new_tokens=10, **ON)
        assert found.token_ids == text(model, prompt(115), 10)
        assert engine.machine.rows[0].drafter_length == 0 and found.stats.drafted == 0

    def test_an_independent_drafter(self, tmp_path: Path, folders: tuple[Path, Path], model: Any) -> None:
        short = save_tiny(tmp_path / "short", model=tiny_model(num_hidden_layers=3, max_position_embeddings=40))
        given = {"backend": "eager", "context": 100, "chunk": 16, "fixed": True}
        engine = specc.load(specc.compile(folders[0], short, tmp_path / "engine", **given))
        texts = [prompt(8), prompt(50, seed=3)]
        found = engine.generate(texts, max_new_tokens=45, **ON)
        assert [one.token_ids for one in found] == [text(model, ids, 45) for ids in texts]
        assert found[0].stats.accepted > 20 and found[1].stats.drafted == 0
