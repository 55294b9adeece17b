"""What speculation should gain: the two formulas of the field, from an acceptance and a cost."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul


def tokens_per_step(alpha: float, length: int) -> float:
    """Expected tokens of a step that drafts `length` tokens, each accepted with probability `alpha`.

    `(1 - a^(K+1)) / (1 - a)`, K + 1 at a = 1 (Leviathan et al., Fast Inference from Transformers via Speculative
    Decoding, equation 1).
    """
    return sum((alpha**i for i in range(length + 1)), 0.0)


def textbook(alpha: float, length: int, cost: float) -> float:
    """Predicted speed-up `(1 - a^(K+1)) / ((1 - a)(1 + cK))`: a verification that costs no more than a plain pass.

    Args:
        alpha: acceptance rate of a drafted token.
        length: K, tokens drafted per step.
        cost: c, one drafted token in plain passes.
    """
    return tokens_per_step(alpha, length) / (1 + cost * length)


def full(alphas: Sequence[float], step_cost: float) -> float:
    """Predicted speed-up `(1 + sum_i prod_{j<=i} a_j) / (v + cK)`.

    Args:
        alphas: acceptance rate at each position of the draft, given that the positions before it were accepted.
        step_cost: v + cK, a whole speculative step in plain passes.
    """
    return (1 + sum(accumulate(alphas, mul))) / step_cost


def break_even(length: int, step_cost: float) -> float | None:
    """The acceptance rate above which a step that costs `step_cost` plain passes gains; None if there is none."""
    if step_cost <= 1:
        return 0.0
    if step_cost >= length + 1:
        return None
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_per_step(middle, length) < step_cost else (low, middle)
    return high


def rate(accepted: Sequence[int], steps: int) -> float:
    """The acceptance rate a that makes the counts likeliest, if it were the same at every position.

    Every step tries its first position, and the next one if that was accepted: accepted tries over all tries.

    Args:
        accepted: how often each position was accepted.
        steps: speculative steps.
    """
    tries = steps + sum(accepted[:-1])
    return sum(accepted) / tries if tries else 0.0


def conditional(accepted: Sequence[int], steps: int) -> list[float]:
    """Acceptance rate of each position among the steps that reached it; 0 where none did."""
    reached = [steps, *accepted[:-1]]
    return [a / r if r else 0.0 for a, r in zip(accepted, reached, strict=True)] if accepted else []


def over(a: float, b: float) -> float:
    """`a / b`; 0 where nothing was counted or timed."""
    return a / b if b else 0.0
