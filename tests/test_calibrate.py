"""Calibrate: every program of an engine is timed where it runs."""

from __future__ import annotations

from typing import Any

import helpers.fake_engine
import pytest
from helpers.fake_engine import FakePrograms, fake_engine
from helpers.prices import CONTEXT, Prices, linear

from specc.runtime import Engine
from specc.runtime.calibrate import time_programs


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
