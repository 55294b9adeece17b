"""Request: what may be asked of an engine, and what is refused with which words."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy
import pytest
import torch
from helpers.fake_engine import letters, toy_manifest
from helpers.toy_law import VOCAB, ToyGrammar
from hypothesis import given
from hypothesis import strategies as st

from specc.errors import ConfigError, EngineFormatError
from specc.runtime.options import Options
from specc.runtime.programs import Programs
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
        (bytearray(b"ab"), "text or a list"),
        (memoryview(b"ab"), "text or a list"),
        ({1, 2}, "text or a list"),
        ({1: 2}, "text or a list"),
        (torch.tensor(5), "text or a list"),
        (numpy.array(5), "text or a list"),
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
        ({"temperature": 1e300}, r"temperature 1e\+300 must be 0 \(greedy\) or in 1e-05..3e\+38"),
        ({"temperature": 10**400}, "temperature is larger than any number of 64 bits"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"temperature": True}, "temperature must be a number"),
        ({"temperature": None}, "temperature must be a number"),
        ({"top_p": 0.0}, "top_p 0.0 must be above 0"),
        ({"top_p": 1.01}, "top_p 1.01"),
        ({"top_p": math.nan}, "top_p nan"),
        ({"top_k": -1}, "top_k -1 must be at least 0; 0 means none"),
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
        ({"min_new_tokens": -1}, "min_new_tokens -1 must be at least 0"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens 9 is above max_new_tokens 8"),
        ({"min_new_tokens": 60}, "above the 59 tokens that the engine's context of 60 leaves"),
        ({"min_p": 1.5}, r"min_p 1.5 must be in 0..1"),
        ({"min_p": -0.1}, "min_p -0.1"),
        ({"min_p": math.nan}, "min_p nan"),
        ({"repetition_penalty": 0}, r"repetition_penalty 0.0 must be in 0.001..1000; 1 is none"),
        ({"repetition_penalty": -1.0}, "repetition_penalty -1.0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty inf"),
        ({"repetition_penalty": "1"}, "repetition_penalty must be a number"),
        ({"presence_penalty": 2.1}, r"presence_penalty 2.1 must be in -2..2"),
        ({"frequency_penalty": -2.1}, r"frequency_penalty -2.1 must be in -2..2"),
        ({"logit_bias": {VOCAB: 1.0}}, f"logit_bias: token id {VOCAB} must be in 0..{VOCAB - 1}"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias: token id -1"),
        ({"logit_bias": {"1": 1.0}}, "logit_bias: token id must be a whole number, not '1'"),
        ({"logit_bias": {1: math.inf}}, r"logit_bias\[1\] inf must be in .*; -inf bans the token"),
        ({"logit_bias": {1: math.nan}}, r"logit_bias\[1\] nan"),
        ({"logit_bias": {1: 1e30}}, r"logit_bias\[1\] 1e\+30"),
        ({"logit_bias": {1: "much"}}, r"logit_bias\[1\] must be a number"),
        ({"logit_bias": [1, 2]}, "logit_bias must be a dict"),
        ({"bad_token_ids": [VOCAB]}, rf"bad_token_ids\[0\] {VOCAB} must be in"),
        ({"bad_token_ids": 5}, "bad_token_ids must be a list"),
        ({"bad_token_ids": "5"}, "bad_token_ids must be a list"),
        ({"bad_token_ids": range(VOCAB)}, "leave no token that may come"),
        ({"logit_bias": dict.fromkeys(range(VOCAB), -math.inf)}, "leave no token that may come"),
        ({"allowed_token_ids": []}, "leave no token that may come"),
        ({"allowed_token_ids": [1], "bad_token_ids": [1]}, "leave no token that may come"),
        ({"allowed_token_ids": [5], "min_new_tokens": 1}, "leave no token that may come"),
        ({"allowed_token_ids": [-1]}, r"allowed_token_ids\[0\] -1"),
        ({"stop": ""}, "stop '' is empty"),
        ({"stop": ["a", ""]}, "stop '' is empty"),
        ({"stop": 5}, "stop must be a text or a list of texts, not 5"),
        ({"stop": [5]}, "stop must be a text or a list of texts"),
        ({"bad_token_ids": bytearray(b"a")}, "bad_token_ids must be a list of token ids"),
        ({"allowed_token_ids": torch.tensor(5)}, "allowed_token_ids must be a list of token ids"),
        ({"eos_token_id": bytearray(b"a")}, "eos_token_id must be a token id"),
        ({"eos_token_id": {1: 2}}, "eos_token_id must be a token id"),
        ({"stop": {"a": 1}}, "stop must be a text or a list of texts"),
        ({"stop": "a\ud800"}, "stop .* has a broken character"),
        ({"stop": b"a"}, "stop must be a text or a list of texts"),
        ({"stop": [str(i) for i in range(17)]}, "stop lists 17 texts; at most 16"),
        ({"stop": "a"}, "stop needs a tokenizer, and this engine has none"),
        ({"logprobs": 21}, r"logprobs 21 must be in 0..20"),
        ({"logprobs": -1}, "logprobs -1"),
        ({"logprobs": True}, "logprobs must be a whole number"),
        ({"logprobs": 1, "logprobs_mode": "cooked"}, "'cooked' is not one of raw, processed"),
        ({"logprobs_mode": "processed"}, "logprobs_mode 'processed' needs logprobs"),
        ({"n": 0}, "n 0 must be at least 1"),
        ({"n": 2, "temperature": 1.0}, r"n 2 must be in 1..1, the rows of this engine; compile it with --batch 2"),
        ({"n": 9, "temperature": 1.0}, r"n 9 must be in 1..1, .*; engines have at most 8 rows: ask several times"),
        ({"reuse": 1}, "reuse must be True or False"),
        ({"regex": "a", "json_schema": "{}"}, "regex and json_schema contradict each other"),
        ({"regex": "a", "eos_token_id": ()}, "regex needs an id that ends the text"),
        ({"regex": "a"}, "no room for regex; compile it again with --grammar"),
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
    assert make(temperature=1.0, top_p=1e-300).top_p > 1e-40  # not 0 in float32
    greedy = make(top_k=2, top_p=0.5, min_p=0.1)  # nor may log-probabilities hang on the program that makes the step
    assert (greedy.top_k, greedy.top_p, greedy.min_p) == (0, 1.0, 0.0)
    assert make(temperature=-0.0).acceptance == "greedy"


def test_rules_that_are_compiled() -> None:
    only = toy_manifest(rules=("rejection",))
    assert Request.make(only, [1], temperature=1.0).acceptance == "rejection"
    with pytest.raises(ConfigError, match="--acceptance rejection,coupled"):
        Request.make(only, [1], temperature=1.0, acceptance="coupled")
    both = toy_manifest(rules=("rejection", "coupled"))
    assert Request.make(both, [1], temperature=1.0).acceptance == "coupled"
    assert Request.make(both, [1], temperature=1.0, acceptance="rejection").rule == "rejection"
    for manifest in (only, both):
        assert Request.make(manifest, [1], temperature=1.0, draft_length=0).rule == "coupled"  # nothing to reject
        with pytest.raises(ConfigError, match="'rejection' contradicts draft_length 0: .*; leave one of them out"):
            Request.make(manifest, [1], temperature=1.0, acceptance="rejection", draft_length=0)


@given(st.lists(st.integers(0, VOCAB - 1), max_size=70), st.integers(0, 59))
def test_known_text_counts(prompt: list[int], known: int) -> None:
    fits = 1 <= known + len(prompt) <= 59
    if fits:
        assert Request.make(MANIFEST, prompt, known).prompt == tuple(prompt)
    else:
        with pytest.raises(ConfigError):
            Request.make(MANIFEST, prompt, known)


def test_new_options() -> None:
    request = make(
        min_new_tokens=2, min_p=0.1, repetition_penalty=1.2, presence_penalty=-1, frequency_penalty=2, temperature=1.0,
        logit_bias={numpy.int64(3): 2, 4: -math.inf, 6: 1}, bad_token_ids=torch.tensor([6, 7]),
        allowed_token_ids=range(9), logprobs=0, reuse=True,
    )  # fmt: skip
    assert request.bias == {3: 2.0, 4: -math.inf, 6: -math.inf, 7: -math.inf}
    assert request.allowed == frozenset(range(9)) and request.logprobs == 0 and request.reuse
    assert (request.min_p, request.repetition_penalty, request.presence_penalty) == (0.1, 1.2, -1.0)
    text = letters()
    assert make(text=text, stop="ab").stop == ("ab",)
    assert make(text=text, stop=["b", "a", "b"]).stop == ("b", "a")
    assert make(allowed_token_ids={1, 2}, eos_token_id={3}).allowed == {1, 2}  # sets of ids need no order
    assert make(text=text, stop=[]).stop == make(text=text, stop=None).stop == ()


def test_none_is_the_default() -> None:
    never = ("max_new_tokens", "temperature")
    assert make(**{name: None for name in Options.__annotations__ if name not in never}) == make()


def test_n_needs_rows_and_a_temperature() -> None:
    manifest = toy_manifest(batch=4)
    assert [r.sample for r in Request.make_all(manifest, [[1], [2]], n=2, temperature=1.0)] == [0, 1, 0, 1]
    with pytest.raises(ConfigError, match="n 2 at temperature 0 would give the same text 2 times; set a temperature"):
        Request.make(manifest, [1], n=2)
    with pytest.raises(ConfigError, match="n 5 must be in 1..4"):
        Request.make(manifest, [1], n=5, temperature=1.0)


def test_every_prompt_is_checked_for_what_it_leaves() -> None:
    with pytest.raises(ConfigError, match="min_new_tokens 20 is above the 10 tokens"):
        Request.make_all(MANIFEST, [[1], [1] * 50], min_new_tokens=20)


OLD = {
    "min_p": {"min_p": 0.5, "temperature": 1.0},
    "repetition_penalty": {"repetition_penalty": 1.1},
    "presence_penalty": {"presence_penalty": 1},
    "frequency_penalty": {"frequency_penalty": 1},
    "bias": {"bad_token_ids": [1]},
    "min_length": {"min_new_tokens": 1},
    "top_k": {"top_k": 3, "temperature": 1.0},
    "path": {"logprobs": 1},
    "logits": {"logprobs": 1},
    "processed": {"logprobs": 1, "logprobs_mode": "processed"},
}


@pytest.mark.parametrize("name", OLD)
def test_what_an_older_engine_cannot_do_is_refused(name: str) -> None:
    """Refused, never ignored; what changes nothing is no demand."""
    old, options = toy_manifest(without=(name,)), OLD[name]
    with pytest.raises(ConfigError, match=f"programs .*{'path|logits' if name == 'path' else name}.*compile it again"):
        Request.make(old, [1], **options)
    assert Request.make(MANIFEST, [1], **options)
    neutral = {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0.0, "logit_bias": {}}
    Request.make(old, [1], min_new_tokens=0, bad_token_ids=[], min_p=0.5, **neutral)  # greedy: min_p changes nothing


def test_grammars() -> None:
    grammar = ToyGrammar.alternating([[1, 2], [3]], end=5)
    size = len(grammar.next)
    manifest = toy_manifest(grammar=size, eos_token_ids=(5,))
    assert Request.make(manifest, [1], grammar=grammar).grammar is grammar
    for options, words in (
        ({"bad_token_ids": [1]}, "a grammar contradicts banned tokens"),
        ({"allowed_token_ids": [1, 5]}, "a grammar contradicts banned tokens"),
        ({"min_new_tokens": 1}, "a grammar contradicts banned tokens"),
    ):
        with pytest.raises(ConfigError, match=words):
            Request.make(manifest, [1], grammar=grammar, **options)
    with pytest.raises(
        ConfigError, match=f"a table of {size} entries, this engine's holds {size - 1}; .*--grammar {size}"
    ):
        Request.make(toy_manifest(grammar=size - 1, eos_token_ids=(5,)), [1], grammar=grammar)
    with pytest.raises(ConfigError, match="has no token_class"):
        Request.make(manifest, [1], grammar="a+")
    with pytest.raises(ConfigError, match="built for 3 tokens, this engine has 40"):
        short = dataclasses.replace(grammar, token_class=grammar.token_class[:3])
        Request.make(manifest, [1], grammar=short)
    with pytest.raises(ConfigError, match="built for other ids that end a text than eos_token_id .6."):
        Request.make(manifest, [1], grammar=grammar, eos_token_id=6)
    for wrong in (
        {"next": grammar.next + 100},
        {"token_class": grammar.token_class + 1},
        {"next": grammar.next[:-1]},
        {"classes": 0},
        {"next": grammar.next[:0]},
        {"start": -1},
        {"start": 99},
    ):
        with pytest.raises(ConfigError, match="grammar: (a table of|starts in state)"):
            Request.make(manifest, [1], grammar=dataclasses.replace(grammar, **wrong))
    for name in ("acceptance", "logprobs_mode"):  # an array is compared item by item
        with pytest.raises(ConfigError, match=name):
            Request.make(manifest, [1], **{"temperature": 1.0, "logprobs": 1, name: torch.zeros(2)})
    with pytest.raises(ConfigError, match="logit_bias.1. must be"):
        Request.make(manifest, [1], logit_bias={1: torch.tensor([1.0, 2.0])})
    with pytest.raises(ConfigError, match="regex needs a tokenizer"):
        Request.make(manifest, [1], regex="a")
    with pytest.raises(ConfigError, match="regex must be a text, not list"):
        Request.make(manifest, [1], text=letters(), regex=["a"])  # type: ignore[typeddict-item]


def test_draft_lengths_of_a_ladder() -> None:
    manifest = toy_manifest(depth=3, ladder=(1, 6), rules=("coupled", "rejection"))
    assert Request.make(manifest, [1]).draft_length == 3
    assert Request.make(manifest, [1], draft_length=6).draft_length == 6
    with pytest.raises(ConfigError, match="draft_length 7 is above 6"):
        Request.make(manifest, [1], draft_length=7)


def test_programs_are_found_by_what_they_say() -> None:
    programs = Programs(toy_manifest(tree=(2, 1, 1), ladder=(1, 3, 6), batch=2, rules=("coupled", "rejection")))
    found = {
        (rule, length, rows): getattr(programs.find(rule, length, rows), "name", None)
        for rule in ("greedy", "coupled", "rejection")
        for length in (0, 1, 2, 3, 5)
        for rows in (1, 2)
    }
    assert found["greedy", 3, 1] == "step" and found["coupled", 3, 2] == "step_coupled_b2"  # the main tree
    assert found["greedy", 2, 1] == "step_k3" and found["rejection", 5, 2] == "step_rejection_k6_b2"  # fewest nodes
    assert found["greedy", 1, 2] == "step_k1_b2" and found["greedy", 0, 1] == "plain"
    assert found["coupled", 0, 2] == "plain_sampled_b2" and found["rejection", 0, 1] is None
    assert programs.find("greedy", 7, 1) is None and programs.depth == 6


def test_every_step_is_there_for_one_row_and_for_all() -> None:
    manifest = toy_manifest(batch=3)
    for missing in ("step_b3", "plain", "step_coupled"):
        fewer = {name: spec for name, spec in manifest.programs.items() if name != missing}
        with pytest.raises(EngineFormatError, match="has none like it for"):
            Programs(dataclasses.replace(manifest, programs=fewer)).check()
