"""The cost table: seconds by tokens in the cache, and tables that are none."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import fake_engine, toy_manifest

from specc.errors import EngineFormatError
from specc.runtime.cost import CostTable


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
            {"by_match": None},
            {"by_match": {"step": 5}},
            {"by_match": {"step": [{"steps": 1, "drafts": 1}]}},
            {"by_match": {"step": [], "step_k1": [{"steps": 1, "drafts": 1, "accepted": [1]}]}},
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
