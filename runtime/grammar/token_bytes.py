"""The bytes that each token adds to a text, as the tokenizer's decoder writes them in the middle of one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tokenizers import Tokenizer

from ...errors import ConfigError
from ..text import Text

Write = Callable[[str], str | bytes]


@lru_cache(maxsize=2)
def token_bytes(text: Text) -> tuple[bytes | None, ...]:
    """`spelled` of an engine's tokenizer, kept."""
    return spelled(text.tokenizer)


def spelled(tokenizer: Tokenizer) -> tuple[bytes | None, ...]:
    """For each token id: its bytes, which may be part of a character; None where it spells nothing.

    Tokens that were added to the vocabulary (special ones too) and ids without a token spell nothing. A decoder that
    drops the space before the first word of a text drops it after this: in the middle, where a continuation stands,
    that space is there.

    Raises:
        ConfigError: the decoder does not write token by token.
    """
    spec = json.loads(tokenizer.to_str())
    write = _chain(spec.get("decoder"))
    vocabulary = tokenizer.get_vocab(with_added_tokens=False)
    added = {token["id"] for token in spec["added_tokens"]}
    found: list[bytes | None] = [None] * (max([*vocabulary.values(), *added], default=-1) + 1)
    for token, number in vocabulary.items():
        if number not in added:
            piece = write(token)
            found[number] = (piece.encode() if isinstance(piece, str) else piece) or None
    return tuple(found)


def _chain(decoder: Mapping[str, Any] | None) -> Write:
    """What a decoder (or a sequence of them) makes of one token."""
    parts = decoder["decoders"] if decoder and decoder["type"] == "Sequence" else [decoder]
    steps, fused = [], False
    for part in parts:
        match part:
            case {"type": "Fuse"}:
                fused = True
            case {"type": "Strip", "stop": 0} if fused:  # the beginning of the whole text
                pass
            case _:
                steps.append(_step(None if fused else part))

    def write(token: str) -> str | bytes:
        piece: str | bytes = token
        for step in steps:
            if isinstance(piece, str):  # bytes are final
                piece = step(piece)
        return piece

    return write


def _step(decoder: Mapping[str, Any] | None) -> Write:
    """One decoder on one token."""
    match decoder:
        case {"type": "ByteLevel"}:
            return _byte_level
        case {"type": "ByteFallback"}:
            return _byte_fallback
        case {"type": "Metaspace", "replacement": str(space)}:
            return lambda token: token.replace(space, " ")
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return lambda token: token.replace(old, new)
    kind = decoder["type"] if decoder else "none, or one that sees the whole text"
    raise ConfigError(
        f"this tokenizer's decoder ({kind}) does not write token by token, so its output cannot be constrained; "
        f"leave regex and json_schema out, or use a model with a byte-level or sentencepiece tokenizer"
    )


def _byte_level(token: str) -> str | bytes:
    letters = _letters()
    return bytes(map(letters.__getitem__, token)) if all(map(letters.__contains__, token)) else token


def _byte_fallback(token: str) -> str | bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token


@lru_cache(maxsize=1)
def _letters() -> dict[str, int]:
    """GPT-2's table: the letter by which byte-level BPE writes each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(others)}
