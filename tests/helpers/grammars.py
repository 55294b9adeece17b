"""Walks through a token automaton, for tests: at random, or along a text."""

from __future__ import annotations

import random
from collections.abc import Iterator

from specc.runtime.grammar import Grammar
from specc.runtime.grammar.token_bytes import token_bytes
from specc.runtime.text import Text

from .models import tiny_tokenizer

VOCAB, EOS = 128, 2
TEXT = Text(tiny_tokenizer().backend_tokenizer)
BYTES = token_bytes(TEXT)


def allowed(grammar: Grammar, state: int) -> list[int]:
    """Tokens that do not lead to -1."""
    row = grammar.next.view(grammar.states, grammar.classes)[state]
    return (row[grammar.token_class.long()] >= 0).nonzero().flatten().tolist()


def walk(grammar: Grammar, rng: random.Random, most: int = 400) -> list[int] | None:
    """Random allowed tokens up to EOS, without it; None where `most` tokens did not get there.

    Raises:
        AssertionError: a state allows no token at all.
    """
    state, tokens = grammar.start, []
    while len(tokens) < most:
        choices = allowed(grammar, state)
        assert choices, f"no token is allowed after {TEXT.decode(tokens)!r}"
        kinds: dict[int, list[int]] = {}  # a class first, else the many letters of a string would rarely end it
        for choice in choices:
            kinds.setdefault(int(grammar.token_class[choice]), []).append(choice)
        token = EOS if EOS in choices and rng.random() < 0.3 else rng.choice(rng.choice([*kinds.values()]))
        if token == EOS:
            return tokens
        tokens.append(token)
        state = grammar.next_state(state, token)
    return None


def walks(grammar: Grammar, count: int, seed: int = 0) -> Iterator[str]:
    """Texts of random walks that end."""
    rng = random.Random(seed)
    ended = 0
    for _ in range(count):
        tokens = walk(grammar, rng)
        if tokens is not None:
            ended += 1
            yield b"".join(BYTES[token] or b"?" for token in tokens).decode()
    assert ended >= count // 2, f"only {ended} of {count} walks came to an end"


def accepts(grammar: Grammar, text: str) -> bool:
    """Whether the text, one byte a token, may be followed by EOS."""
    state = grammar.start
    for byte in text.encode():
        state = grammar.next_state(state, BYTES.index(bytes([byte])))
    return grammar.next_state(state, EOS) >= 0
