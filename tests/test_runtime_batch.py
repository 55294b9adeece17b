"""Rows side by side: each text is what it would be alone, whatever its neighbours, parameters and draft trees."""

from __future__ import annotations

import gc
import random
import sys
from typing import Any

import pytest
import torch
from helpers.fake_engine import fake_engine, letters
from helpers.toy_law import VOCAB, Law, ToyGrammar, expected, forget, toy_text
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.errors import ConfigError, EngineError
from specc.runtime import Session

TOKENS = st.integers(0, VOCAB - 1)
PROMPTS = st.lists(TOKENS, min_size=1, max_size=30)
GRAMMAR = ToyGrammar.alternating([range(0, 15), range(15, 30), range(5, 25)], end=39)
FINITE = {"allow_nan": False, "allow_infinity": False}
PROCESSORS: dict[str, st.SearchStrategy[Any]] = {
    "repetition_penalty": st.floats(0.5, 2.0),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "logit_bias": st.dictionaries(TOKENS, st.floats(-5, 5, **FINITE) | st.just(-float("inf")), max_size=5),
    "bad_token_ids": st.lists(TOKENS, max_size=5),
    "allowed_token_ids": st.lists(st.integers(10, VOCAB - 1), min_size=12, max_size=30, unique=True),
    "min_new_tokens": st.integers(0, 8),
}
SAMPLING = st.fixed_dictionaries(
    {"temperature": st.floats(0.1, 3), "seed": st.integers(0, 2**63 - 1)},
    optional={"top_k": st.integers(0, 50), "top_p": st.floats(0.05, 1), "min_p": st.floats(0, 1)},
)
COMMON = st.fixed_dictionaries(
    {"max_new_tokens": st.integers(8, 40)},
    optional={**PROCESSORS, "eos_token_id": st.lists(TOKENS, max_size=4), "draft_length": st.integers(0, 3)},
)
OPTIONS = st.builds(lambda a, b: {**a, **b}, COMMON, st.one_of(st.just({}), SAMPLING))
SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 4),
        "chunk": st.sampled_from([2, 8]),
        "context": st.sampled_from([41, 200]),
        "drafter_kind": st.sampled_from(["model", "ngram"]),
        "ladder": st.sampled_from([(), (1,), (2, 5)]),
        "tree": st.sampled_from([(), (2, 2, 1)]),
    }
)


def honours(options: dict[str, Any], context: int, prompt: list[int]) -> bool:
    """Options that contradict each other or the context are refused; `test_request` has those."""
    least = options.get("min_new_tokens", 0)
    return len(prompt) + least <= context and least <= options["max_new_tokens"]


def shape_of(shape: dict[str, Any]) -> dict[str, Any]:
    return {**shape, "tree": () if shape["drafter_kind"] == "ngram" else shape["tree"]}


@settings(deadline=None, max_examples=150)
@given(SHAPES, st.lists(st.tuples(PROMPTS, OPTIONS), min_size=1, max_size=4))
def test_every_row_is_as_alone(shape: Any, texts: list[tuple[list[int], dict[str, Any]]]) -> None:
    engine, programs = fake_engine(**shape_of(shape))
    texts = [(p, o) for p, o in texts[: shape["batch"]] if honours(o, shape["context"], p)]
    with engine.session() as session:
        jobs = [session.add(prompt, **options) for prompt, options in texts]
        for _ in session:
            pass
    for job, (prompt, options) in zip(jobs, texts, strict=True):
        assert job.result is not None
        assert (job.result.token_ids, job.result.finish_reason) == expected(prompt, shape["context"], **options)
        assert job.row.ids == prompt + job.result.token_ids
        stats = job.result.stats
        assert stats.tokens == len(job.result.token_ids) <= stats.steps + stats.accepted
        assert sum(stats.accepted_per_position) == stats.accepted <= stats.drafted
    assert max(programs.active, default=0) <= len(texts)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(PROMPTS, st.integers(0, 3), st.integers(0, 99)), min_size=2, max_size=4), st.booleans())
def test_rejection_does_not_see_its_neighbours(texts: list[tuple[list[int], int, int]], tree: bool) -> None:
    """Its text depends on the tree that drafts, so rows of other trees go in calls of their own."""
    shape: dict[str, Any] = {"rules": ("coupled", "rejection"), "ladder": (1,), "tree": (2, 1, 1) if tree else ()}
    alone, _ = fake_engine(**shape)
    engine, _ = fake_engine(batch=4, **shape)

    def options(i: int, length: int, seed: int) -> dict[str, Any]:
        rule = ("rejection", "rejection", "coupled", None)[(seed + i) % 4]
        sampled = {"temperature": 0.9, "seed": seed, "acceptance": rule} if rule else {}
        least = 1 if rule == "rejection" else 0  # without a draft there is nothing to reject
        return {"max_new_tokens": 20, "draft_length": max(least, length), **sampled}

    with engine.session() as session:
        jobs = [session.add(prompt, **options(i, length, seed)) for i, (prompt, length, seed) in enumerate(texts)]
        for _ in session:
            pass
    for i, (job, (prompt, length, seed)) in enumerate(zip(jobs, texts, strict=True)):
        assert job.token_ids == alone.generate(prompt, **options(i, length, seed)).token_ids


