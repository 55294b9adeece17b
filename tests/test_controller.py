"""The controller: never slower than plain by the cost table, whatever drafts do; quick to see that they pay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import helpers.fake_engine
import pytest
from helpers.fake_engine import fake_engine
from helpers.prices import CONTEXT, PRICES, Pattern, Prices, agree, linear, priced, spent
from helpers.toy_law import VOCAB, expected, toy_text
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.manifest import ProgramSpec
from specc.runtime.controller import LOSS, SHARE


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pattern], None]:
    """Makes the drafter of all fake engines right where a pattern over positions of the text says so."""
    return lambda pattern: agree(monkeypatch, pattern)


@pytest.fixture
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


SHAPES = st.fixed_dictionaries(
    {
        "depth": st.integers(1, 6),
        "chunk": st.sampled_from([8, 64]),
        "drafter_kind": st.sampled_from(["model", "ngram"]),
        "ladder": st.sampled_from([(), (1,), (2, 5)]),
    }
)
STRETCHES = st.lists(st.tuples(st.booleans(), st.integers(1, 80)), min_size=1, max_size=6)
PATTERNS = st.lists(st.booleans(), min_size=1) | STRETCHES.map(
    lambda runs: [is_right for is_right, n in runs for _ in range(n)]
)


@settings(deadline=None, max_examples=60)
@given(SHAPES, PRICES, st.integers(1, 150), st.integers(1, 250), st.booleans())
def test_an_unrelated_drafter_costs_two_percent_at_most(
    shape: Any, price: Prices, prompt: int, new: int, sampled: bool
) -> None:
    """It was seen to be unrelated at compile time: whatever is tried is paid for in advance, in texts of any length."""
    with pytest.MonkeyPatch.context() as patch:
        agree(patch, lambda position: False)
        engine, programs = priced(price, trial=0.0, **shape)
        options: dict[str, Any] = {"max_new_tokens": new, **({"temperature": 0.8, "seed": 1} if sampled else {})}
        text = [i % VOCAB for i in range(prompt)]
        result = engine.generate(text, **options)
    assert result.token_ids == toy_text(text, new, **options)
    assert spent(engine, programs) <= (1 + SHARE) * new + 1e-9


@settings(deadline=None, max_examples=150)
@given(SHAPES, PRICES, st.integers(1, 100), st.integers(1, 290), st.floats(0, 1), PATTERNS)
def test_whatever_drafts_do_little_is_lost(
    shape: Any, price: Prices, prompt: int, new: int, trial: float, pattern: list[bool]
) -> None:
    """The trial was wrong, or acceptance comes and goes in the worst way."""
    with pytest.MonkeyPatch.context() as patch:
        agree(patch, lambda position: pattern[position % len(pattern)])
        engine, programs = priced(price, trial=trial, **shape)
        text = [i % VOCAB for i in range(prompt)]
        result = engine.generate(text, max_new_tokens=new)
    assert result.token_ids == toy_text(text, new)
    seconds = {name: row[0] for name, row in engine.manifest.cost["seconds"].items()}
    most = LOSS + max(seconds[name] for name, spec in engine.manifest.programs.items() if spec.rule)
    assert spent(engine, programs) <= (1 + SHARE) * new + most


def test_a_drafter_that_only_seemed_good_stays_within_five_percent(drafts: Any) -> None:
    drafts(lambda position: False)
    for depth in (1, 3, 6):
        engine, programs = priced(trial=0.9, depth=depth)
        engine.generate([1, 2], max_new_tokens=250)
        assert programs.calls.count("plain") > 200
        assert spent(engine, programs) <= 1.05 * 250


def test_good_drafts_are_used_from_the_first_step(drafts: Any) -> None:
    drafts(lambda position: position % 4 > 0)
    engine, programs = priced(trial=0.7, depth=3)
    result = engine.generate([1, 2], max_new_tokens=200)
    assert result.stats.plain_steps <= 1  # where one token is left to write
    assert spent(engine, programs) < 0.8 * 200


def test_good_drafts_that_came_late_are_found(drafts: Any) -> None:
    """The trial said no; the text says yes, from its middle on."""
    drafts(lambda position: position > 100)
    engine, programs = priced(trial=0.0, depth=3)
    stats = engine.generate([1, 2], max_new_tokens=350).stats
    steps = [name for name in programs.calls if name in ("step", "plain")]
    assert steps[-15:] == ["step"] * 15  # and it stays
    assert 50 < stats.plain_steps < 250 and stats.steps < 300
    assert spent(engine, programs) < 0.9 * 350


def test_tries_become_rarer(drafts: Any) -> None:
    drafts(lambda position: False)
    engine, programs = priced(linear(0.02, 0.02, 0.02), trial=0.0, depth=3)
    engine.generate([1, 2], max_new_tokens=390)
    steps = [name for name in programs.calls if name in ("step", "plain")]
    starts = [i for i, name in enumerate(steps) if name == "step" and steps[i - 1] == "plain"]
    gaps = [b - a for a, b in zip([0, *starts], starts, strict=False)]
    assert len(gaps) >= 3 and all(b > 1.5 * a for a, b in zip(gaps, gaps[1:], strict=False)), gaps


def test_what_can_never_be_paid_for_is_not_tried(drafts: Any) -> None:
    """To catch the drafter up over a token costs more than a token's share."""
    drafts(lambda position: True)
    engine, programs = priced(linear(prefill=0.3), trial=0.0, chunk=8)
    engine.generate([1, 2], max_new_tokens=390)
    assert set(programs.calls) == {"prefill_target", "plain"}


