"""The controller: never slower than plain by the cost table, whatever drafts do; quick to see that they pay."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import helpers.fake_engine
import pytest
from helpers.fake_engine import FakePrograms, fake_engine, toy_manifest
from helpers.toy_law import VOCAB, choose, expected, toy_text
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.errors import EngineFormatError, LowAcceptanceWarning
from specc.manifest import ProgramSpec
from specc.runtime import Engine
from specc.runtime.acceptance import MEMORY, PRIOR, Acceptance
from specc.runtime.calibrate import time_programs
from specc.runtime.controller import LOSS, SHARE
from specc.runtime.cost import CostTable, Trial

CONTEXT = 400
Prices = Callable[[ProgramSpec], float]
Pattern = Callable[[int], bool]


def linear(node: float = 0.1, level: float = 0.1, prefill: float = 0.05) -> Prices:
    """A plain step costs 1, every node and every level of a draft something more."""

    def price(spec: ProgramSpec) -> float:
        return 1 + node * (len(spec.tree_paths) - 1) + level * len(spec.tree_paths[-1]) if spec.rule else prefill

    return price


def priced(price: Prices | None = None, trial: float | None = 0.5, **shape: Any) -> tuple[Engine, FakePrograms]:
    """A fake engine with a cost table, whose trial at compile time had this rate of acceptance at every level."""
    shape = {"context": CONTEXT, **shape}
    manifest, price = toy_manifest(**shape), price or linear()
    cost: dict[str, Any] = {"tokens": [64], "seconds": {n: [price(s)] for n, s in manifest.programs.items()}}
    if trial is not None:
        cost["acceptance"] = {
            name: Trial(
                100, 100, tuple(round(100 * trial ** (i + 1)) for i in range(len(spec.tree_paths[-1])))
            )._asdict()
            for name, spec in manifest.programs.items()
            if spec.rule == "greedy" and len(spec.tree_paths) > 1
        }
    return fake_engine(cost=cost, **shape)


@pytest.fixture
def drafts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Pattern], None]:
    """Makes the drafter of all fake engines right where a pattern over positions of the text says so."""
    return lambda pattern: agree(monkeypatch, pattern)


def agree(patch: pytest.MonkeyPatch, pattern: Pattern) -> None:
    def draft(known: Sequence[int], law: Any, state: int = 0) -> int:
        token = choose(known, law, state)
        return token if pattern(len(known)) else (token + 7) % VOCAB  # a tree's other children are near

    patch.setattr(helpers.fake_engine, "draft", draft)


@pytest.fixture
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def spent(engine: Engine, programs: FakePrograms, prompt: int = 1) -> float:
    """Seconds of all calls by the table, but for the prompt's own: those of the target, and the drafter's first."""
    calls = list(programs.calls)
    first = next((i for i, name in enumerate(calls) if engine.manifest.programs[name].rule), len(calls))
    return sum(engine.manifest.cost["seconds"][name][0] for name in calls[first:])


SHAPES = st.fixed_dictionaries(
    {
        "depth": st.integers(1, 6),
        "chunk": st.sampled_from([8, 64]),
        "drafter_kind": st.sampled_from(["model", "ngram"]),
        "ladder": st.sampled_from([(), (1,), (2, 5)]),
    }
)
PRICES = st.builds(linear, st.floats(0.0, 0.5), st.floats(0.0, 0.6), st.floats(0.01, 2))


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
@given(SHAPES, PRICES, st.integers(1, 100), st.integers(1, 290), st.floats(0, 1), st.lists(st.booleans(), min_size=1))
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


class TestAcceptance:
    """The estimate of one tree."""

    def test_begins_with_the_trial(self) -> None:
        found = Acceptance(3, Trial(1000, 1000, (800, 400, 100)))
        assert found.tokens(3) == pytest.approx(1 + 0.8 + 0.4 + 0.1, abs=0.02)
        assert found.tokens(1) == pytest.approx(1.8, abs=0.01)
        rarely = Acceptance(3, Trial(1000, 100, (100, 100, 100)))
        assert rarely.tokens(3) == pytest.approx(1.3, abs=0.02)
        deeper = Acceptance(5, Trial(1000, 1000, (500, 250)))  # deeper than was tried: as the last level
        assert deeper.tokens(5) == pytest.approx(sum(0.5**i for i in range(6)), abs=0.02)
        assert Acceptance(2, Trial(50, 50, (0, 0))).tokens(2) == pytest.approx(1, abs=0.03)

    def test_follows_what_is_seen(self) -> None:
        found = Acceptance(2, Trial(100, 100, (90, 80)))
        for _ in range(200):
            found.see(0, 2, 2)
        assert found.tokens(2) < 1.01
        for _ in range(200):
            found.see(2, 2, 2)
        assert found.tokens(2) > 2.9

    def test_levels_count_where_they_were_reached(self) -> None:
        """Half of the steps take both levels, half none: 1 token or 3."""
        found = Acceptance(2, None)
        for i in range(400):
            found.see(2 * (i % 2), 2, 2)
        assert found.tokens(1) == pytest.approx(1.5, abs=0.02) and found.tokens(2) == pytest.approx(2.0, abs=0.03)

    def test_steps_without_a_draft(self) -> None:
        found = Acceptance(2, Trial(100, 100, (100, 100)))
        for i in range(400):
            found.see(2 * (i % 4 == 0), 2 * (i % 4 == 0), 2)
        assert found.tokens(2) == pytest.approx(1 + 2 * 0.25, abs=0.04)

    def test_weights(self) -> None:
        """A trial counts for `PRIOR` steps at first, and less with each step after."""
        found, plain = Acceptance(1, Trial(10**6, 10**6, (5 * 10**5,))), Acceptance(1, None)
        found.see(1, 1, 1)
        assert found.tokens(1) == pytest.approx(1 + (MEMORY * PRIOR / 2 + 1) / (MEMORY * PRIOR + 1), abs=1e-4)
        for _ in range(50):
            plain.see(0, 1, 1)
        plain.fade(2)
        for _ in range(4):
            plain.see(1, 1, 1)
        assert plain.tokens(1) > 1.6


class TestCostTable:
    """Seconds by tokens in the cache, and tables that are none."""

    def test_between_and_beyond_the_lengths(self) -> None:
        table = CostTable({"a": (1.0, 2.0, 2.5), "b": (3.0, 2.0, 1.0)}, (100, 200, 300), {})
        assert [table.seconds("a", n) for n in (0, 100, 150, 200, 250, 300, 400)] == [1, 1, 1.5, 2, 2.25, 2.5, 3]
        assert table.seconds("b", 150) == 2.5 and table.seconds("b", 1000) == 1.0
        assert CostTable({"a": (4.0,)}, (64,), {}).seconds("a", 9999) == 4
        assert "a" in table and "c" not in table

    @pytest.mark.parametrize(
        "damage",
        [
            {"tokens": [64, 32]},
            {"tokens": []},
            {"tokens": "64"},
            {"seconds": {"plain": [0.0]}},
            {"seconds": {"plain": [float("nan")]}},
            {"seconds": {"plain": [1.0, 2.0]}},
            {"seconds": [1]},
            {"acceptance": {"step": {"steps": 1, "drafts": -1, "accepted": [1]}}},
            {"acceptance": {"step": 5}},
            {"acceptance": None},
        ],
    )
    def test_damaged(self, damage: dict[str, Any]) -> None:
        cost = {"tokens": [64], "seconds": {"plain": [1.0]}, **damage}
        with pytest.raises(EngineFormatError, match="cost is not a table"):
            CostTable.read(cost)
        with pytest.raises(EngineFormatError, match="compile the engine again"):
            fake_engine(cost=cost)

    def test_incomplete(self) -> None:
        """An engine with a program that was not timed drafts what it was compiled for."""
        manifest = toy_manifest(ladder=(1,))
        for missing in ("step_k1", "prefill_drafter"):
            seconds = {name: [1.0] for name in manifest.programs if name != missing}
            engine, programs = fake_engine(ladder=(1,), cost={"tokens": [64], "seconds": seconds})
            engine.generate([1], max_new_tokens=20)
            assert set(programs.calls) == {"step"}


class TestCalibrate:
    """Timing the programs of an engine where it runs."""

    def timed(self, seconds: Prices, **shape: Any) -> tuple[Engine, FakePrograms]:
        engine, programs = fake_engine(context=CONTEXT, **shape)
        for row in range(engine.manifest.batch):  # texts that have ended
            engine.generate([[i, 3] for i in range(row + 1)], max_new_tokens=2, logit_bias={3: 1.0})
        programs.calls.clear()
        now = [0.0]

        def tick(name: str, count: int) -> None:
            now[0] += seconds(engine.manifest.programs[name]) / 2  # before a call and after it

        programs.interrupt = tick
        with pytest.MonkeyPatch.context() as patch:  # nothing is in the caches
            patch.setattr(helpers.fake_engine, "_read", lambda cache, b, length, read: [0] * length)
            cost = time_programs(engine.machine, engine.manifest, lambda: now[0])
        assert cost["tokens"] == [64, CONTEXT - 2 - engine.machine.programs.depth] and 3 <= cost["rounds"] <= 11
        for name, spec in engine.manifest.programs.items():
            if spec.rule != "rejection":
                assert cost["seconds"][name] == [pytest.approx(seconds(spec), abs=1e-6)] * 2
        assert not [name for name in cost["seconds"] if "rejection" in name]
        assert all(not row.ids and row.target_length == 0 for row in engine.machine.rows)
        return engine, programs

    def test_every_program_is_timed(self) -> None:
        self.timed(linear(), ladder=(1, 7), batch=3, rules=("coupled", "rejection"))
        self.timed(linear(), tree=(2, 2))
        self.timed(linear(), drafter_kind="ngram", ladder=(5,))

    def test_long_calls_get_few_rounds(self) -> None:
        _, programs = self.timed(lambda spec: 1.0)
        assert programs.calls.count("plain") == 2 * 4
        _, programs = self.timed(lambda spec: 1e-3)
        assert programs.calls.count("plain") == 2 * 12


def test_an_engine_says_once_that_drafts_are_refused(drafts: Any) -> None:
    drafts(lambda position: False)
    engine, _ = priced(trial=0.0, depth=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        engine.generate([1], max_new_tokens=100, draft_length=3)
        assert not caught
        for _ in range(3):
            engine.generate([1], max_new_tokens=100, draft_length=3)
    assert [w.category for w in caught] == [LowAcceptanceWarning]
    words = str(caught[0].message)
    assert "acceptance 0% (0 of 128" in words and "(1 - a^(K+1)) / (1 - a) = 1.00 tokens" in words
    assert "costs 1.60 plain steps, which makes 0.62x" in words and "draft_length=0" in words


def test_an_engine_with_good_drafts_says_nothing(drafts: Any) -> None:
    drafts(lambda position: position % 2 > 0)
    engine, _ = priced(trial=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.generate([1], max_new_tokens=390, draft_length=3)
