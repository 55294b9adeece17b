"""Watch: an engine says once that its drafts are mostly refused."""

from __future__ import annotations

import warnings

import pytest
from helpers.prices import agree, priced

from specc.errors import LowAcceptanceWarning


def test_an_engine_says_once_that_drafts_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    agree(monkeypatch, lambda position: False)
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


def test_an_engine_with_good_drafts_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    agree(monkeypatch, lambda position: position % 2 > 0)
    engine, _ = priced(trial=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.generate([1], max_new_tokens=390, draft_length=3)
