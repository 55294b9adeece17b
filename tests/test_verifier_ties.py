"""`specc verify` compares texts: what is a tie of float numbers, and what is a fault."""

from __future__ import annotations

from typing import Any

import pytest
from helpers.fake_engine import fake_engine

from specc.runtime import TokenLogprob
from specc.verifier.lab import Lab, same_text
from specc.verifier.modes import GREEDY, Mode, coupled
from specc.verifier.texts import Comparison, Text, spread


def text(*tokens: tuple[int, dict[int, float]]) -> Text:
    return Text([TokenLogprob(token, top[token], top) for token, top in tokens], [])


def compared(plain: Text, other: Text, mode: Mode = GREEDY) -> Comparison:
    found = Comparison()
    found.add(plain, other, mode, prompt=7, allowed=0.01, where="here")
    return found


FIRM = {1: -0.1, 2: -2.0, 3: -4.0}
CLOSE = {1: -0.700, 2: -0.701, 3: -4.0}


def test_a_difference_below_the_noise_is_a_tie() -> None:
    moved = {1: -0.7, 2: -0.698, 3: -4.0}
    found = compared(text((1, FIRM), (1, CLOSE)), text((1, FIRM), (2, moved)))
    assert (found.tokens, found.stopped, found.faults) == (2, 1, [])
    assert found.noise == pytest.approx(0.003)
    assert found.ties == ["here: new token 2: 2 instead of 1; gap 0.001, programs differ by 0.003"]


def test_a_difference_above_the_noise_is_a_fault() -> None:
    found = compared(text((1, FIRM), (1, CLOSE)), text((1, FIRM), (2, CLOSE)))
    assert found.ties == [] and found.faults == ["here: new token 2: 2 instead of 1; gap 0.001, programs differ by 0"]
    assert compared(text((1, FIRM)), text((2, FIRM))).faults


def test_noise_has_a_limit_even_where_the_texts_agree() -> None:
    far = {1: -0.1, 2: -2.02, 3: -4.0}
    found = compared(text((1, FIRM), (1, FIRM)), text((1, FIRM), (1, far)))
    assert found.faults == ["here: new token 2: logits behind the same text differ by 0.02, allowed 0.01"]
    assert compared(text((1, FIRM)), text((1, {4: -0.2, 1: -0.3}))).faults, "another token is best"


def test_a_shorter_text_is_a_fault() -> None:
    assert compared(text((1, FIRM), (1, FIRM)), text((1, FIRM))).faults == ["here: 1 new tokens instead of 2"]


def test_scores_are_seen_from_the_best_token_and_lists_may_end_apart() -> None:
    assert spread({1: -1.0, 2: -2.0}, {1: -1.5, 2: -2.5}) == 0
    assert spread({1: -1.0, 2: -2.0, 3: -3.0}, {1: -1.0, 2: -2.0, 4: -3.0}) == 0, "a border, exchanged"
    assert spread({1: -1.0, 2: -2.0, 3: -3.0}, {1: -1.0, 2: -2.0}) == 0, "cut by the other: no better than its last"
    assert spread({1: -1.0, 5: -1.5, 2: -2.0}, {1: -1.0, 2: -2.0}) == 0.5
    assert spread({1: -1.0}, {2: -1.0}) == float("inf")


def test_a_race_decides_by_its_noise() -> None:
    """Tokens 1 and 2 of equal probability: the seed's noise at position 7 is between them."""
    from specc.verifier.texts import race

    even, mode = {1: -0.7, 2: -0.7}, coupled(3)
    noise = race(3, 7, 3)
    winner, loser = (1, 2) if noise[1] > noise[2] else (2, 1)
    (fault,) = compared(text((winner, even)), text((loser, even)), mode).faults
    assert f"gap {abs(noise[1] - noise[2]) * 0.8:.3g}" in fault


def test_behind_a_tie_both_texts_begin_anew() -> None:
    """Two texts that part for good at a tie are compared again behind it; tokens are counted once."""
    calls = []

    class Ties(Lab):
        def write(self, prompt: Any, mode: Mode, length: int | None, tokens: int, draft: Any = None) -> Text:
            calls.append((tuple(prompt), length, tokens))
            lines = [(1, FIRM)] * tokens
            if len(prompt) < 5 <= len(prompt) + tokens - 1:
                lines[5 - len(prompt)] = (2, {2: -0.7, 1: -0.7}) if length else (1, {1: -0.7, 2: -0.7})
            return text(*lines)

    lab = Ties(fake_engine()[0], [[1]], 8, True)
    found = same_text(lab, [1, 1], GREEDY, 3, "here")
    assert (found.tokens, len(found.ties), found.faults) == (8, 1, [])
    assert calls == [((1, 1), 0, 8), ((1, 1), 3, 8), ((1,) * 6, 0, 4), ((1,) * 6, 3, 4)]
