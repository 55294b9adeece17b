"""Forced drafts: any token at any offset of a block, for chain, tree and batch. The text never depends on the draft."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.fake_engine import PADDED, fake_engine, letters
from helpers.toy_law import VOCAB, Law, draft, toy_text

from specc.errors import ConfigError
from specc.runtime import Engine

DEPTH = 4
PROMPTS = [[3, 1], [5, 2, 9], [30]]
SAMPLED: dict[str, Any] = {"temperature": 0.8, "seed": 3}


def right(prompt: Sequence[int], **options: Any) -> list[int]:
    return toy_text(prompt, 3 * DEPTH, **options)


def wrong(token: int) -> int:
    return (token + 7) % VOCAB


def held(engine: Engine, prompt: list[int]) -> None:
    """Have the engine hold a prompt, before its first step."""
    engine.generate(prompt, max_new_tokens=1)
    engine.truncate(len(prompt))


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("bad", ["reject", "padded"])
@pytest.mark.parametrize("offset", range(DEPTH + 1))
def test_a_wrong_token_at_every_offset(offset: int, bad: str, options: dict[str, Any]) -> None:
    engine, _ = fake_engine(depth=DEPTH)
    text = right(PROMPTS[0], **options)
    tokens = text[:DEPTH]
    if offset < DEPTH:
        tokens[offset] = PADDED - 1 if bad == "padded" else wrong(tokens[offset])
    held(engine, PROMPTS[0])
    result = engine.step(tokens, **options)
    assert (result.token_ids, result.finish_reason) == (text[: offset + 1], "step")
    assert (result.stats.accepted, result.stats.drafted, result.stats.steps) == (offset, DEPTH, 1)
    assert engine.token_ids == PROMPTS[0] + text[: offset + 1]
    assert engine.resume(max_new_tokens=5, **options).token_ids == text[offset + 1 : offset + 6]


@pytest.mark.parametrize("drafted", [True, False])
@pytest.mark.parametrize("offset", range(DEPTH + 1))
def test_end_of_text_at_every_offset(offset: int, drafted: bool) -> None:
    """Whether the drafts behind it are right or not, nothing comes behind it."""
    engine, _ = fake_engine(depth=DEPTH)
    text = right(PROMPTS[1])
    tokens = text[:DEPTH] if drafted else [*text[:offset], *map(wrong, text[offset:DEPTH])]
    held(engine, PROMPTS[1])
    result = engine.step(tokens, eos_token_id=text[offset])
    assert (result.token_ids, result.finish_reason) == (text[: offset + 1], "stop")
    assert engine.token_ids == PROMPTS[1] + text[: offset + 1]
    # The target's own end of text, where another was drafted and where the draft itself ends it.
    engine.truncate(len(PROMPTS[1]))
    at_once = engine.step([VOCAB - 1] * DEPTH, eos_token_id=[text[0], VOCAB - 1])
    assert (at_once.token_ids, at_once.finish_reason) == (text[:1], "stop")


@pytest.mark.parametrize("offset", range(DEPTH + 1))
def test_stop_string_at_every_offset(offset: int) -> None:
    engine, _ = fake_engine(depth=DEPTH, text=letters())
    text = right(PROMPTS[0])
    held(engine, PROMPTS[0])
    result = engine.step(text[:DEPTH], stop=engine.decode(text[offset : offset + 1]), logprobs=0)
    assert (result.token_ids, result.finish_reason) == (text[:offset], "stop")
    assert result.text == engine.decode(text[:offset]) and result.logprobs is not None
    assert [entry.token for entry in result.logprobs] == text[:offset]
    assert engine.token_ids == PROMPTS[0] + text[:offset]
    assert engine.resume(max_new_tokens=5).token_ids == text[offset : offset + 5]


@pytest.mark.parametrize("limit", range(1, DEPTH + 2))
def test_limits_at_every_offset(limit: int) -> None:
    text = right(PROMPTS[0])
    for context, options, reason in ((60, {"max_new_tokens": limit}, "length"), (2 + limit, {}, "context")):
        engine, _ = fake_engine(depth=DEPTH, context=context)
        held(engine, PROMPTS[0])
        result = engine.step(text[:DEPTH], **options)
        assert (result.token_ids, result.finish_reason) == (text[:limit], reason)
        assert engine.token_ids == PROMPTS[0] + text[:limit]


@pytest.mark.parametrize("child", [0, 1, 2])
@pytest.mark.parametrize("length", [1, 2])
def test_trees(child: int, length: int) -> None:
    """The right token at any child is taken, and the path goes on from there."""
    engine, _ = fake_engine(tree=(3, 2))
    text = right(PROMPTS[0])
    tokens = [wrong(text[0] + i) for i in range(3)] + [wrong(text[1] + i) for i in range(6)]
    tokens[child] = text[0]
    if length == 2:
        tokens[3 + 2 * child + 1] = text[1]
    else:
        tokens[3 + 2 * ((child + 1) % 3)] = text[1]  # right, behind a wrong parent
    held(engine, PROMPTS[0])
    result = engine.step(tokens, logprobs=1)
    assert (result.token_ids, result.stats.accepted) == (text[: length + 1], length)
    assert result.logprobs is not None and [next(iter(e.top)) for e in result.logprobs] == text[: length + 1]


def test_draft_length_bounds_what_is_forced() -> None:
    engine, programs = fake_engine(depth=DEPTH, ladder=(2,))
    text = right(PROMPTS[0])
    for length, program, forced in ((1, "step_k2", [text[0], -1]), (2, "step_k2", text[:2]), (3, "step", text[:2])):
        held(engine, PROMPTS[0])
        programs.calls.clear()
        result = engine.step(forced, draft_length=length)
        assert programs.calls == [program]
        assert result.token_ids[:2] == text[:2] and result.stats.drafted == length
        assert len(result.token_ids) == 2 if length == 1 else len(result.token_ids) >= 3


def test_what_is_not_forced_is_the_drafters_own() -> None:
    engine, _ = fake_engine(depth=DEPTH)
    text = right(PROMPTS[0])
    for tokens in ([], [-1], [-1] * DEPTH, [text[0], -1]):
        held(engine, PROMPTS[0])
        known, own = [*PROMPTS[0]], 0
        for i, token in enumerate(text[:DEPTH]):
            if not (i < len(tokens) and tokens[i] >= 0) and draft(known, Law()) != token:
                break
            own, known = own + 1, [*known, token]
        assert engine.step(tokens).stats.accepted == own
    assert engine.step().stats.steps == 1


def test_batch() -> None:
    """Every row with its own draft: a reject, a padded id and an end of text in one call."""
    engine, programs = fake_engine(depth=DEPTH, batch=4)
    texts = [right(prompt) for prompt in [*PROMPTS, [8]]]
    with engine.session() as session:
        jobs = [session.add(prompt, max_new_tokens=9) for prompt in PROMPTS]
        jobs.append(session.add([8], eos_token_id=texts[3][3]))
        drafts = [
            [texts[0][0], wrong(texts[0][1]), texts[0][2]],
            [*texts[1][:3], PADDED - 1],
            texts[2][:DEPTH],
            texts[3][:DEPTH],
        ]
        programs.calls.clear()
        assert session.step(dict(zip(jobs, drafts, strict=True))) == jobs
        assert programs.calls == ["step_b4"]
        for job, text, size in zip(jobs, texts, (2, 4, 5, 4), strict=True):
            assert job.token_ids == text[:size]
        assert [job.finish_reason for job in jobs] == [None, None, None, "stop"]
        session.step()  # nothing is forced any more
        for _ in session:
            pass
    assert [job.token_ids for job in jobs[:3]] == [text[:9] for text in texts[:3]]


def test_drafts_for_no_job_are_refused() -> None:
    engine, _ = fake_engine(depth=DEPTH)
    with engine.session() as session:
        ended = session.add([1], max_new_tokens=1)
        session.step()
        running = session.add([1])
        with pytest.raises(ConfigError, match="a job that does not run"):
            session.step({ended: [1], running: [1]})
        assert running.token_ids == []


def test_forced_drafts_say_nothing_of_the_drafter() -> None:
    engine, _ = fake_engine(depth=DEPTH)
    engine.generate([1], max_new_tokens=9)
    before = engine.watch.tried
    for _ in range(3):
        engine.step([5] * DEPTH)
    assert engine.watch.tried == before > 0


def test_a_forced_draft_does_not_outlive_an_interrupt() -> None:
    engine, programs = fake_engine(depth=DEPTH)
    text = right(PROMPTS[0])
    held(engine, PROMPTS[0])

    def interrupt(name: str, count: int) -> None:
        raise KeyboardInterrupt

    programs.interrupt = interrupt
    with pytest.raises(KeyboardInterrupt):
        engine.step([wrong(text[0])])
    programs.interrupt = lambda name, count: None
    assert engine.machine.state.tensors["forced"].eq(-1).all()
    assert engine.resume(max_new_tokens=12).token_ids == text


@pytest.mark.parametrize(
    ("tokens", "options", "words"),
    [
        ([1] * 5, {}, "draft has 5 tokens; this request's steps draft 4"),
        ([1], {"draft_length": 0}, "draft has 1 tokens; this request's steps draft 0"),
        ([1, 2], {"draft_length": 1}, r"draft\[1\] is at level 2 .* has draft_length 1; leave it out \(-1\), or raise"),
        ([PADDED], {}, rf"draft\[0\] {PADDED} must be in -1..{PADDED - 1}"),
        ([-2], {}, r"draft\[0\] -2 must be in"),
        (["a"], {}, r"draft\[0\] must be a whole number"),
        ("abc", {}, "draft must be a list"),
        (5, {}, "draft must be a list"),
    ],
)
def test_bad_drafts(tokens: Any, options: dict[str, Any], words: str) -> None:
    engine, programs = fake_engine(depth=DEPTH)
    held(engine, PROMPTS[0])
    programs.calls.clear()
    with pytest.raises(ConfigError, match=words):
        engine.step(tokens, **options)
    assert not [name for name in programs.calls if not name.startswith("prefill")]
    old, _ = fake_engine(without=("forced",))
    held(old, PROMPTS[0])
    with pytest.raises(ConfigError, match="no input forced, which draft needs; compile it again"):
        old.step([1])
