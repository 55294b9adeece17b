"""The controller where drafts are looked up: the length of the suffix that occurred before says where to draft."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import helpers.fake_engine
import pytest
from helpers.fake_engine import FakePrograms
from helpers.prices import PRICES, Prices, agree, linear, priced, spent
from helpers.toy_law import toy_text
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.runtime import Engine
from specc.runtime.controller import LOSS, SHARE
from specc.runtime.cost import Trial
from specc.runtime.suffixes import Suffixes

LOOKUP = 3  # tokens of the longest suffix


@pytest.fixture
def patched() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def right_behind(patch: pytest.MonkeyPatch, right: Collection[int]) -> None:
    """Drafts are right where a suffix of one of these lengths occurred before; n-gram lookup has none behind 0."""
    row, own = helpers.fake_engine._Row, helpers.fake_engine._Row._draft

    def draft(self: Any, known: list[int]) -> tuple[list[int], int]:
        match = Suffixes(LOOKUP).match(known)
        agree(patch, lambda position: match in right)
        tokens, offered = own(self, known)
        if self.ngram:
            offered = min(self.tree.depth, self.number("draft_limit")) if match else 0
        return tokens, offered

    patch.setattr(row, "_draft", draft)


class TestLookup:
    """Drafts that are looked up: the length of the suffix that occurred before says where to draft."""

    @pytest.fixture
    def lookup(self, patched: pytest.MonkeyPatch) -> Callable[[Collection[int]], None]:
        return lambda right: right_behind(patched, right)

    def steps_by_match(self, engine: Engine, programs: FakePrograms, new: int) -> dict[int, list[str]]:
        """Names of the steps at each length of the suffix."""
        found: dict[int, list[str]] = {match: [] for match in range(LOOKUP + 1)}
        with engine.session() as session:
            job = session.add([1, 2], max_new_tokens=new)
            while job.result is None:
                match = Suffixes(LOOKUP).match(job.row.ids)
                session.step()
                found[match].append(programs.calls[-1])
        assert job.token_ids == toy_text([1, 2], new)
        return found

    def test_drafts_where_they_are_taken(self, lookup: Any) -> None:
        """Long suffixes are right and short ones are not: the trial knew nothing of that, the text tells it."""
        lookup((2, 3))
        engine, programs = priced(trial=0.6, drafter_kind="ngram", depth=3, lookup=LOOKUP, context=900)
        found = self.steps_by_match(engine, programs, 800)
        assert set(found[0]) == {"plain"}, "nothing is drafted where nothing is found"
        assert found[1].count("plain") > 0.8 * len(found[1]) > 80
        assert found[2].count("step") > 0.8 * len(found[2]) > 10
        assert spent(engine, programs) < 800

    def test_begins_with_what_was_tried_at_each_length(self, lookup: Any) -> None:
        lookup(())
        good, bad = Trial(50, 50, (45, 40, 35)), Trial(50, 50, (2, 0, 0))
        by_match = {"step": [t._asdict() for t in (Trial(50, 0, (0, 0, 0)), bad, good, good)]}
        engine, programs = priced(trial=0.6, by_match=by_match, drafter_kind="ngram", depth=3, lookup=LOOKUP)
        found = self.steps_by_match(engine, programs, 60)
        assert found[1] and set(found[0] + found[1]) == {"plain"}
        assert found[2][0] == "step"

    LOOKING = st.fixed_dictionaries(
        {
            "drafter_kind": st.sampled_from(["ngram", "model"]),
            "depth": st.integers(1, 5),
            "chunk": st.sampled_from([8, 64]),
            "ladder": st.sampled_from([(), (1,), (2, 7)]),
            "batch": st.integers(1, 3),
        }
    )

    @settings(deadline=None, max_examples=150)
    @given(LOOKING, PRICES, st.integers(1, 300), st.floats(0, 1), st.sets(st.integers(0, 3)), st.integers(0, 2))
    def test_little_is_lost(
        self, shape: Any, price: Prices, new: int, trial: float, right: set[int], first: int
    ) -> None:
        """The promises hold for all lengths together, and for rows that share a call."""
        with pytest.MonkeyPatch.context() as patch:
            right_behind(patch, right)
            engine, programs = priced(price, trial=trial, lookup=LOOKUP, **shape)
            prompts = [[first, i + 2] for i in range(shape["batch"])]
            results = engine.generate(prompts, max_new_tokens=new)
        assert [result.token_ids for result in results] == [toy_text(prompt, new) for prompt in prompts]
        seconds = {name: row[0] for name, row in engine.manifest.cost["seconds"].items()}
        most = LOSS + max(seconds[name] for name, spec in engine.manifest.programs.items() if spec.rule)
        assert spent(engine, programs) <= (1 + SHARE) * new + most

    @settings(deadline=None, max_examples=60)
    @given(LOOKING, PRICES, st.integers(1, 300), st.integers(0, 2))
    def test_an_unrelated_drafter_costs_two_percent_at_most(
        self, shape: Any, price: Prices, new: int, first: int
    ) -> None:
        with pytest.MonkeyPatch.context() as patch:
            right_behind(patch, ())
            engine, programs = priced(price, trial=0.0, lookup=LOOKUP, **shape)
            engine.generate([[first, i + 2] for i in range(shape["batch"])], max_new_tokens=new)
        assert spent(engine, programs) <= (1 + SHARE) * new + 1e-9

    def test_a_length_that_was_not_tried_is_as_all_are(self, lookup: Any) -> None:
        lookup(())
        unseen = {"step": [Trial(0, 0, (0, 0, 0))._asdict()] * (LOOKUP + 1)}
        engine, programs = priced(trial=0.0, by_match=unseen, drafter_kind="ngram", depth=3, lookup=LOOKUP)
        engine.generate([1, 2], max_new_tokens=60)
        assert set(programs.calls) == {"prefill_target", "plain"}

    def test_a_neighbour_where_nothing_is_found_is_no_reason_to_rest(self, lookup: Any) -> None:
        """Rows go on in one call: one finds a draft at every step, the other never does."""
        lookup((3,))
        engine, programs = priced(linear(0.05, 0.05), trial=0.9, drafter_kind="ngram", batch=2, lookup=LOOKUP)
        with engine.session() as session:
            loop = session.add([0], max_new_tokens=60, logit_bias={7: 99.0})
            other = session.add([1], max_new_tokens=60)
            for _ in range(40):
                session.step()
            assert loop.result is not None and loop.stats.steps < 30
            assert loop.token_ids == [7] * 60 and other.token_ids == toy_text([1], len(other.token_ids))

    def test_a_step_may_be_begun_ahead_where_the_text_says_nothing_of_the_next(self, lookup: Any) -> None:
        lookup((3,))
        engine, _ = priced(linear(0.05, 0.05), trial=0.0, drafter_kind="ngram", lookup=LOOKUP)
        with engine.session() as session:
            job = session.add([1, 2], max_new_tokens=60)
            session.step()
            assert job.controller is not None and not job.controller.undecided
            job.controller.case.begin(0)
            assert job.controller.undecided
