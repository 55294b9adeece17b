"""An interrupt between the programs of a step, or while the state is written, leaves nothing of itself behind."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import fake_engine, letters
from helpers.toy_law import ToyGrammar, expected, toy_text

from specc.runtime.text import TextStream

GRAMMAR = ToyGrammar.alternating([range(0, 15), range(15, 30)], end=39)
OPTIONS: dict[str, Any] = {"grammar": GRAMMAR, "eos_token_id": [39], "max_new_tokens": 20}


def test_a_row_whose_neighbour_is_interrupted_takes_its_step_again() -> None:
    """The first program has moved the row's automaton, and has ended the row where its text ends; its text has not."""
    for at in range(1, 8):
        engine, programs = fake_engine(batch=2, rules=("coupled", "rejection"), grammar=100)
        seen: list[int] = []

        def interrupt(name: str, count: int, seen: list[int] = seen, at: int = at) -> None:
            if name.startswith("step_rejection"):
                seen.append(count)
                if len(seen) == at:
                    raise KeyboardInterrupt

        programs.interrupt = interrupt
        with engine.session() as session:
            first = session.add([1], temperature=0.9, seed=2, acceptance="coupled", **OPTIONS)
            session.add([2], temperature=0.9, seed=2, acceptance="rejection", max_new_tokens=20)
            interrupts = 0
            while session.jobs:
                try:
                    session.step()
                except KeyboardInterrupt:
                    interrupts += 1
        assert interrupts == 1
        assert (first.token_ids, first.finish_reason) == expected([1], 60, temperature=0.9, seed=2, **OPTIONS)


def test_a_row_that_ended_before_its_outcome_was_taken_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    from specc.runtime.session import Job

    engine, _ = fake_engine()
    text = toy_text([1], 8)
    take = Job.take
    for call in range(1, 8):
        calls: list[int] = []

        def interrupted(job: Job, *given: Any, calls: list[int] = calls, call: int = call, **more: Any) -> None:
            calls.append(1)
            if len(calls) == call:
                raise KeyboardInterrupt
            take(job, *given, **more)

        monkeypatch.setattr(Job, "take", interrupted)
        with engine.session() as session:
            job = session.add([1], max_new_tokens=8)
            while session.jobs:
                try:
                    session.step()
                except KeyboardInterrupt:
                    assert job.row.ids == [1, *job.token_ids]
        assert job.token_ids == text


@pytest.mark.parametrize("ends", ["stop string", "id", "length"])
def test_tokens_and_reason_agree_wherever_a_block_is_interrupted(ends: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine(text=letters())
    ids = toy_text([1], 12)
    stop = engine.decode(ids[8:10])
    options: dict[str, Any] = {"stop string": {"stop": stop}, "id": {"eos_token_id": [ids[9]]}, "length": {}}[ends]
    right = engine.generate([1], max_new_tokens=12, **options)
    push, flush = TextStream.push, TextStream.flush
    for call in range(1, 20):
        calls: list[int] = []

        def count(calls: list[int] = calls, call: int = call) -> None:
            calls.append(1)
            if len(calls) == call:
                raise KeyboardInterrupt

        def pushed(stream: TextStream, part: Any, count: Any = count) -> str:
            piece = push(stream, part)
            count()
            return piece

        def flushed(stream: TextStream, count: Any = count) -> str:
            count()
            return flush(stream)

        monkeypatch.setattr(TextStream, "push", pushed)
        monkeypatch.setattr(TextStream, "flush", flushed)
        interrupts = 0
        with engine.session() as session:
            job = session.add([1], max_new_tokens=12, logprobs=0, **options)
            while session.jobs:
                before = job.token_ids, job.text
                try:
                    session.step()
                except KeyboardInterrupt:
                    interrupts += 1
                    assert (job.token_ids, job.text) == before and job.row.ids == [1, *job.token_ids]
        assert interrupts == (call <= len(calls))
        assert job.result is not None and job.result.logprobs is not None
        assert (job.text, job.token_ids, job.finish_reason) == (right.text, right.token_ids, right.finish_reason)
        assert [entry.token for entry in job.result.logprobs] == right.token_ids
        if not interrupts:
            break
    assert call > 4


@pytest.mark.parametrize("name", ["clear", "copy"])
@pytest.mark.parametrize("early", [True, False])
def test_caches_that_are_cleared_or_copied(name: str, early: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that the engine says it holds is gone from its caches."""
    engine, _ = fake_engine(batch=2)
    text = engine.generate([1, 2, 3], max_new_tokens=20).token_ids
    state = engine.machine.state
    right = getattr(state, name)

    def interrupted(*given: Any) -> None:
        if not early:
            right(*given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(state, name, interrupted)
        prompt = [1, 2, 3, *text[:5], 9]
        with pytest.raises(KeyboardInterrupt):
            engine.generate(prompt, reuse=True, **({"n": 2, "temperature": 1.0} if name == "copy" else {}))
    held = engine.token_ids
    for _ in range(2):
        if held:
            assert engine.resume(max_new_tokens=5).token_ids == toy_text(held, 5)
        held = engine.token_ids
    for prompt in ([1, 2, 3, *text[:9]], [1, 2, 4]):
        assert engine.generate(prompt, reuse=True, max_new_tokens=9).token_ids == toy_text(prompt, 9)


@pytest.mark.parametrize("name", ["grammar_class", "grammar_next", "grammar_classes"])
def test_a_grammar_that_was_written_in_part(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine(grammar=100)
    right = engine.machine.state.set

    def interrupted(tensor: str, *given: Any) -> None:
        right(tensor, *given)
        if tensor == name:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine.machine.state, "set", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate([1], **OPTIONS)
    assert engine.generate([1], max_new_tokens=12).token_ids == toy_text([1], 12)
