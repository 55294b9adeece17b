"""Log-probabilities: of every emitted token, behind its own path, of the raw and of the processed distribution."""

from __future__ import annotations

import math
from typing import Any

import pytest
from helpers.fake_engine import fake_engine
from helpers.toy_law import VOCAB, Law, alternatives
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.runtime import Generation

PROMPTS = [[1, 2, 3], [4], [30, 7]]
HARD: dict[str, Any] = {
    "logit_bias": {3: 4.0},
    "bad_token_ids": [5],
    "repetition_penalty": 1.7,
    "frequency_penalty": 0.3,
}


def check(result: Generation, prompt: list[int], top: int, raw: bool, **options: Any) -> None:
    assert result.logprobs is not None and len(result.logprobs) == len(result.token_ids) == result.stats.tokens
    law = Law.of(prompt, **options)
    for i, (entry, token) in enumerate(zip(result.logprobs, result.token_ids, strict=True)):
        every, best = alternatives(prompt + result.token_ids[:i], law, top, raw)
        assert entry.token == token and entry.logprob == pytest.approx(every[token], abs=1e-5)
        assert list(entry.top) == list(best) and entry.top == pytest.approx(best, abs=1e-5)
        assert entry.logprob <= 0 and all(value > -math.inf for value in entry.top.values())


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([(), (2, 2, 1)]),
    st.integers(0, 3),
    st.integers(0, 20),
    st.booleans(),
    st.sampled_from([{}, {"temperature": 0.7, "seed": 1}, {"temperature": 1.5, "seed": 2, "top_k": 3, "top_p": 0.9}]),
    st.sampled_from([{}, HARD]),
)
def test_every_token(
    tree: tuple[int, ...], length: int, top: int, raw: bool, sampling: dict[str, Any], hard: dict[str, Any]
) -> None:
    engine, _ = fake_engine(batch=3, tree=tree)
    options = {"max_new_tokens": 15, "draft_length": length, **sampling, **hard}
    mode = {"logprobs": top, "logprobs_mode": "raw" if raw else "processed"}
    results = engine.generate(PROMPTS, **options, **mode)
    for result, prompt in zip(results, PROMPTS, strict=True):
        check(result, prompt, top, raw, **options)
    alone = engine.generate(PROMPTS[0], **options, **mode)
    assert alone.logprobs == results[0].logprobs


def test_only_when_asked_and_by_row() -> None:
    engine, _ = fake_engine(batch=2)
    assert engine.generate([1]).logprobs is None
    with engine.session() as session:
        asked = session.add([1], logprobs=2, max_new_tokens=9)
        other = session.add([2], max_new_tokens=9)
        for _ in session:
            assert asked.logprobs is not None and len(asked.logprobs) == len(asked.token_ids)
    assert asked.result is not None and other.result is not None
    check(asked.result, [1], 2, True)
    assert other.result.logprobs is None


def test_cut_by_the_end_of_text() -> None:
    engine, _ = fake_engine(depth=6)
    text = engine.generate([9], max_new_tokens=12).token_ids
    result = engine.generate([9], eos_token_id=text[7], logprobs=1)
    check(result, [9], 1, True)
    assert result.token_ids[-1] == text[7]


def test_fewer_alternatives_than_asked() -> None:
    engine, _ = fake_engine()
    result = engine.generate([1], allowed_token_ids=[1, 2, 3], logprobs=20, logprobs_mode="processed", max_new_tokens=5)
    assert result.logprobs is not None
    for entry in result.logprobs:
        assert set(entry.top) == {1, 2, 3} and sum(map(math.exp, entry.top.values())) == pytest.approx(1, abs=1e-5)
    raw = engine.generate([1], allowed_token_ids=[1, 2, 3], logprobs=20, max_new_tokens=5)
    assert raw.logprobs is not None and {len(entry.top) for entry in raw.logprobs} == {20} and VOCAB > 20