def test_what_a_drafter_has_gained_pays_for_its_return(drafts: Any) -> None:
    """The same price; but drafts were right before they failed for a while, and are right again."""
    drafts(lambda position: not 150 < position < 270)
    engine, programs = priced(linear(prefill=0.3), trial=0.7, chunk=8, context=700)
    stats = engine.generate([1, 2], max_new_tokens=600).stats
    steps = [name for name in programs.calls if name in ("step", "plain")]
    assert steps[-15:] == ["step"] * 15
    assert 80 < stats.plain_steps < 200


def test_catching_up_does_not_make_tries_rarer(drafts: Any) -> None:
    """A drafter that seemed good and was not, and is later: to catch it up costs half of what a token earns."""
    drafts(lambda position: position > 300)
    engine, programs = priced(linear(0.05, 0.05, 0.08), trial=0.9, chunk=8, context=1600)
    engine.generate([1, 2], max_new_tokens=1500)
    assert programs.calls[-50:].count("step") > 40


def test_the_drafter_does_not_see_the_prompt_before_it_must(drafts: Any) -> None:
    drafts(lambda position: False)
    engine, programs = priced(trial=0.0, chunk=8)
    engine.generate(range(35), max_new_tokens=20)
    assert programs.calls == ["prefill_target"] * 5 + ["plain"] * 20
    good, calls = priced(trial=0.9, chunk=8)
    good.generate(range(35), max_new_tokens=200)
    assert calls.calls[:11] == ["prefill_target"] * 5 + ["prefill_drafter"] * 5 + ["step"]
    short, calls = priced(linear(prefill=0.2), trial=0.9, chunk=8)
    short.generate(range(35), max_new_tokens=2)  # what is gained would not pay for the drafter's prompt
    assert calls.calls == ["prefill_target"] * 5 + ["plain"] * 2


@pytest.mark.parametrize(
    ("trial", "pattern", "program"),
    [(0.0, 0, "plain"), (0.55, 2, "step_k1"), (0.8, 5, "step"), (0.98, 99, "step_k7")],
)
def test_the_length_is_the_one_that_pays_most(drafts: Any, trial: float, pattern: int, program: str) -> None:
    drafts(lambda position: pattern > 0 and position % pattern > 0)
    engine, programs = priced(linear(0.12, 0.1), trial=trial, depth=3, ladder=(1, 7))
    engine.generate([1, 2], max_new_tokens=60)
    steps = [name for name in programs.calls if "prefill" not in name]
    assert steps.count(program) > 0.8 * len(steps), steps


def test_the_length_follows_the_text(drafts: Any) -> None:
    drafts(lambda position: position < 800 or position % 2 == 0)
    engine, programs = priced(linear(0.12, 0.1), trial=0.6, depth=3, ladder=(1, 7), context=1200)
    stats = engine.generate([1, 2], max_new_tokens=1100).stats
    steps = [name for name in programs.calls if "prefill" not in name]
    assert "step_k7" in steps and set(steps[-20:]) <= {"step_k1", "plain"}
    assert len(stats.drafted_per_position) == len(stats.accepted_per_position) == 7
    lengths = {"plain": 0, "step_k1": 1, "step": 3, "step_k7": 7}
    assert stats.drafted_per_position == [sum(lengths[n] > i for n in steps) for i in range(7)]
    assert sum(stats.accepted_per_position) == stats.accepted and sum(stats.drafted_per_position) == stats.drafted
    assert stats.plain_steps == steps.count("plain") and stats.steps == len(steps)


