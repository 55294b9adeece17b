"""Decimal numbers between bounds as regular languages: digits compared from the left."""

from __future__ import annotations

from collections.abc import Callable

from .languages import Languages, Term
from .regex import regex


def number(languages: Languages, low: int | None, high: int | None, whole: bool) -> Term:
    """Numbers in JSON's spelling from `low` to `high`, both included; None is no bound.

    An exponent has two digits, so that the number is not read as infinity, and none where bounds compare the digits.
    """
    if low is None and high is None:
        return regex(languages, "-?(0|[1-9][0-9]*)" + ("" if whole else r"(\.[0-9]+)?([eE][+-]?[0-9]{1,2})?"))
    make = _naturals if whole else _reals
    parts = []
    if high is None or high >= 0:
        parts.append(make(languages, max(low or 0, 0), high))
    if low is None or low < 0:
        least = max(int(whole), 0 if high is None else -high)
        below = make(languages, least, None if low is None else -low)
        parts.append(languages.cat(languages.text("-"), below))
    return languages.alt(*parts)


def _reals(languages: Languages, low: int, high: int | None) -> Term:
    """From `low` on any fraction; up to `high`, which itself has none."""
    fraction = regex(languages, r"(\.[0-9]+)?")
    if high is None:
        return languages.cat(_naturals(languages, low, None), fraction)
    last = languages.cat(languages.text(str(high)), regex(languages, r"(\.0+)?"))
    if low == high:
        return last
    return languages.alt(languages.cat(_naturals(languages, low, high - 1), fraction), last)


def _naturals(languages: Languages, low: int, high: int | None) -> Term:
    """Of two whole numbers the shorter is smaller; of one length, the first digit that differs decides."""
    digit = regex(languages, "[0-9]")
    terms = [regex(languages, "0|[1-9][0-9]*")]
    if low:
        same = _compare(languages, str(low), lambda digit: (ord(digit) + 1, ord("9")))
        terms.append(languages.alt(same, languages.repeat(digit, len(str(low)) + 1)))
    if high is not None:
        same = _compare(languages, str(high), lambda digit: (ord("0"), ord(digit) - 1))
        terms.append(languages.alt(same, languages.repeat(digit, 0, len(str(high)) - 1)))
    return languages.both(*terms)


def _compare(languages: Languages, digits: str, better: Callable[[str], tuple[int, int]]) -> Term:
    """These digits, or as many that agree with them up to a better one."""
    digit = regex(languages, "[0-9]")
    found = languages.empty
    for i, mark in enumerate(reversed(digits)):
        free = languages.cat(languages.chars([better(mark)]), languages.repeat(digit, i, i))
        found = languages.alt(free, languages.cat(languages.text(mark), found))
    return found
