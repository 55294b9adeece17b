"""Constrained output: the token automaton of a regular expression or a JSON schema, as the table that a step reads.

Built on the host, once a request; in the graph two look-ups give the next state of a state and a token:
`next[state * classes + token_class[token]]`, -1 where the token is not allowed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch

from ...errors import ConfigError
from ..text import Text
from .byte_automaton import ByteAutomaton
from .json_schema import json_schema
from .languages import Languages, Term, TooComplex, TooLarge
from .regex import regex
from .token_bytes import token_bytes
from .token_table import Stuck, TokenTable

LIMIT = 1 << 18  # entries of a table: 1 MiB
_PAIRS = 4  # how many times the limit the pairs of states in a search may be
_LESS = "ask for less (shorter repeats, repeats not within repeats, fewer fields)"
_MORE = "or compile the engine with --grammar"


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """A token automaton. All who ask for the same one share it: its tensors are not to be written.

    Attributes:
        token_class: int32[V]; tokens that lead every state to the same one share a class.
        next: int32[states * classes]: the next state; -1: not allowed.
        start: the state of an empty text.
        source: what it was built from, for messages.
    """

    token_class: torch.Tensor
    next: torch.Tensor
    classes: int
    states: int
    start: int
    source: str

    def next_state(self, state: int, token: int) -> int:
        """The state after a token; -1 where it is not allowed, and after that."""
        return int(self.next[state * self.classes + int(self.token_class[token])]) if state >= 0 else -1


def compile_regex(pattern: str, text: Text, vocab_size: int, eos_ids: Iterable[int], limit: int = LIMIT) -> Grammar:
    """Texts that a regular expression (Python's syntax) matches from end to end; then EOS.

    Args:
        text: the engine's tokenizer.
        vocab_size: V. Ids without a token, special and added tokens are never allowed.
        eos_ids: allowed where the text may end, and alone from then on; they spell nothing.
        limit: the most entries that `next` may have.

    Raises:
        ConfigError: the pattern does not compile, the vocabulary can spell no text of it, a text ends where nothing is
            allowed since no EOS was given, or the table is above the limit.
    """
    if not isinstance(pattern, str):
        raise ConfigError(f"regex must be a text, not {type(pattern).__name__}")
    return _compile(regex, pattern, f"regex {pattern!r}", text, vocab_size, tuple(eos_ids), limit)


def compile_json_schema(
    schema: Mapping[str, Any] | bool | str, text: Text, vocab_size: int, eos_ids: Iterable[int], limit: int = LIMIT
) -> Grammar:
    """JSON that fits a schema, then EOS; what of a schema can be kept, and how, is told in `json_schema.py`.

    Args:
        schema: JSON text, or what `json.loads` makes of one. The others are as in `compile_regex`.

    Raises:
        ConfigError: it is no JSON, or as in `compile_regex`.
    """
    try:
        source = schema if isinstance(schema, str) else json.dumps(schema)
        json.loads(source)
    except (ValueError, TypeError, RecursionError) as e:
        raise ConfigError(f"json_schema must be JSON text, or a dict of what JSON has: {e}") from e
    return _compile(_read_schema, source, f"json_schema {source}", text, vocab_size, tuple(eos_ids), limit)


def _read_schema(languages: Languages, source: str) -> Term:
    return json_schema(languages, json.loads(source))


@lru_cache(maxsize=8)
def _compile(
    read: Callable[[Languages, str], Term],
    given: str,
    name: str,
    text: Text,
    vocab_size: int,
    eos_ids: tuple[int, ...],
    limit: int,
) -> Grammar:
    name = name if len(name) <= 80 else f"{name[:77]}..."
    if strangers := [token for token in eos_ids if not 0 <= token < vocab_size]:
        raise ConfigError(f"eos_token_id {strangers[0]} must be in 0..{vocab_size - 1}")
    spelled = (list(token_bytes(text)) + [None] * vocab_size)[:vocab_size]
    for token in eos_ids:
        spelled[token] = None
    languages = Languages()
    try:
        automaton = ByteAutomaton.of(languages, read(languages, given), limit // 2)
        table = TokenTable.of(automaton, spelled, eos_ids, limit * _PAIRS)
    except TooLarge as e:
        raise ConfigError(f"{name}: {e}, too many for a table of {limit} entries; {_LESS}, {_MORE} above it") from e
    except TooComplex as e:
        raise ConfigError(f"{name}: {e}; {_LESS}") from e
    except Stuck as e:
        raise ConfigError(f"{name}: {e}") from e
    except RecursionError as e:
        raise ConfigError(f"{name} nests too deep; write it flatter") from e
    states, classes = table.states, len(table.classes)
    size = states * classes
    if size > limit:
        raise ConfigError(
            f"{name}: its table has {states} states x {classes} classes = {size} entries, above the {limit} of this "
            f"engine; {_LESS}, {_MORE} {size}"
        )
    entries = [-1] * size
    for number, moves in enumerate(table.classes):
        for state, after in moves:
            entries[state * classes + number] = after
    return Grammar(
        token_class=torch.tensor(table.token_class, dtype=torch.int32),
        next=torch.tensor(entries, dtype=torch.int32),
        classes=classes,
        states=states,
        start=0,
        source=name,
    )
