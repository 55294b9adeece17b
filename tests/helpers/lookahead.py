"""Lookahead decoding in plain Python: window and pool as lists, one text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specc.passes.lookahead_draft import STEPS_KEPT


class Lookahead:
    """What one text knows between steps: W columns of N - 1 guesses, and the n-grams seen."""

    def __init__(self, width: int, size: int, guesses: int) -> None:
        self.width, self.size, self.guesses = width, size, guesses
        self.window = [[0] * width for _ in range(size - 1)]
        self.made_for = 0
        self.pool: list[tuple[int, ...]] = []

    def slide(self, text: Sequence[int]) -> None:
        """Move the window to the root at the text's end."""
        root = len(text) - 1
        gone = root - self.made_for if 0 < self.made_for <= root else self.width
        moved = [line[gone:] for line in self.window]
        for level, line in enumerate(moved):
            for column in range(len(line), self.width):
                place = root + 1 + column + level
                line.append(text[(place * 7919 + level * 104729) % len(text)])
        self.window = moved

    def guess(self, text: Sequence[int]) -> list[tuple[int, ...]]:
        """At most G continuations of the root, each once."""
        spans = [tuple(text[i : i + self.size]) for i in range(len(text) - self.size + 1)]
        known = [*self.pool[::-1], *spans[::-1]]
        return [gram[1:] for gram in dict.fromkeys(known) if gram[0] == text[-1]][: self.guesses]

    def rows(self, text: Sequence[int]) -> list[list[int]]:
        """The text that each column's last level ends."""
        first, *others = self.window
        return [[*text, *first[: c + 1], *(line[c] for line in others)] for c in range(self.width)]

    def update(self, text: Sequence[int], choose: Callable[[list[int]], int]) -> None:
        """Take in what the target chose behind each row."""
        level = [choose(row) for row in self.rows(text)]
        grams = zip(*self.window, level, strict=True)
        self.pool = [*self.pool, *grams][-STEPS_KEPT * self.width :]
        self.window = [*self.window[1:], level]
        self.made_for = len(text)
