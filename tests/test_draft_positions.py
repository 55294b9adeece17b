"""Beyond the drafter's last position every step is plain: greedy, sampled, measured or not, and beside other rows."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import fake_engine
from helpers.toy_law import toy_text

from specc.manifest import ModelSpec

POSITIONS = 20


def engine(**changes: Any) -> Any:
    spec = ModelSpec(source="toy", architecture="Toy", digest="0", parameters=0, layers=1, max_positions=POSITIONS)
    return fake_engine(drafter=spec, **changes)


def test_the_text_goes_on_by_plain_steps() -> None:
    one, programs = engine()
    assert one.generate([1, 2, 3], max_new_tokens=45).token_ids == toy_text([1, 2, 3], 45)
    steps = [name for name in programs.calls if not name.startswith("prefill")]
    first = steps.index("plain")
    assert set(steps[:first]) == {"step"} and set(steps[first:]) == {"plain"}
    assert POSITIONS + 1 <= 48 - steps.count("plain") <= POSITIONS + 4
    programs.calls.clear()
    one.truncate(8)
    held = one.token_ids
    assert one.resume(max_new_tokens=5).token_ids == toy_text(held, 5)
    assert "step" in programs.calls and "plain" not in programs.calls


def test_a_longer_prompt_is_not_shown_to_the_drafter() -> None:
    one, programs = engine()
    found = one.generate([1] * 30, max_new_tokens=9)
    assert found.token_ids == toy_text([1] * 30, 9) and found.stats.drafted == 0
    assert "prefill_drafter" not in programs.calls and "step" not in programs.calls


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_sampled(rule: str) -> None:
    one, programs = engine(rules=("coupled", "rejection"))
    found = one.generate([1, 2, 3], max_new_tokens=40, temperature=1.0, seed=3, acceptance=rule)
    assert len(found.token_ids) == 40 and programs.calls[-1] == "plain_sampled"
    again = one.generate([1, 2, 3], max_new_tokens=40, temperature=1.0, seed=3, acceptance=rule)
    assert again.token_ids == found.token_ids


def test_rows_that_are_past_it_go_along_with_others() -> None:
    one, programs = engine(batch=2)
    found = one.generate([[1, 2], [4] * 25], max_new_tokens=12)
    assert [text.token_ids for text in found] == [toy_text([1, 2], 12), toy_text([4] * 25, 12)]
    assert found[1].stats.drafted == 0 and "step_b2" in programs.calls
