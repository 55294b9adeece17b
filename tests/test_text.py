"""Text: encoding, whole characters while streaming, chat templates."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from helpers.models import SPECIALS, TEMPLATE, tiny_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from specc.errors import BackendError, ConfigError, EngineFormatError
from specc.runtime.text import BROKEN, Text, TextStream

SPECIAL = {"chat_template": TEMPLATE, "special_tokens": {"bos_token": SPECIALS[1], "eos_token": SPECIALS[2]}}


def byte_level() -> Tokenizer:
    """256 bytes, and two specials behind them."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIALS[:2]])
    return core


def byte_fallback() -> Tokenizer:
    """Words with a mark for the space before them, single bytes for the rest, as Llama 2 and Gemma have."""
    names = ["<unk>", "<s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁the", "▁cat", "s", "é", "▁日", "本"]
    core = Tokenizer(models.BPE({t: i for i, t in enumerate(names)}, [], unk_token="<unk>", byte_fallback=True))
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    core.add_special_tokens([AddedToken("<s>", special=True, normalized=False)])
    return core


def word_piece() -> Tokenizer:
    """Words and their continuations; its decoder sets spaces."""
    core = Tokenizer(models.WordPiece({t: i for i, t in enumerate(["[UNK]", "the", "cat", "##s", "##ing", "do", "."])}))
    core.decoder = decoders.WordPiece(cleanup=False)
    return core


def stream(core: Tokenizer, blocks: Sequence[Sequence[int]]) -> list[str]:
    text = TextStream(Text(core))
    return [*(text.push(block) for block in blocks), text.flush()]


def blocks_of(size: int) -> st.SearchStrategy[list[list[int]]]:
    return st.lists(st.lists(st.integers(0, size - 1), min_size=1, max_size=5), max_size=20)


@settings(deadline=None, max_examples=300)
@given(blocks_of(258))
def test_byte_level_pieces_join(blocks: list[list[int]]) -> None:
    """Any bytes at all: what is streamed is what is decoded at the end."""
    core = byte_level()
    ids = [i for block in blocks for i in block]
    assert "".join(stream(core, blocks)) == core.decode(ids)


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=30), st.data())
def test_whole_characters(text: str, data: st.DataObject) -> None:
    """No piece holds half a character, wherever the blocks are cut."""
    text = text.replace(BROKEN, "")
    core = data.draw(st.sampled_from([byte_level(), byte_fallback()]))
    ids = core.encode(text).ids
    blocks = []
    while ids:
        size = data.draw(st.integers(1, 5))
        blocks.append(ids[:size])
        ids = ids[size:]
    pieces = stream(core, blocks)
    assert BROKEN not in "".join(pieces)
    assert "".join(pieces) == core.decode([i for block in blocks for i in block])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.lists(st.sampled_from([1, 258, 259, 260, 261, 262, 263, 264]), min_size=1, max_size=4), max_size=15))
def test_spaces_between_words(blocks: list[list[int]]) -> None:
    """A decoder that drops the first space of what it is given drops only the first of all."""
    core = byte_fallback()
    assert "".join(stream(core, blocks)) == core.decode([i for block in blocks for i in block])


@settings(deadline=None, max_examples=100)
@given(blocks_of(7))
def test_spaces_set_by_the_decoder(blocks: list[list[int]]) -> None:
    core = word_piece()
    assert "".join(stream(core, blocks)) == core.decode([i for block in blocks for i in block])


def test_character_in_many_tokens_comes_at_once() -> None:
    core = byte_level()
    pieces = stream(core, [[i] for i in core.encode("a😀é").ids])
    assert pieces == ["a", "", "", "", "😀", "", "é", ""]


def test_what_is_whole_is_not_held_back() -> None:
    core = byte_level()
    ids = core.encode("hi 😀").ids
    assert stream(core, [ids[:-1], ids[-1:]]) == ["hi ", "😀", ""]


def test_broken_end_is_flushed() -> None:
    core = byte_level()
    assert stream(core, [core.encode("a😀").ids[:-1]]) == ["a", BROKEN]


def test_bytes_that_spell_nothing_do_not_stop_the_stream() -> None:
    core = byte_fallback()
    lone = core.token_to_id("<0xFF>")
    pieces = stream(core, [[259], [lone], [260]])
    assert pieces == ["the", "", BROKEN + " cat", ""]


def test_window_stays_short() -> None:
    text = TextStream(Text(byte_level()))
    for i in range(5000):
        text.push([i % 90])
    assert len(text.window) < 4


