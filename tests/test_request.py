"""Request: what may be asked of an engine, and what is refused with which words."""

from __future__ import annotations

import math
from typing import Any

import numpy
import pytest
import torch
from helpers.fake_engine import toy_manifest
from helpers.toy_law import VOCAB
from hypothesis import given
from hypothesis import strategies as st

from specc.errors import ConfigError
from specc.runtime.request import Request

MANIFEST = toy_manifest(depth=3, context=60, eos_token_ids=(5,))


def make(prompt: Any = (1,), **options: Any) -> Request:
    return Request.make(MANIFEST, prompt, **options)


def test_defaults() -> None:
    request = make([1, 2])
    assert request.prompt == (1, 2)
    assert (request.max_new_tokens, request.temperature, request.draft_length) == (256, 0.0, 3)
    assert (request.acceptance, request.eos_token_ids, request.seed) == ("greedy", (5,), None)
    assert request.rule == "greedy"


def test_sampled() -> None:
    request = make(temperature=0.8, top_k=5, top_p=0.9, seed=2**63 - 1)
    assert request.rule == "coupled"
    assert (request.top_k, request.top_p, request.seed) == (5, 0.9, 2**63 - 1)


def test_seed_is_drawn_and_reported() -> None:
    first, second = make(temperature=1).seed, make(temperature=1).seed
    assert first is not None and second is not None and first != second
    assert 0 <= first < 2**63


@pytest.mark.parametrize("prompt", [(1, 2), [1, 2], numpy.array([1, 2]), torch.tensor([1, 2]), iter([1, 2])])
def test_prompts_of_any_sort(prompt: Any) -> None:
    assert make(prompt).prompt == (1, 2)


@pytest.mark.parametrize(
    ("prompt", "words"),
    [
        ([], "empty"),
        ([0] * 60, "60 tokens"),
        ([VOCAB], rf"prompt\[0\] {VOCAB} must be in 0..{VOCAB - 1}"),
        ([1, -1], r"prompt\[1\] -1"),
        ([1.0], "whole number"),
        ([True], "whole number"),
        (["a"], "whole number"),
        (b"ab", "text or a list"),
        (7, "text or a list"),
        (None, "text or a list"),
        ([[1, 2]], "whole number"),
        (torch.tensor([[1, 2]]), "whole number"),
    ],
)
def test_bad_prompts(prompt: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(prompt)


def test_longest_prompt_fits() -> None:
    assert len(make([0] * 59).prompt) == 59


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"temperature": -0.1}, "temperature -0.1 must be 0"),
        ({"temperature": math.nan}, "temperature nan"),
        ({"temperature": math.inf}, "temperature inf"),
        ({"temperature": 1e-9}, "temperature 1e-09"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"temperature": True}, "temperature must be a number"),
        ({"temperature": None}, "temperature must be a number"),
        ({"top_p": 0.0}, "top_p 0.0 must be above 0"),
        ({"top_p": 1.01}, "top_p 1.01"),
        ({"top_p": math.nan}, "top_p nan"),
        ({"top_k": -1}, "top_k -1 must be at least 0"),
        ({"top_k": 2.5}, "top_k must be a whole number"),
        ({"max_new_tokens": 0}, "max_new_tokens 0 must be at least 1"),
        ({"max_new_tokens": True}, "max_new_tokens must be a whole number"),
        ({"max_new_tokens": None}, "max_new_tokens must be a whole number"),
        ({"seed": -1}, "seed -1 must be in"),
        ({"seed": 2**63}, "seed .* must be in"),
        ({"seed": 0.5}, "seed must be a whole number"),
        ({"acceptance": "best"}, "'best' is not one of greedy, coupled, rejection"),
        ({"acceptance": "coupled"}, "needs a temperature above 0"),
        ({"acceptance": "greedy", "temperature": 1.0}, "contradicts temperature 1.0"),
        ({"acceptance": "rejection", "temperature": 1.0}, "--acceptance coupled,rejection"),
        ({"draft_length": -1}, "draft_length -1"),
        ({"draft_length": 4}, "--draft-length 4"),
        ({"draft_length": False}, "draft_length must be a whole number"),
        ({"eos_token_id": VOCAB}, f"eos_token_id {VOCAB} must be in"),
        ({"eos_token_id": list(range(9))}, "9 ids; at most 8"),
        ({"eos_token_id": True}, "eos_token_id"),
        ({"eos_token_id": "5"}, "eos_token_id"),
        ({"eos_token_id": 1.5}, "eos_token_id"),
        ({"beams": 4}, "unknown option beams; known are max_new_tokens"),
    ],
)
def test_bad_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make(**options)


def test_eos_forms() -> None:
    assert make(eos_token_id=3).eos_token_ids == (3,)
    assert make(eos_token_id=[3, 4, 3]).eos_token_ids == (3, 4)
    assert make(eos_token_id=()).eos_token_ids == ()
    assert make(eos_token_id=numpy.int64(0)).eos_token_ids == (0,)
    many = toy_manifest(eos_token_ids=tuple(range(9)))
    with pytest.raises(ConfigError, match="at most 8"):
        Request.make(many, [1])
    assert Request.make(many, [1], eos_token_id=3).eos_token_ids == (3,)


def test_what_changes_nothing_is_accepted() -> None:
    """A greedy choice is the same under any top_k, top_p and seed, so these are honoured."""
    assert make(top_k=1, top_p=0.5, seed=3).rule == "greedy"
    assert make(top_k=VOCAB + 1).top_k == 0
    assert make(top_p=1e-300).top_p > 1e-40  # not 0 in float32
    assert make(temperature=-0.0).acceptance == "greedy"


def test_rules_that_are_compiled() -> None:
    only = toy_manifest(rules=("rejection",))
    assert Request.make(only, [1], temperature=1.0).acceptance == "rejection"
    with pytest.raises(ConfigError, match="--acceptance rejection,coupled"):
        Request.make(only, [1], temperature=1.0, acceptance="coupled")
    both = toy_manifest(rules=("rejection", "coupled"))
    assert Request.make(both, [1], temperature=1.0).acceptance == "coupled"
    assert Request.make(both, [1], temperature=1.0, acceptance="rejection").rule == "rejection"
    plain = Request.make(both, [1], temperature=1.0, acceptance="rejection", draft_length=0)
    assert plain.rule == "coupled"  # there is nothing to reject


@given(st.lists(st.integers(0, VOCAB - 1), max_size=70), st.integers(0, 59))
def test_known_text_counts(prompt: list[int], known: int) -> None:
    fits = 1 <= known + len(prompt) <= 59
    if fits:
        assert Request.make(MANIFEST, prompt, known).prompt == tuple(prompt)
    else:
        with pytest.raises(ConfigError):
            Request.make(MANIFEST, prompt, known)
