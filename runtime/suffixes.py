"""Suffixes: how much of a text's end occurred in it before, which tells how well a lookup will draft."""

from __future__ import annotations

from collections.abc import Sequence


class Suffixes:
    """What n-gram lookup in the graph will find in a text, seen on the host, which knows the text.

    The longer the suffix that occurred before, the more of what followed it is taken: some 0.2 of the first drafts
    behind one token, 0.9 behind eight. And where nothing occurred before, nothing can be drafted.
    """

    def __init__(self, longest: int) -> None:
        """For suffixes of up to `longest` tokens; 0 finds none."""
        self._longest = longest
        self._seen: set[int] = set()  # hashes of n-grams: two that are taken for one only make an estimate worse
        self._text: list[int] = []  # whose n-grams were seen, but for those that end with its last token

    def match(self, text: Sequence[int]) -> int:
        """Tokens of the longest suffix of a text that occurred in it before its last token: 0 to `longest`.

        Quick where the text is the last one and a few tokens more.
        """
        if not self._longest:
            return 0
        known = len(self._text)
        if text[:known] != self._text:  # some were taken back
            self._seen.clear()
            self._text, known = [], 0
        for end in range(max(1, known), len(text)):  # those that end before the token at `end`
            self._seen.update(hash(tuple(text[end - n : end])) for n in range(1, min(self._longest, end) + 1))
        self._text += text[known:]
        sizes = range(min(self._longest, len(text) - 1), 0, -1)
        return next((n for n in sizes if hash(tuple(text[len(text) - n :])) in self._seen), 0)