def test_a_greedy_row_does_not_change_the_tree_of_a_row_that_rejects() -> None:
    """It goes along where both draft by one tree, else in a call of its own."""
    shape: dict[str, Any] = {"rules": ("coupled", "rejection"), "ladder": (1,)}
    engine, programs = fake_engine(batch=2, **shape)
    rejection: dict[str, Any] = {"temperature": 0.9, "seed": 7, "acceptance": "rejection", "max_new_tokens": 20}
    for length, calls in ((1, {"step_rejection_k1", "step"}), (3, {"step_rejection_b2"})):
        alone = fake_engine(**shape)[0].generate([1], draft_length=length, **rejection).token_ids
        with engine.session() as session:
            first, second = session.add([1], draft_length=length, **rejection), session.add([2], draft_length=3)
            programs.calls.clear()
            while first.result is None:
                session.step()
            assert set(programs.calls) == calls
        assert first.token_ids == alone
        assert second.token_ids == toy_text([2], len(second.token_ids))


@settings(deadline=None, max_examples=40)
@given(st.lists(PROMPTS, min_size=1, max_size=3), st.floats(0.2, 2), st.integers(0, 3))
def test_grammars(prompts: list[list[int]], temperature: float, length: int) -> None:
    """A row with an automaton between rows without; in the next request it is gone."""
    engine, _ = fake_engine(batch=3, context=200, grammar=GRAMMAR.next.shape[0] + 7)
    for grammar in (GRAMMAR, None):
        for sampled in ({}, {"temperature": temperature, "seed": 3}):
            base: dict[str, Any] = {"max_new_tokens": 20, "draft_length": length, "eos_token_id": (39,), **sampled}
            with engine.session() as session:
                kinds = [grammar if i % 2 == 0 else None for i in range(len(prompts))]
                jobs = [session.add(p, grammar=g, **base) for p, g in zip(prompts, kinds, strict=True)]
                for _ in session:
                    pass
            for job, prompt, kind in zip(jobs, prompts, kinds, strict=True):
                assert (job.token_ids, job.finish_reason) == expected(prompt, 200, grammar=kind, **base)
                assert kind is None or job.row.grammar_state > 0


def test_lists_of_prompts_come_back_in_order() -> None:
    engine, programs = fake_engine(batch=2, text=letters(), context=200)
    prompts = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11]]
    results = engine.generate(prompts, max_new_tokens=12)
    assert [r.token_ids for r in results] == [toy_text(p, 12) for p in prompts]
    assert [r.text for r in results] == [engine.decode(toy_text(p, 12)) for p in prompts]
    assert [r.token_ids for r in engine.generate(["BCD", "E"], max_new_tokens=3)] == [
        toy_text([1, 2, 3], 3),
        toy_text([4], 3),
    ]
    assert engine.generate([[7]], max_new_tokens=2)[0].token_ids == toy_text([7], 2)
    assert engine.generate([7], max_new_tokens=2).token_ids == toy_text([7], 2)
    assert max(programs.active) == 2
    with pytest.raises(ConfigError, match=r"prompts\[1\]\[0\] 99 must be in"):
        engine.generate([[1], [99]])
    with pytest.raises(ConfigError, match=r"prompts\[2\] is empty"):
        engine.generate([[1], [2], []])


def test_seeds_of_several_prompts() -> None:
    engine, _ = fake_engine(batch=3)
    given_seed = engine.generate([[1], [1], [2]], temperature=1.0, seed=5, max_new_tokens=20)
    assert given_seed[0].token_ids == given_seed[1].token_ids == toy_text([1], 20, temperature=1.0, seed=5)
    assert [r.seed for r in given_seed] == [5, 5, 5]
    free = engine.generate([[1], [1], [1]], temperature=1.0, max_new_tokens=20)
    assert len({r.seed for r in free}) == 3
    for result in free:
        assert result.token_ids == toy_text([1], 20, temperature=1.0, seed=result.seed)