def test_encode_and_decode() -> None:
    core = tiny_tokenizer().backend_tokenizer
    core.post_processor = processors.TemplateProcessing(
        single=f"{SPECIALS[1]} $A", special_tokens=[(SPECIALS[1], core.token_to_id(SPECIALS[1]))]
    )
    text = Text(core)
    assert text.encode("the cat")[0] == 1
    assert text.encode("the cat", special=False) == text.encode("the cat")[1:]
    assert text.decode(text.encode("the cat")) == "the cat"
    assert text.encode("a<|im_end|>", special=False)[-1] == 2


def test_special_tokens_in_a_text() -> None:
    text = Text(tiny_tokenizer().backend_tokenizer)
    assert text.special_in("a<|im_end|>") == ("<|im_end|>", 2)
    assert text.special_in("a<|im_end") is None


def test_saved_padding_and_truncation_are_ignored(tmp_path: Path) -> None:
    core = byte_level()
    core.enable_padding(length=50)
    core.enable_truncation(3)
    core.save(str(tmp_path / "tokenizer.json"))
    text = Text.read(tmp_path)
    assert text is not None and len(text.encode("abcdef")) == 6


def test_read(tmp_path: Path) -> None:
    assert Text.read(tmp_path) is None
    byte_level().save(str(tmp_path / "tokenizer.json"))
    text = Text.read(tmp_path)
    assert text is not None and not text.has_chat_template
    with pytest.raises(ConfigError, match="no chat template"):
        text.chat("hi")
    (tmp_path / "text.json").write_text(json.dumps(SPECIAL))
    text = Text.read(tmp_path)
    assert text is not None and text.has_chat_template
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(EngineFormatError, match="tokenizer cannot be read"):
        Text.read(tmp_path)


MESSAGES = [{"role": "system", "content": "Be brief. <&>'é"}, {"role": "user", "content": "hi"}]
TEMPLATES = [
    TEMPLATE,
    "{{ bos_token }}{%- for m in messages %}\n  {%- if m.role == 'system' %}{% continue %}{% endif %}\n"
    "[{{ m.content }}]{% endfor %}",
    "{{ messages | tojson }}{{ messages | tojson(indent=2) }}",
    "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
    "{{ ns.n }}{{ eos_token }}",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{% if tools is none and not documents %}{{ strftime_now('%Y') | length }}{% endif %}",
    "{{ messages[0].content.split('.')[0] | trim }}{{ missing is defined }}{{ missing }}",
]


@pytest.mark.parametrize("template", TEMPLATES)
def test_chat_template_renders_as_in_transformers(template: str) -> None:
    tokenizer = tiny_tokenizer()
    theirs = tokenizer.apply_chat_template(MESSAGES, chat_template=template, tokenize=False, add_generation_prompt=True)
    assert Text(byte_level(), {**SPECIAL, "chat_template": template}).chat(MESSAGES) == theirs


def test_text_alone_is_the_users_turn() -> None:
    expected = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert Text(byte_level(), SPECIAL).chat("hi") == expected
    assert Text(byte_level(), SPECIAL).chat("hi", add_generation_prompt=False) == expected.partition("<|im_start|>a")[0]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "there are no messages"),
        ([{"role": "user"}], r"messages\[0\] has no content"),
        ([{"role": "user", "content": "a"}, {}], r"messages\[1\] has no role and no content"),
        ([{"role": "user", "content": "a"}, {"role": "x", "tool_calls": []}, {"tool_calls": []}], r"\[2\] has no role"),
    ],
)
def test_messages_that_lack_something(messages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Text(byte_level(), SPECIAL).chat(messages)


def test_named_templates() -> None:
    for named in ([{"name": "tool_use", "template": "x"}, {"name": "default", "template": "y"}], {"default": "y"}):
        assert Text(byte_level(), {"chat_template": named}).chat("hi") == "y"
    assert not Text(byte_level(), {"chat_template": {"tool_use": "x"}}).has_chat_template


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "rejects these messages: roles must alternate"),
        ("{% if %}", "rejects these messages"),
        ("{{ messages[9].content }}", "rejects these messages"),
        ("{{ ().__class__.__bases__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe|not safe"),
    ],
)
def test_templates_that_fail(template: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        Text(byte_level(), {"chat_template": template}).chat("hi")


def test_without_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(BackendError, match=r"pip install 'specc\[chat\]'"):
        Text(byte_level(), SPECIAL).chat("hi")


def test_special_is_not_shared() -> None:
    special: dict[str, Any] = dict(SPECIAL)
    text = Text(byte_level(), special)
    special.clear()
    assert text.has_chat_template
