"""The two formulas: exact values, limits, and their agreement with counts of a simulated run."""

from __future__ import annotations

import pytest
import torch

from specc.bench.formulas import break_even, conditional, full, rate, textbook, tokens_per_step


def test_tokens_per_step_at_its_limits() -> None:
    assert tokens_per_step(0.0, 5) == 1
    assert tokens_per_step(1.0, 5) == 6
    assert tokens_per_step(0.5, 3) == 1.875
    assert tokens_per_step(0.7, 0) == 1


@pytest.mark.parametrize("alpha", [0.1, 0.45, 0.8, 0.99])
@pytest.mark.parametrize("length", [1, 3, 16])
def test_tokens_per_step_is_the_closed_form(alpha: float, length: int) -> None:
    assert tokens_per_step(alpha, length) == pytest.approx((1 - alpha ** (length + 1)) / (1 - alpha), rel=1e-12)


def test_textbook() -> None:
    assert textbook(1.0, 4, 0.0) == 5
    assert textbook(0.0, 4, 0.25) == 0.5
    assert textbook(0.5, 3, 0.1) == pytest.approx(1.875 / 1.3)


def test_full() -> None:
    assert full([1.0, 1.0, 1.0], 2.0) == 2
    assert full([0.0, 0.9], 1.25) == 0.8
    assert full([], 1.0) == 1
    assert full([0.8, 0.5, 0.25], 1.0) == pytest.approx(1 + 0.8 + 0.4 + 0.1)


def test_full_is_the_textbook_where_every_position_is_alike() -> None:
    assert full([0.6] * 4, 1 + 4 * 0.05) == pytest.approx(textbook(0.6, 4, 0.05))


def test_break_even() -> None:
    alpha = break_even(3, 1.5)
    assert alpha is not None and tokens_per_step(alpha, 3) == pytest.approx(1.5)
    assert break_even(1, 1.25) == pytest.approx(0.25)
    assert break_even(3, 1.0) == 0  # a step as cheap as a plain one never loses
    assert break_even(3, 4.0) is None  # even if all is accepted


def test_rates_from_counts() -> None:
    assert conditional([8, 4, 1], 10) == [0.8, 0.5, 0.25]
    assert conditional([0, 0], 10) == [0.0, 0.0]
    assert conditional([], 10) == []
    assert rate([8, 4, 1], 10) == 13 / 22
    assert rate([10, 10], 10) == 1
    assert rate([], 0) == 0


def test_rates_recover_what_made_the_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    steps, alphas = 20_000, torch.tensor([0.7, 0.7, 0.7])
    accepted = (torch.rand(steps, 3, generator=generator) < alphas).long().cumprod(1).sum(0).tolist()
    assert rate(accepted, steps) == pytest.approx(0.7, abs=0.01)  # three standard errors
    assert conditional(accepted, steps) == pytest.approx(alphas.tolist(), abs=0.02)
    emitted = steps + sum(accepted)
    assert full(conditional(accepted, steps), 1.0) == pytest.approx(emitted / steps)