@pytest.mark.parametrize("kind", ["model", "ngram"])
def test_samples_of_one_prompt(kind: str) -> None:
    """`n` rows, the prompt run once; each sample is the one of that index, in any engine."""
    engine, programs = fake_engine(batch=3, drafter_kind=kind, chunk=4)
    prompt = list(range(20))
    results = engine.generate(prompt, n=3, temperature=1.2, seed=4, max_new_tokens=20)
    assert [r.token_ids for r in results] == [toy_text(prompt, 20, temperature=1.2, seed=4, sample=i) for i in range(3)]
    assert [r.sample for r in results] == [0, 1, 2] and len({tuple(r.token_ids) for r in results}) == 3
    assert [r.stats.reused_tokens for r in results] == [0, 19, 19]
    assert programs.calls.count("prefill_target") == 5
    both = engine.generate([prompt, [7]], n=2, temperature=1.2, seed=4, max_new_tokens=20)
    assert [r.token_ids for r in both[:2]] == [r.token_ids for r in results[:2]]
    assert [r.sample for r in both] == [0, 1, 0, 1]
    again = engine.generate(prompt, n=2, temperature=1.2, max_new_tokens=20)
    assert again[0].seed == again[1].seed != 4
    # A row that was copied from one whose drafter was left behind has its drafter behind too.
    sampled: dict[str, Any] = {"temperature": 1.2, "seed": 4, "sample": 1}
    engine.generate(prompt, n=2, temperature=1.2, seed=4, max_new_tokens=6, draft_length=0)
    more = engine.resume(max_new_tokens=9, draft_length=3)
    assert more.token_ids == toy_text(prompt + toy_text(prompt, 6, **sampled), 9)


def test_what_is_called() -> None:
    """One call a step for all rows; the program of one row where one is left; a bucket as the longest that runs."""
    engine, programs = fake_engine(batch=3, context=400, chunk=64)
    long, short = [i % VOCAB for i in range(300)], [1, 2]
    with engine.session() as session:
        session.add(long, max_new_tokens=4)
        session.add(short, max_new_tokens=40, draft_length=0)
        session.add([3], max_new_tokens=60, temperature=0.8, seed=1, draft_length=0)
        programs.calls.clear()
        while len(session.jobs) == 3:
            session.step()
        assert set(programs.calls) == {"step_coupled_b3"} and set(programs.buckets) == {320}
        programs.calls.clear(), programs.buckets.clear()
        while len(session.jobs) == 2:
            session.step()
        assert set(programs.calls) == {"plain_sampled_b3"} and set(programs.buckets) == {64}
        programs.calls.clear()
        for _ in session:
            pass
        assert set(programs.calls) == {"plain_sampled"}


def test_rows_that_do_not_draft_do_not_run_the_drafter_over_their_prompt() -> None:
    engine, programs = fake_engine(batch=2, chunk=4)
    with engine.session() as session:
        drafting = session.add([1, 2], max_new_tokens=30)
        plain = session.add(list(range(25)), max_new_tokens=30, draft_length=0)
        for _ in session:
            pass
    assert drafting.token_ids == toy_text([1, 2], 30) and plain.token_ids == toy_text(list(range(25)), 30)
    assert "prefill_drafter" not in programs.calls
    assert plain.stats.drafted == 0 and plain.stats.plain_steps == plain.stats.steps == 30


