"""A compiled engine of four rows: what the runtime passes is what transformers' own processors do, row by row."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import tiny_model
from transformers import LlamaForCausalLM

import specc
from specc.runtime import Engine

PROMPTS = [[1, 40, 50, 60, 70, 33, 90], [1, 5, 6, 7], [1, *range(30, 60)]]
NEW = 20
SAMPLED: dict[str, Any] = {
    "temperature": 0.9,
    "seed": 4,
    "min_p": 0.02,
    "repetition_penalty": 1.2,
    "logit_bias": {5: -3},
}


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_model()


@pytest.fixture(scope="module")
def engine(batch_engine: Path) -> Engine:
    return specc.load(batch_engine)


def theirs(target: LlamaForCausalLM, prompt: list[int], **options: Any) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"max_new_tokens": NEW, "eos_token_id": None, **options}
    out = target.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, pad_token_id=0, **options)
    return out[0, len(prompt) :].tolist()


@pytest.mark.parametrize(
    ("ours", "same"),
    [
        ({}, {}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"bad_token_ids": [40, 50, 77, 30]}, {"suppress_tokens": [40, 50, 77, 30]}),
        (
            {"eos_token_id": list(range(60, 68)), "min_new_tokens": 12},
            {"eos_token_id": list(range(60, 68)), "min_new_tokens": 12},
        ),
        ({"logit_bias": {41: 3.5, 9: -2.0}}, {"sequence_bias": [[[41], 3.5], [[9], -2.0]]}),
    ],
    ids=["greedy", "repetition", "banned", "min_new", "bias"],
)
def test_greedy_text_is_transformers_own(
    engine: Engine, target: LlamaForCausalLM, ours: dict[str, Any], same: dict[str, Any]
) -> None:
    results = engine.generate(PROMPTS, **{"max_new_tokens": NEW, "eos_token_id": (), **ours})
    assert [r.token_ids for r in results] == [theirs(target, p, **same) for p in PROMPTS]
    if ours:
        assert any(theirs(target, p, **same) != theirs(target, p) for p in PROMPTS), "the option changed nothing"
    assert all(r.stats.accepted > 0 for r in results)


def test_sampled_rows_are_as_alone_and_without_drafts(engine: Engine) -> None:
    options = {"max_new_tokens": NEW, "eos_token_id": (), **SAMPLED}
    together = [r.token_ids for r in engine.generate(PROMPTS, **options)]
    assert together == [engine.generate(p, **options).token_ids for p in PROMPTS]
    assert together == [r.token_ids for r in engine.generate(PROMPTS, draft_length=0, **options)]
    samples = engine.generate(PROMPTS[0], n=2, **options)
    assert samples[0].token_ids == together[0] != samples[1].token_ids
    assert samples[1].stats.reused_tokens == len(PROMPTS[0]) - 1


def test_greedy_and_sampled_rows_side_by_side(engine: Engine) -> None:
    with engine.session() as session:
        greedy = session.add(PROMPTS[0], max_new_tokens=30, eos_token_id=())
        sampled = session.add(PROMPTS[1], max_new_tokens=9, eos_token_id=(), **SAMPLED)
        while sampled.result is None:
            session.step()
        plain = session.add(PROMPTS[2], max_new_tokens=12, eos_token_id=(), draft_length=0)
        for _ in session:
            pass
    for job, options in (
        (greedy, {"max_new_tokens": 30}),
        (sampled, {"max_new_tokens": 9, **SAMPLED}),
        (plain, {"max_new_tokens": 12}),
    ):
        prompt = list(job.request.prompt)
        assert job.token_ids == engine.generate(prompt, eos_token_id=(), **options).token_ids  # type: ignore[arg-type]


def test_log_probabilities_are_the_targets(engine: Engine, target: LlamaForCausalLM) -> None:
    options = {"max_new_tokens": NEW, "eos_token_id": (), "logprobs": 5}
    for sampling in ({}, SAMPLED):
        for result, prompt in zip(engine.generate(PROMPTS, **options, **sampling), PROMPTS, strict=True):
            own = target(torch.tensor([prompt + result.token_ids])).logits[0].log_softmax(-1)[len(prompt) - 1 :]
            assert result.logprobs is not None
            for i, entry in enumerate(result.logprobs):
                assert entry.logprob == pytest.approx(own[i, entry.token].item(), abs=1e-4)
                assert list(entry.top.values()) == pytest.approx(own[i].topk(5).values.tolist(), abs=1e-4)
                assert {own[i, token].item() for token in entry.top} == set(own[i].topk(5).values.tolist())


@pytest.mark.parametrize("offset", range(4))
def test_forced_drafts(engine: Engine, offset: int) -> None:
    text = engine.generate(PROMPTS[0], max_new_tokens=8, eos_token_id=()).token_ids
    engine.truncate(len(PROMPTS[0]))
    tokens = [(t + 1) % 128 if i == offset else t for i, t in enumerate(text[:3])]
    result = engine.step(tokens, eos_token_id=())
    assert (result.token_ids, result.stats.accepted) == (text[: offset + 1], offset)
    assert engine.resume(max_new_tokens=3, eos_token_id=()).token_ids == text[offset + 1 : offset + 4]
    engine.truncate(len(PROMPTS[0]))
    ended = engine.step(text[:3], eos_token_id=text[offset])
    first = text.index(text[offset]) + 1
    assert (ended.token_ids, ended.finish_reason) == (text[:first], "stop")


def test_stop_strings_and_reuse(engine: Engine) -> None:
    whole = engine.generate("the end of the", max_new_tokens=NEW, eos_token_id=())
    stop = whole.text[6:8]
    cut = engine.generate("the end of the", max_new_tokens=NEW, eos_token_id=(), stop=stop)
    assert cut.text == whole.text[: whole.text.index(stop)] and cut.finish_reason == "stop"
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]
    prompt = [*engine.token_ids, 50, 60]
    again = engine.generate(prompt, reuse=True, max_new_tokens=NEW, eos_token_id=())
    assert again.stats.reused_tokens == len(prompt) - 3
    assert again.token_ids == engine.generate(prompt, max_new_tokens=NEW, eos_token_id=()).token_ids
    chat = engine.conversation("be", max_new_tokens=6)
    first = chat.say("the end").finish()
    second = chat.say("and in").finish()
    assert first.stats.reused_tokens < 2  # the first id of every prompt, at most
    assert second.stats.reused_tokens > first.stats.prompt_tokens
    assert second.text == engine.generate(engine.chat(chat.messages[:-1]), max_new_tokens=6).text


def test_grammars_by_row(engine: Engine) -> None:
    """One row follows an expression, one a schema, one nothing; both end by themselves and are what was asked."""
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_new_tokens": 80}
    schema = {"type": "object", "properties": {"a": {"enum": ["th", "in"]}, "b": {"type": "boolean"}}}
    schema |= {"required": ["a", "b"], "additionalProperties": False}
    with engine.session() as session:
        by_regex = session.add(PROMPTS[0], regex="[a-z]{3}( [a-z]{2,4}){2}[.]", **options)
        by_schema = session.add(PROMPTS[1], json_schema=schema, **options)
        free = session.add(PROMPTS[2], eos_token_id=(), **{**options, "max_new_tokens": NEW})
        for _ in session:
            pass
    assert re.fullmatch("[a-z]{3}( [a-z]{2,4}){2}[.]", by_regex.text) and by_regex.finish_reason == "stop"
    value = json.loads(by_schema.text)
    assert value["a"] in ("th", "in") and isinstance(value["b"], bool) and by_schema.finish_reason == "stop"
    assert by_regex.stats.accepted > 0 and by_schema.stats.accepted > 0
    alone = engine.generate(PROMPTS[2], eos_token_id=(), **{**options, "max_new_tokens": NEW})
    assert free.token_ids == alone.token_ids
    assert engine.generate(PROMPTS[1], json_schema=schema, **options).token_ids == by_schema.token_ids
