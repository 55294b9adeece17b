"""Regular expressions in Python's syntax, as regular languages (`languages.py`).

`re` itself reads the expression and says which characters a class holds, so every flag, escape and category means
what it means there. A text belongs to the language where `re.fullmatch` finds a match: greedy or not is the same.
"""

from __future__ import annotations

import re
from functools import lru_cache
from re import _parser  # type: ignore[attr-defined]  # private, and the same since Python 2; hypothesis reads it too
from typing import Any

from ...errors import ConfigError
from .languages import Languages, Term

_CLASS_FLAGS = re.IGNORECASE | re.ASCII | re.DOTALL
_CATEGORIES = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w", "NOT_DIGIT": r"\D", "NOT_SPACE": r"\S", "NOT_WORD": r"\W"}
_STARTS, _ENDS = ("AT_BEGINNING", "AT_BEGINNING_STRING"), ("AT_END", "AT_END_STRING")


def regex(languages: Languages, pattern: str) -> Term:
    """The texts that a regular expression matches from end to end.

    Raises:
        ConfigError: it does not compile, or uses what no automaton can do (look-around, back-references, borders).
    """
    if not isinstance(pattern, str):
        raise ConfigError(f"regex must be a text, not {type(pattern).__name__}")
    try:
        tree = _parser.parse(pattern)
    except (re.error, ValueError, OverflowError, RecursionError) as e:
        raise ConfigError(f"regex {pattern!r} does not compile: {e}") from e
    return _Reader(languages, pattern).sequence(tree, tree.state.flags, True, True)


class _Reader:
    """Walks what `re` parsed. `first` and `last` say that nothing can stand before and after in the whole text."""

    def __init__(self, languages: Languages, pattern: str) -> None:
        self.languages = languages
        self.pattern = pattern

    def sequence(self, items: Any, flags: int, first: bool, last: bool) -> Term:
        solid = [i for i, (op, _) in enumerate(items) if str(op) != "AT"]
        start, end = (solid[0], solid[-1]) if solid else (len(items), -1)
        parts = []
        for i, (op, argument) in enumerate(items):
            parts.append(self.item(str(op), argument, flags, first and i <= start, last and i >= end))
        return self.languages.cat(*parts)

    def item(self, name: str, argument: Any, flags: int, first: bool, last: bool) -> Term:
        make = self.languages
        match name:
            case "LITERAL" if not flags & re.IGNORECASE:
                return make.chars([(argument, argument)])
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return make.chars(_ranges(_class_text(name, argument), flags & _CLASS_FLAGS))
            case "BRANCH":
                return make.alt(*(self.sequence(branch, flags, first, last) for branch in argument[1]))
            case "SUBPATTERN":
                _, added, removed, items = argument
                return self.sequence(items, (flags | added) & ~removed, first, last)
            case "MAX_REPEAT" | "MIN_REPEAT":
                low, high, items = argument
                once = self.sequence(items, flags, False, False)
                return make.repeat(once, low, None if high is _parser.MAXREPEAT else high)
            case "AT" if (str(argument) in _STARTS and first) or (str(argument) in _ENDS and last):
                return make.empty
            case "AT":
                what = "^, $ or a border inside it; the whole text is matched, so leave them out"
            case "ASSERT" | "ASSERT_NOT":
                what = "look-around, which no automaton of tokens has; write out what may come"
            case _:
                what = f"{name.lower().replace('_', ' ')}, which no automaton has; write out what may come"
        raise ConfigError(f"regex {self.pattern!r} has {what}")


def _class_text(name: str, argument: Any) -> str:
    """A class of one character in `re`'s own syntax."""
    if name == "ANY":
        return "."
    if name != "IN":
        return f"[{'^' if name == 'NOT_LITERAL' else ''}{_char(argument)}]"
    texts = []
    for op, value in argument:
        match str(op):
            case "NEGATE":
                texts.append("^")
            case "LITERAL":
                texts.append(_char(value))
            case "RANGE":
                texts.append(f"{_char(value[0])}-{_char(value[1])}")
            case _:
                texts.append(_CATEGORIES[str(value).removeprefix("CATEGORY_")])
    return f"[{''.join(texts)}]"


def _char(code: int) -> str:
    return f"\\U{code:08x}"


@lru_cache(maxsize=64)
def _ranges(text: str, flags: int) -> tuple[tuple[int, int], ...]:
    """Code points that a class of `re` holds, as ranges with both ends."""
    return tuple((m.start(), m.end() - 1) for m in re.compile(f"{text}+", flags).finditer(_every_character()))


@lru_cache(maxsize=1)
def _every_character() -> str:
    return "".join(map(chr, range(0x110000)))