class TestSession:
    """Joining, leaving, and who may do what."""

    def test_a_free_row_is_filled_while_others_run(self) -> None:
        engine, _ = fake_engine(batch=2, context=200)
        with engine.session() as session:
            first, second = session.add([1], max_new_tokens=5), session.add([2], max_new_tokens=50)
            with pytest.raises(ConfigError, match="all 2 rows of this engine are taken; .*--batch 3"):
                session.add([3])
            while first.result is None:
                assert set(session.step()) == {first, second}
            third = session.add([3], max_new_tokens=20)
            assert third.row is first.row
            session.cancel(second)
            assert second.finish_reason == "cancelled" and session.jobs == [third]
            held = second.token_ids
            assert held == toy_text([2], len(held)) and second.row.ids == [2, *held]
            fourth = session.add([4, 4], max_new_tokens=7)
            for advanced in session:
                assert advanced
            assert session.step() == []
        assert third.token_ids == toy_text([3], 20) and fourth.token_ids == toy_text([4, 4], 7)
        session.close()  # twice does nothing

    def test_refused_jobs_leave_the_others(self) -> None:
        engine, _ = fake_engine(batch=2)
        with engine.session() as session:
            job = session.add([1], max_new_tokens=30)
            session.step()
            for bad in ({"top_k": -1}, {"n": 2, "temperature": 1.0}, {"sample": 1}, {"sample": -1}):
                with pytest.raises(ConfigError):
                    session.add([2], **bad)
            for _ in session:
                pass
        assert job.token_ids == toy_text([1], 30)

    def test_cancel(self) -> None:
        engine, _ = fake_engine(batch=2)
        with engine.session() as session:
            job = session.add([1], max_new_tokens=3)
            for _ in session:
                pass
            session.cancel(job)  # it has ended already
            assert job.finish_reason == "length"
            stray = session.add([1])
        with engine.session() as session, pytest.raises(ConfigError, match="another session"):
            session.cancel(stray)
        with engine.session() as session, pytest.raises(ConfigError, match="expected a job, .* not None"):
            session.cancel(None)  # type: ignore[arg-type]

    def test_closed(self) -> None:
        engine, _ = fake_engine()
        with engine.session() as session:
            job = session.add([1])
        for use in (session.step, lambda: session.add([1]), lambda: session.cancel(job)):
            with pytest.raises(EngineError, match="session is closed"):
                use()
        assert job.result is None

    def test_a_later_call_in_the_same_thread_ends_it(self) -> None:
        engine, _ = fake_engine()
        session = engine.session()
        session.add([1])
        assert engine.generate([2], max_new_tokens=3).token_ids == toy_text([2], 3)
        with pytest.raises(EngineError, match="session was ended by a later call"):
            session.step()

    def test_dropped(self) -> None:
        engine, _ = fake_engine()
        session: Session | None = engine.session()
        assert session is not None
        session.add([1])
        session.step()
        del session
        gc.collect()
        assert engine.turns.free

    def test_interrupted(self) -> None:
        """A step that was cut short was none; the next goes on where the last one ended."""
        for at in range(1, 14):
            engine, programs = fake_engine(batch=2, rules=("coupled", "rejection"))
            seen: list[int] = []

            def interrupt(name: str, count: int, seen: list[int] = seen, at: int = at) -> None:
                if name.startswith("step"):
                    seen.append(count)
                    if len(seen) == at:
                        raise KeyboardInterrupt

            programs.interrupt = interrupt
            options: dict[str, Any] = {"max_new_tokens": 20, "temperature": 0.9, "seed": 2}
            with engine.session() as session:
                first = session.add([1], **options)
                second = session.add([2], acceptance="rejection", **options)
                interrupts = 0
                while session.jobs:
                    try:
                        session.step()
                    except KeyboardInterrupt:
                        interrupts += 1
                    assert first.row.ids == [1, *first.token_ids] and second.row.ids == [2, *second.token_ids]
            assert interrupts == 1
            assert first.token_ids == toy_text([1], 20, temperature=0.9, seed=2)
            alone, _ = fake_engine(rules=("coupled", "rejection"))
            assert second.token_ids == alone.generate([2], acceptance="rejection", **options).token_ids


def test_soak() -> None:
    """Thousands of steps with requests that join, leave and end: every text right, nothing kept."""
    engine, programs = fake_engine(batch=4, context=80, text=letters(), ladder=(1,))
    pick = random.Random(0)
    wanted: dict[Any, Any] = {}

    def step(session: Session) -> None:
        while len(session.jobs) < 4 and pick.random() < 0.5:
            prompt = [pick.randrange(VOCAB) for _ in range(pick.randint(1, 20))]
            options: dict[str, Any] = {"max_new_tokens": pick.randint(1, 60), "draft_length": pick.randint(0, 3)}
            if pick.random() < 0.5:
                options |= {"temperature": 0.9, "seed": pick.randrange(99)}
            if pick.random() < 0.3:
                options |= {"logit_bias": {3: -5.0, 5: 2.0}, "presence_penalty": 0.5}
            wanted[session.add(prompt, **options)] = (prompt, options)
        for job in session.step():
            if job.result:
                prompt, options = wanted.pop(job)
                assert (job.result.token_ids, job.result.finish_reason) == expected(prompt, 80, **options)
        if session.jobs and pick.random() < 0.05:
            job = pick.choice(session.jobs)
            session.cancel(job)
            prompt, options = wanted.pop(job)
            assert job.token_ids == toy_text(prompt, len(job.token_ids), Law.of(prompt, **options))
        programs.calls.clear(), programs.active.clear(), programs.buckets.clear()

    with engine.session() as session:
        for _ in range(300):
            step(session)
        before = held()
        for _ in range(1500):
            step(session)
        after = held()
    assert after[0] - before[0] < 1000 and after[1] - before[1] < 20, (before, after)


def held() -> tuple[int, int]:
    """Blocks of memory that Python holds, and tensors."""
    forget()
    gc.collect()
    return sys.getallocatedblocks(), sum(type(thing) is torch.Tensor for thing in gc.get_objects())
