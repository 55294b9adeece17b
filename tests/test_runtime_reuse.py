"""Prefix reuse and conversations: only what is new is run, and the text is the same."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from helpers.fake_engine import fake_engine, letters
from helpers.toy_law import VOCAB, ToyGrammar, expected, toy_text
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.errors import ConfigError
from specc.runtime import Engine
from specc.runtime.text import Text

TOKENS = st.integers(0, VOCAB - 1)
TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] | upper }}{{ m.content }}!{% endfor %}"
    "{% if add_generation_prompt %}A{% endif %}"
)


@settings(deadline=None, max_examples=100)
@given(
    st.integers(1, 3),
    st.sampled_from([1, 4, 8]),
    st.sampled_from(["model", "ngram"]),
    st.lists(
        st.tuples(st.integers(0, 60), st.lists(TOKENS, min_size=1, max_size=9), st.integers(0, 3), st.booleans()),
        min_size=2,
        max_size=6,
    ),
)
def test_text_is_the_same(batch: int, chunk: int, kind: str, turns: list[tuple[int, list[int], int, bool]]) -> None:
    """Each prompt begins as the text before did, and leaves it somewhere."""
    engine, programs = fake_engine(batch=batch, chunk=chunk, drafter_kind=kind, context=120)
    for keep, more, length, reuse in turns:
        held = [list(row.ids) for row in engine.machine.rows]
        prompt = [*engine.token_ids[:keep], *more]
        programs.calls.clear()
        result = engine.generate(prompt, max_new_tokens=12, draft_length=length, reuse=reuse)
        assert (result.token_ids, result.finish_reason) == expected(prompt, 120, max_new_tokens=12)
        assert engine.token_ids == prompt + result.token_ids
        best = max(common(ids, prompt) for ids in held) if reuse else 0
        assert result.stats.reused_tokens == best
        assert programs.calls.count("prefill_target") == -(-(len(prompt) - 1 - best) // chunk)


def common(ids: list[int], prompt: list[int]) -> int:
    """Tokens of a prompt that a row holds; the last of a text, and of a prompt, is never in the cache."""
    same = next((i for i, (a, b) in enumerate(zip(ids, prompt, strict=False)) if a != b), min(len(ids), len(prompt)))
    return max(0, min(same, len(ids) - 1, len(prompt) - 1))


def test_a_session_finds_the_row_that_holds_most() -> None:
    engine, _ = fake_engine(batch=3, context=200)
    with engine.session() as session:
        jobs = [session.add([i] * 20, max_new_tokens=5) for i in range(3)]
        for _ in session:
            pass
        again = session.add([*jobs[2].row.ids, 7], reuse=True, max_new_tokens=9)
        assert again.row is jobs[2].row and again.stats.reused_tokens == 24
        other = session.add([*[2] * 20, 9], reuse=True, max_new_tokens=9)  # its row is taken
        assert other.row is not again.row and other.stats.reused_tokens == 0
        for _ in session:
            pass
    assert again.token_ids == toy_text([*[2] * 20, *toy_text([2] * 20, 5), 7], 9)
    assert other.token_ids == toy_text([*[2] * 20, 9], 9)


def test_what_the_engine_holds_is_the_last_generation() -> None:
    engine, _ = fake_engine(batch=2)
    first, second = engine.generate([[1], [2]], max_new_tokens=4)
    assert engine.token_ids == [2, *second.token_ids]
    assert engine.resume(max_new_tokens=3).token_ids == toy_text([2], 7)[4:]
    again = engine.generate([1, *first.token_ids, 3], reuse=True, max_new_tokens=3)
    assert again.stats.reused_tokens == 4 and engine.token_ids == [1, *first.token_ids, 3, *again.token_ids]
    engine.truncate(2)
    assert engine.resume(max_new_tokens=3).token_ids == toy_text([1], 4)[1:]


def test_nothing_of_the_old_text_is_left_in_the_caches() -> None:
    engine, _ = fake_engine(context=100)
    engine.generate(range(30), max_new_tokens=30)
    caches = [t for t in engine.machine.state.tensors.values() if t.ndim == 4]
    for cache in caches:
        cache[:, :, 40:67] = float("nan")
    engine.generate(range(20), reuse=True, max_new_tokens=1)
    assert not any(cache.isnan().any() for cache in caches)


class TestChat:
    """`Engine.conversation`."""

    @pytest.fixture
    def engine(self) -> Engine:
        text = letters()
        return fake_engine(text=Text(text.tokenizer, {"chat_template": TEMPLATE}), context=300)[0]

    @staticmethod
    def answer(engine: Engine, rendered: str, **options: Any) -> str:
        return engine.decode(toy_text(engine.encode(rendered), options.pop("max_new_tokens"), **options))

    def test_turns(self, engine: Engine) -> None:
        chat = engine.conversation("BE", max_new_tokens=6)
        rendered = "SBE!"
        for said in ("HI", "YOU", "ME"):
            rendered += f"U{said}!A"
            stream = chat.say(said)
            text = "".join(stream)
            assert text == self.answer(engine, rendered, max_new_tokens=6)
            assert chat.messages[-2:] == [{"role": "user", "content": said}, {"role": "assistant", "content": text}]
            assert stream.result is not None
            fresh = stream.result.stats.prompt_tokens - stream.result.stats.reused_tokens
            # All that was said before is held, but for the last token of the answer.
            assert fresh == (len(rendered) if said == "HI" else len(f"!U{said}!A") + 1)
            rendered += f"{text}!"
        assert [m["role"] for m in chat.messages] == ["system", *["user", "assistant"] * 3]

    def test_edit_and_reset(self, engine: Engine) -> None:
        chat = engine.conversation(max_new_tokens=5)
        with pytest.raises(ConfigError, match=r"nothing was said yet; use say\(\)"):
            chat.edit("X")
        first = chat.say("HI").finish().text
        chat.say("YOU").finish()
        edited = chat.edit("ME").finish()
        assert edited.text == self.answer(engine, f"UHI!A{first}!UME!A", max_new_tokens=5)
        assert edited.stats.reused_tokens >= len(f"UHI!A{first}!U")
        assert [m["content"] for m in chat.messages] == ["HI", first, "ME", edited.text]
        chat.reset()
        assert chat.messages == []
        assert chat.say("NO").finish().text == self.answer(engine, "UNO!A", max_new_tokens=5)

    def test_answers_that_are_not_read_to_their_end(self, engine: Engine) -> None:
        chat = engine.conversation(max_new_tokens=30)
        chat.say("NEVER")  # not begun
        gc.collect()
        assert chat.messages == []
        with chat.say("HI") as stream:
            piece = next(stream)
        assert [m["content"] for m in chat.messages] == ["HI", piece]
        half = chat.say("YOU")
        more = next(half)
        whole = chat.say("ME").finish().text  # ends `half`
        assert [m["content"] for m in chat.messages] == ["HI", piece, "YOU", more, "ME", whole]
        assert whole == self.answer(engine, f"UHI!A{piece}!UYOU!A{more}!UME!A", max_new_tokens=30)
        dropped = chat.say("SO")
        next(dropped)
        del dropped
        gc.collect()
        assert engine.turns.free and chat.messages[-2]["content"] == "SO"

    def test_another_use_of_the_engine_in_between(self, engine: Engine) -> None:
        chat = engine.conversation(max_new_tokens=5)
        first = chat.say("HI").finish().text
        engine.generate("ZZZZ", max_new_tokens=3)
        second = chat.say("YOU").finish()
        assert second.text == self.answer(engine, f"UHI!A{first}!UYOU!A", max_new_tokens=5)
        assert second.stats.reused_tokens == 0

    def test_refused_turns_change_nothing(self, engine: Engine) -> None:
        chat = engine.conversation(max_new_tokens=5)
        chat.say("HI").finish()
        before = list(chat.messages)
        for call in (lambda: chat.say("X" * 300), lambda: chat.edit("X" * 300), lambda: chat.say(5)):  # type: ignore[arg-type]
            with pytest.raises(ConfigError):
                call()
        assert chat.messages == before

    def test_refused_conversations(self, engine: Engine) -> None:
        for options, words in (
            ({"top_k": -1}, "0 means none"),
            ({"n": 2, "temperature": 1.0}, "n 2"),
            ({"beams": 2}, "unknown option beams"),
            ({"system": 5}, "system must be a text"),
            ({"system": "X" * 300}, "leave no room"),
        ):
            with pytest.raises(ConfigError, match=words):
                engine.conversation(**options)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="no chat template"):
            fake_engine(text=letters())[0].conversation()

    def test_every_answer_follows_the_grammar(self) -> None:
        grammar = ToyGrammar.alternating([range(10), range(10, 20)], end=39)
        text = Text(letters().tokenizer, {"chat_template": TEMPLATE})
        engine, _ = fake_engine(text=text, context=300, grammar=100)
        chat = engine.conversation(grammar=grammar, eos_token_id=39, max_new_tokens=8)
        for said in ("HI", "YOU"):
            ids = [engine.encode(c)[0] for c in chat.say(said).finish().text.replace("%", "")]
            assert ids and all((i < 10) == (place % 2 == 0) for place, i in enumerate(ids))
