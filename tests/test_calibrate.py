"""Calibrate: every program of an engine is timed where it runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import helpers.fake_engine
import pytest
from helpers.fake_engine import FakePrograms, fake_engine
from helpers.prices import CONTEXT, Prices, agree, linear

from specc.manifest import ProgramSpec
from specc.runtime import Engine
from specc.runtime.calibrate import time_programs, try_drafts
from specc.runtime.cost import CostTable, Trial
from specc.runtime.suffixes import Suffixes


class TestCalibrate:
    """Timing the programs of an engine where it runs."""

    def cost(self, engine: Engine, programs: FakePrograms, seconds: Prices) -> dict[str, Any]:
        """What is measured where a program takes so many seconds."""
        programs.calls.clear()
        now = [0.0]

        def tick(name: str, count: int) -> None:
            now[0] += seconds(engine.manifest.programs[name]) / 2  # before a call and after it

        programs.interrupt = tick
        with pytest.MonkeyPatch.context() as patch:  # nothing is in the caches
            patch.setattr(helpers.fake_engine, "_read", lambda cache, b, length, read: [0] * length)
            return time_programs(engine.machine, engine.manifest, lambda: now[0])

    def timed(self, seconds: Prices, **shape: Any) -> tuple[Engine, FakePrograms]:
        engine, programs = fake_engine(context=CONTEXT, **shape)
        for row in range(engine.manifest.batch):  # texts that have ended
            engine.generate([[i, 3] for i in range(row + 1)], max_new_tokens=2, logit_bias={3: 1.0})
        cost = self.cost(engine, programs, seconds)
        assert cost["tokens"] == [64, CONTEXT - 2 - engine.machine.programs.depth] and 5 <= cost["rounds"] <= 15
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
        assert programs.calls.count("plain") == 2 * 6
        _, programs = self.timed(lambda spec: 1e-3)
        assert programs.calls.count("plain") == 2 * 16

    def test_the_least_of_all_rounds_counts(self) -> None:
        """Other work only adds: here it makes most calls dearer."""
        engine, programs = fake_engine(context=CONTEXT)
        seen: Counter[str] = Counter()

        def disturbed(spec: ProgramSpec) -> float:
            seen[spec.file] += 1
            return 1e-3 if (seen[spec.file] - 1) // 4 == 3 else 3e-3  # two looks at the clock, two lengths a round

        found = self.cost(engine, programs, disturbed)["seconds"]["plain"]
        assert found == [pytest.approx(1e-3, rel=0.01)] * 2

    def test_a_step_takes_no_less_than_the_plain_one_in_it(self) -> None:
        engine, programs = fake_engine(context=CONTEXT, rules=("coupled",))
        cost = self.cost(engine, programs, lambda spec: 1e-3 if spec.rule and len(spec.tree_paths) > 1 else 2e-3)
        assert sorted(cost["unsteady"]) == ["step", "step_coupled"]
        assert cost["seconds"]["step"] == cost["seconds"]["plain"] == [pytest.approx(2e-3)] * 2
        cost = self.cost(engine, programs, lambda spec: 2e-3)
        assert cost["unsteady"] == []


def test_drafts_that_are_looked_up_are_tried_by_the_suffix_that_occurred_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    row, own = helpers.fake_engine._Row, helpers.fake_engine._Row._draft

    def draft(self: Any, known: list[int]) -> tuple[list[int], int]:
        match = Suffixes(3).match(known)
        agree(monkeypatch, lambda position: match == 2)
        return own(self, known)[0], self.tree.depth if match else 0

    monkeypatch.setattr(row, "_draft", draft)
    engine, _ = fake_engine(context=CONTEXT, drafter_kind="ngram", depth=3, lookup=3)
    cost = try_drafts(engine.machine, engine.manifest, [[1, 2], [5, 5, 5]], 150)
    (trial,), (found,) = cost["acceptance"].values(), cost["by_match"].values()
    assert len(found) == 4 and found[0]["drafts"] == 0 and all(one["drafts"] == one["steps"] for one in found[1:])
    for name in ("steps", "drafts"):
        assert sum(one[name] for one in found) == trial[name] > 0
    assert found[1]["accepted"] == (0, 0, 0) and found[1]["steps"] > 10
    assert found[2]["accepted"][0] == found[2]["steps"] > 0
    assert CostTable.read({"seconds": {}, "tokens": [64], **cost}).by_match == {
        "step": [Trial(one["steps"], one["drafts"], tuple(one["accepted"])) for one in found]
    }
    plain, _ = fake_engine(context=CONTEXT, depth=3)
    assert "by_match" not in try_drafts(plain.machine, plain.manifest, [[1, 2]], 5)
