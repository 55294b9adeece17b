"""What an engine's costs and trials say of its drafts, at all places and where a suffix occurred before."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.prices import linear, priced

from specc.manifest import EngineManifest
from specc.prediction import accepted, predictions_by_match, verdict
from specc.runtime.cost import Trial


def looked_up(*trials: Trial) -> EngineManifest:
    """An engine of n-gram lookup whose step of three drafts costs 1.6 plain ones."""
    by_match = {"step": [trial._asdict() for trial in trials]}
    shape: dict[str, Any] = {"drafter_kind": "ngram", "lookup": len(trials) - 1}
    return priced(linear(), trial=0.2, by_match=by_match, **shape)[0].manifest


NOTHING, BAD, GOOD, UNTRIED = (
    Trial(9, 0, (0, 0, 0)),
    Trial(20, 20, (4, 1, 0)),
    Trial(10, 10, (9, 8, 7)),
    Trial(0, 0, (0,) * 3),
)


def test_by_the_suffix_that_occurred_before() -> None:
    manifest = looked_up(NOTHING, BAD, GOOD, UNTRIED)
    (found,) = predictions_by_match(manifest).values()
    assert [part and round(part.tokens, 2) for part in found] == [1.0, 1.25, 3.4, None]
    assert found[2] is not None and found[2].speedup == pytest.approx(3.4 / 1.6)
    assert "occurred before: 0: 1.00, 1: 1.25, 2: 3.40" in "\n".join(accepted(manifest))
    assert verdict(manifest).endswith("on these prompts drafts pay behind 2 tokens that occurred before")
    assert "pay behind 1 or 2 tokens" in verdict(looked_up(NOTHING, GOOD, GOOD))
    assert verdict(looked_up(NOTHING, BAD)).endswith("drafts pay nowhere")


def test_other_drafters_have_one_prediction() -> None:
    manifest = priced(trial=0.1)[0].manifest
    assert not predictions_by_match(manifest)
    assert verdict(manifest).endswith("so texts begin with plain steps")