def test_a_tree_and_a_chain_of_one_depth(drafts: Any) -> None:
    """A program of the ladder as deep as the main tree is chosen where the tree's width does not pay."""
    for node, program in ((0.2, "step_k2"), (0.0, "step")):
        drafts(lambda position: position % 5 > 0)
        engine, programs = priced(linear(node, 0.05), trial=0.8, tree=(3, 2), ladder=(2,))
        engine.generate([1, 2], max_new_tokens=40)
        steps = [name for name in programs.calls if "prefill" not in name]
        assert steps.count(program) > 0.7 * len(steps), steps


def test_the_same_request_makes_the_same_calls(drafts: Any) -> None:
    drafts(lambda position: position // 50 % 2 > 0)
    engine, programs = priced(trial=0.4, depth=3, ladder=(1,))
    runs = []
    for prompt in ([3, 1], [9] * 20, [3, 1]):
        programs.calls.clear()
        result = engine.generate(prompt, max_new_tokens=300)
        assert result.token_ids == toy_text(prompt, 300)
        runs.append(list(programs.calls))
    assert runs[0] == runs[2] != runs[1]
    assert "plain" in runs[0] and len({name for name in runs[0] if "step" in name}) > 0


def test_what_is_asked_for_is_done(drafts: Any) -> None:
    drafts(lambda position: False)
    engine, programs = priced(trial=0.0, depth=3, ladder=(1,), rules=("coupled", "rejection"))
    sampled: dict[str, Any] = {"temperature": 1.0, "seed": 2}
    for options, program in (
        ({"draft_length": 3}, "step"),
        ({"draft_length": 1}, "step_k1"),
        ({"draft_length": 0}, "plain"),
        ({"draft_length": 3, **sampled}, "step_coupled"),
        ({"acceptance": "rejection", **sampled}, "step_rejection"),
        (sampled, "plain_sampled"),
        ({}, "plain"),
    ):
        programs.calls.clear()
        engine.generate([1, 2], max_new_tokens=30, **options)
        assert set(programs.calls) <= {program, "prefill_target", "prefill_drafter"}, options


def test_without_costs_the_main_length_is_drafted(drafts: Any) -> None:
    drafts(lambda position: False)
    for cost in ({}, {"seconds_per_call": {"plain": 1.0, "step": 2.0}, "context": 9}):
        engine, programs = fake_engine(cost=cost, ladder=(1,))
        assert engine.pilot is None
        engine.generate([1, 2], max_new_tokens=30)
        assert set(programs.calls) == {"prefill_target", "step"}


def test_a_step_by_hand_drafts(drafts: Any) -> None:
    drafts(lambda position: False)
    engine, programs = priced(trial=0.0)
    engine.generate([1, 2], max_new_tokens=1)
    engine.step()
    assert programs.calls[-1] == "step"
    right = toy_text(engine.token_ids, 3)
    assert engine.step(draft=right).token_ids[:3] == right
    with engine.session() as session:
        job = session.add([5], max_new_tokens=20)
        session.step()
        session.step(draft=toy_text([5, *job.token_ids], 3))
        assert programs.calls[-2:] == ["plain", "step"] and len(job.token_ids) == 5


def test_lookup_that_rarely_finds_anything(patched: pytest.MonkeyPatch) -> None:
    """What it finds is right; but most steps find nothing, and cost as much."""
    row = helpers.fake_engine._Row
    agree(patched, lambda position: True)
    own = row._draft

    def rarely(self: Any, known: list[int]) -> tuple[list[int], int]:
        tokens, _ = own(self, known)
        return tokens, self.tree.depth if len(known) % 12 == 0 else 0

    patched.setattr(row, "_draft", rarely)
    engine, programs = priced(trial=0.9, drafter_kind="ngram", depth=3)
    stats = engine.generate([1, 2], max_new_tokens=250).stats
    assert stats.plain_steps > 200 and spent(engine, programs) < 1.05 * 250
    drafts_always = lambda self, known: (own(self, known)[0], self.tree.depth)  # noqa: E731
    patched.setattr(row, "_draft", drafts_always)
    assert engine.generate([1, 2], max_new_tokens=250).stats.plain_steps <= 1


class TestRows:
    """Rows that are stepped together share a program: it is chosen for all of them, at its own price."""

    def test_many_rows_plain_one_row_drafting(self, drafts: Any) -> None:
        """With more rows a verification costs more than it gains; the last row left speculates."""
        drafts(lambda position: position % 4 > 0)

        def price(spec: ProgramSpec) -> float:
            return (1.0 if spec.batch == 1 else 0.4 + len(spec.tree_paths)) if spec.rule else 0.1

        engine, programs = priced(price, trial=0.7, batch=3)
        with engine.session() as session:
            jobs = [session.add([i], max_new_tokens=n) for i, n in enumerate((30, 30, 150))]
            programs.calls.clear()
            while len(session.jobs) > 1:
                session.step()
            assert set(programs.calls) == {"plain_b3"}
            programs.calls.clear()
            for _ in session:
                pass
            assert programs.calls.count("step") > 0.8 * len(programs.calls)
        for i, job in enumerate(jobs):
            assert job.token_ids == toy_text([i], len(job.token_ids))

    @pytest.mark.parametrize("rows", [2, 3])
    def test_unrelated(self, drafts: Any, rows: int) -> None:
        drafts(lambda position: False)
        engine, programs = priced(trial=0.0, batch=rows, chunk=64)
        texts = engine.generate([[i, 1] for i in range(rows)], max_new_tokens=300)
        assert [t.token_ids for t in texts] == [toy_text([i, 1], 300) for i in range(rows)]
        assert "step_b" in "".join(programs.calls)
        assert spent(engine, programs) <= (1 + SHARE) * 300

    def test_beside_one_that_drafts_anyway(self, drafts: Any) -> None:
        """A neighbour's explicit length makes the call a draft; then drafting costs this row nothing more."""
        drafts(lambda position: position % 3 > 0)
        engine, programs = priced(linear(1.0, 1.0), trial=0.6, batch=2)
        with engine.session() as session:
            fixed = session.add([1], max_new_tokens=40, draft_length=3)
            free = session.add([2], max_new_tokens=200)
            while fixed.result is None:
                session.step()
            assert free.stats.plain_steps == 0 and set(programs.calls) <= {"prefill_target", "step_b2"}
            for _ in session:
                pass
        assert free.stats.plain_steps > 50 and fixed.stats.plain_steps == 0
        assert fixed.token_ids == toy_text([1], 40) and free.token_ids == toy_text([2], 200)

    @settings(deadline=None, max_examples=100)
    @given(
        st.integers(1, 4),
        st.sampled_from([(), (2, 2, 1)]),
        PRICES,
        st.floats(0, 1),
        st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60), st.integers(0, 5)), min_size=1, max_size=6),
        st.sampled_from([("coupled",), ("coupled", "rejection"), ("rejection",)]),
    )
    def test_texts_do_not_depend_on_what_is_chosen(
        self, batch: int, tree: Sequence[int], price: Prices, trial: float, texts: Any, rules: Sequence[str]
    ) -> None:
        engine, _ = priced(price, trial, batch=batch, tree=tree, ladder=(1, 5), rules=rules)
        modes: list[dict[str, Any]] = [{}, {"temperature": 0.9, "seed": 4}, {"draft_length": 2}, {"draft_length": 0}]
        modes += [{"temperature": 1.1, "seed": 3, "draft_length": 0}, {"eos_token_id": (3, 17)}]
        with engine.session() as session:
            waiting, jobs = list(texts), []
            while waiting or session.jobs:
                while waiting and len(session.jobs) < batch:
                    first, new, mode = waiting.pop(0)
                    options = {"max_new_tokens": new, **modes[mode]}
                    jobs.append((session.add([first, 2], **options), options, first))
                session.step()
        for job, options, first in jobs:
            assert job.result is not None
            if "rejection" in rules and options.get("temperature") and "draft_length" not in options:
                if rules[0] == "rejection":
                    continue  # its text is the programs' own
            assert (job.result.token_ids, job.result.finish_reason) == expected([first, 2], CONTEXT, **options)
            stats = job.result.stats
            assert sum(stats.drafted_per_position) == stats.drafted >= stats.accepted
            assert stats.steps <= stats.tokens <= stats.steps + stats.accepted
