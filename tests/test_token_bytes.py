"""What each token spells is what the tokenizer's decoder writes."""

from __future__ import annotations

import random

import pytest
from helpers.grammars import BYTES, TEXT
from tokenizers import AddedToken, Tokenizer, decoders, models

from specc.errors import ConfigError
from specc.runtime.grammar.token_bytes import token_bytes
from specc.runtime.text import Text

PIECES = ["<unk>", "▁", "▁the", "re", "▁a▁b", "é", *(f"<0x{byte:02X}>" for byte in (0x0A, 0xC3, 0xA9, 0xF0)), "<0xZZ>"]


def pieces(decoder: decoders.Decoder | None) -> Text:
    """A vocabulary as sentencepiece makes them."""
    core = Tokenizer(models.BPE({piece: i for i, piece in enumerate(PIECES)}, [], byte_fallback=True))
    if decoder:
        core.decoder = decoder
    core.add_special_tokens([AddedToken("<unk>", special=True)])
    core.add_tokens([AddedToken("<tool>", special=False)])
    return Text(core)


def llama() -> decoders.Decoder:
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return decoders.Sequence(parts)


def test_byte_level_tokens_spell_their_bytes() -> None:
    assert BYTES[:3] == (None, None, None)  # specials
    assert {b"\xc3", b"\xa9", b"\xf0", b" ", b"\n", b"th"} <= set(BYTES)
    rng = random.Random(0)
    for _ in range(300):
        ids = [rng.randrange(3, 128) for _ in range(rng.randrange(12))]
        assert b"".join(BYTES[i] for i in ids).decode(errors="replace") == TEXT.decode(ids)


@pytest.mark.parametrize("decoder", [llama(), decoders.Metaspace("▁", "always")], ids=["llama", "metaspace"])
def test_sentencepiece_tokens_spell_what_they_add_within_a_text(decoder: decoders.Decoder) -> None:
    text = pieces(decoder)
    spelled = token_bytes(text)
    assert spelled[PIECES.index("▁the")] == b" the"
    assert spelled[PIECES.index("▁a▁b")] == b" a b"
    assert spelled[PIECES.index("é")] == "é".encode()
    assert spelled[0] is None and spelled[len(PIECES)] is None  # special, added
    assert len(spelled) == len(PIECES) + 1
    first = PIECES.index("re")
    for i in (1, 2, 3, 4, 5, 10):
        assert b"re" + spelled[i] == text.decode([first, i]).encode()


def test_sentencepiece_bytes_spell_parts_of_characters() -> None:
    text = pieces(llama())
    spelled = token_bytes(text)
    assert spelled[6:11] == (b"\n", b"\xc3", b"\xa9", b"\xf0", b"<0xZZ>")
    assert text.decode([3, 7, 8, 6]) == b"".join(spelled[i] for i in (3, 7, 8, 6)).decode() == "reé\n"


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        decoders.WordPiece(),
        decoders.Sequence([decoders.Strip(" ", 1, 0)]),
        decoders.Sequence([decoders.Fuse(), decoders.Replace("▁", " ")]),
        decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]),
    ],
    ids=["none", "wordpiece", "strip each", "replace after fuse", "strip the end"],
)
def test_decoders_that_look_beyond_a_token_are_refused(decoder: decoders.Decoder | None) -> None:
    with pytest.raises(ConfigError, match="does not write token by token.*leave regex and json_schema out"):
        token_bytes(pieces(decoder))
