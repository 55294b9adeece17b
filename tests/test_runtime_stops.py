"""Where a text ends: stop strings at every border, and that text, ids, log-probabilities and caches agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from helpers.fake_engine import fake_engine, letters, toy_manifest
from helpers.toy_law import toy_text
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from specc.runtime import Generation
from specc.runtime.ending import Ending
from specc.runtime.request import Request
from specc.runtime.text import BROKEN, Text

MANIFEST = toy_manifest(context=60)
PROMPT = [3, 1]
LONG = toy_text(PROMPT, 40)
WORDS = {0: "ab", 1: "abc", 2: "b", 3: "c", 4: "a", 5: " ", 6: "aab", 7: "ca"}


def words() -> Text:
    """Tokens of one to three letters of a, b, c and space, so that strings cross tokens; the rest are other letters."""
    return letters({i: word.replace(" ", "Ġ") for i, word in WORDS.items()})


def in_bytes() -> Text:
    """Every token is one byte of `é€😀ab`, repeated."""
    table = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in plain]
    raw = list(dict.fromkeys("é€😀abc é".encode()))
    names = [chr(b) if b in plain else chr(256 + others.index(b)) for b in raw]
    assert set(names) <= set(table)
    core = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    return Text(core)


def cut_by_hand(text: Text, ids: Sequence[int], stops: Sequence[str]) -> tuple[str, int]:
    """Token by token: the text before the first stop string, and the shortest run of tokens that spells it."""
    for end in range(1, len(ids) + 1):
        spelled = text.decode(ids[:end]).rstrip(BROKEN)
        starts = [spelled.find(stop) for stop in stops if stop in spelled]
        if starts:
            kept = spelled[: min(starts)]
            runs = (n for n in range(end + 1) if text.decode(ids[:n]).rstrip(BROKEN).startswith(kept))
            return kept, next(runs)
    return text.decode(ids), len(ids)


def pushed(text: Text, ids: Sequence[int], sizes: Sequence[int], stops: Sequence[str]) -> tuple[Ending, list[str]]:
    """Push ids in blocks of these sizes; what was shown after each."""
    request = Request.make(MANIFEST, [1], text=text, stop=list(stops), max_new_tokens=len(ids))
    made, shown, start = Ending(request, text, 1000), [], 0
    for size in [*sizes, len(ids)]:
        if made.finish_reason or start >= len(ids):
            break
        made.push(ids[start : start + size])
        start += size
        shown.append(made.text)
    return made, shown


@settings(deadline=None, max_examples=400)
@given(
    st.lists(st.integers(0, 7), min_size=1, max_size=15),
    st.lists(st.integers(1, 5), max_size=15),
    st.lists(st.text("abc ", min_size=1, max_size=5), max_size=3, unique=True),
)
def test_stop_strings_across_tokens_and_blocks(ids: list[int], sizes: list[int], stops: list[str]) -> None:
    text = words()
    made, shown = pushed(text, ids, sizes, stops)
    kept, tokens = cut_by_hand(text, ids, stops)
    assert (made.text, made.ids) == (kept, ids[:tokens])
    assert made.finish_reason == ("stop" if kept != text.decode(ids) else "length")
    assert not any(stop in made.text for stop in stops)
    for before, after in zip(shown, shown[1:], strict=False):
        assert after.startswith(before), "something that was shown was taken back"


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.integers(0, 11), min_size=1, max_size=20),
    st.lists(st.integers(1, 4), max_size=20),
    st.lists(st.sampled_from(["é", "€", "ab", "a", "😀", "éa", " "]), max_size=2, unique=True),
)
def test_stop_strings_and_broken_characters(ids: list[int], sizes: list[int], stops: list[str]) -> None:
    """Pieces are never half a character that a later token completes, and never part of a stop string."""
    text = in_bytes()
    ids = [i for i in ids if i < text.tokenizer.get_vocab_size()] or [0]
    made, shown = pushed(text, ids, sizes, stops)
    for before, after in zip(shown, shown[1:], strict=False):
        assert after.startswith(before)
    assert not any(stop in made.text for stop in stops)
    if not stops:
        assert made.text == text.decode(ids)
    if made.finish_reason == "stop":
        assert text.decode(made.ids).startswith(made.text)
        assert not made.ids or not text.decode(made.ids[:-1]).rstrip(BROKEN).startswith(made.text)


def test_what_cannot_be_a_stop_string_is_not_held_back() -> None:
    made, shown = pushed(words(), [4, 2, 5, 4, 3], [1] * 5, ["abc"])
    assert shown == ["", "", "ab ", "ab ", "ab ac"]
    assert made.finish_reason == "length"


def test_longest_beginning_is_held_back() -> None:
    assert pushed(words(), [4, 2, 4, 2], [1] * 4, ["ababc", "b "])[1] == ["", "", "", "abab"]
    assert pushed(words(), [5, 4, 2], [1, 1], ["bb", "abc"])[1][:2] == [" ", " "]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("offset", range(12))
@pytest.mark.parametrize("size", [1, 2, 3])
def test_stop_string_at_every_offset_of_a_block(offset: int, size: int, depth: int) -> None:
    """Text, ids, log-probabilities, counts and the cached text agree, and the text can go on."""
    engine, _ = fake_engine(text=letters(), depth=depth, context=200)
    stop = engine.decode(LONG[offset : offset + size])
    first = engine.decode(LONG).find(stop)
    stream = engine.stream(PROMPT, stop=stop, logprobs=2, max_new_tokens=30)
    pieces = list(stream)
    result = stream.result
    assert result is not None
    check_agreement(result, engine.decode(LONG[:first]), LONG[:first])
    assert "".join(pieces) == result.text
    assert engine.token_ids == PROMPT + result.token_ids
    assert engine.resume(max_new_tokens=8).token_ids == LONG[first : first + 8]


def check_agreement(result: Generation, text: str, ids: list[int]) -> None:
    assert (result.text, result.token_ids, result.finish_reason) == (text, ids, "stop")
    assert result.stats.tokens == len(ids)
    assert result.logprobs is not None and [entry.token for entry in result.logprobs] == ids


def test_stop_string_within_a_token_and_at_the_very_beginning() -> None:
    text = letters({LONG[0]: "xy", LONG[3]: "pqr"})
    engine, _ = fake_engine(text=text, context=200)
    for stop, tokens, spelled in (
        ("xy", 0, ""),
        ("x", 0, ""),
        ("y", 1, "x"),
        ("pq", 3, text.decode(LONG[:3])),
        ("q", 4, text.decode(LONG[:3]) + "p"),
        ("r", 4, text.decode(LONG[:3]) + "pq"),
    ):
        result = engine.generate(PROMPT, stop=stop)
        assert (result.token_ids, result.text, result.finish_reason) == (LONG[:tokens], spelled, "stop")
        assert engine.token_ids == PROMPT + LONG[:tokens]
        assert engine.resume(max_new_tokens=3).token_ids == LONG[tokens : tokens + 3]


def test_whichever_comes_first() -> None:
    engine, _ = fake_engine(text=letters(), context=200)
    one, two, three = (engine.decode([LONG[i]]) for i in (2, 5, 8))
    cases: list[tuple[dict[str, Any], int, str]] = [
        ({"stop": [two, one]}, 2, "stop"),
        ({"stop": one, "eos_token_id": LONG[1]}, 2, "stop"),  # the end-of-text id, which stays
        ({"stop": one, "eos_token_id": LONG[2]}, 2, "stop"),  # both at once: its text is the stop string, so it goes
        ({"stop": two, "max_new_tokens": 4}, 4, "length"),
        ({"stop": three, "max_new_tokens": 9}, 8, "stop"),
        ({"stop": three, "max_new_tokens": 8}, 8, "length"),
        ({"stop": "never"}, 198, "context"),
    ]
    for options, tokens, reason in cases:
        result = engine.generate(PROMPT, **options)
        assert (result.finish_reason, result.token_ids) == (reason, toy_text(PROMPT, tokens)), options


def test_stop_strings_by_row() -> None:
    """A row that is cut leaves its neighbours alone, and goes on from its cut in a batch too."""
    engine, _ = fake_engine(text=letters(), batch=3, context=200)
    prompts = [[3, 1], [5], [8, 8]]
    texts = [toy_text(p, 30) for p in prompts]
    with engine.session() as session:
        jobs = []
        for i, (prompt, ids) in enumerate(zip(prompts, texts, strict=True)):
            stop = engine.decode(ids[3 + 4 * i : 5 + 4 * i])
            jobs.append((session.add(prompt, stop=stop, max_new_tokens=30), engine.decode(ids).find(stop), stop))
        for _ in session:
            for job, cut, _ in jobs:
                assert len(job.text) <= cut
        for (job, cut, stop), ids in zip(jobs, texts, strict=True):
            assert job.result is not None
            assert (job.token_ids, job.text, job.finish_reason) == (ids[:cut], engine.decode(ids[:cut]), "stop"), stop
            assert job.row.ids[-cut:] == ids[:cut]


def test_a_cancelled_job_shows_what_was_held_back() -> None:
    engine, _ = fake_engine(text=letters(), context=200)
    stop = engine.decode(LONG[:25]) + "?"
    with engine.session() as session:
        job = session.add(PROMPT, stop=stop)
        session.step()
        assert job.text == "" and job.token_ids
        session.cancel(job)
        assert job.result is not None
        assert job.text == job.result.text == engine.decode(job.token_ids) != ""


def test_special_tokens_spell_nothing() -> None:
    text = letters()
    text.tokenizer.add_special_tokens(["F"])
    assert text.decode([5]) == ""
    made, _ = pushed(text, [4, 5, 6, 5, 7], [1] * 5, ["GH"])
    assert (made.text, made.ids) == ("E", [4])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=10), st.lists(st.integers(1, 5), max_size=10))
def test_broken_characters_do_not_hang_on_the_blocks(ids: list[int], sizes: list[int]) -> None:
    """With single bytes of a sentencepiece vocabulary: how a broken character is shown hangs on what is decoded with
    it, which must not be what a step happened to emit."""
    names = ["\u2581a", "b", "<0xC3>", "<0xA9>", "<0xF0>", "<0x9F>"]
    core = Tokenizer(models.BPE({name: i for i, name in enumerate(names)}, [], byte_fallback=True))
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    core.decoder = decoders.Sequence(parts)
    one_by_one, _ = pushed(Text(core), ids, [1] * len(ids), [])
    in_blocks, _ = pushed(Text(core), ids, sizes, [])
    watched, _ = pushed(Text(core), ids, sizes, ["never"])
    assert one_by_one.text == in_blocks.text == watched.text
