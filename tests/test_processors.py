"""Temperature, top-k and top-p without a sort, against transformers' processors, which sort."""

from __future__ import annotations

import pytest
import torch
from helpers import oracle
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.passes.accept.processors import only_best, process, process_best


def ours(logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0) -> Tensor:
    """`[rows, V]` through `process` as one row of a batch."""
    options = torch.tensor([temperature]), torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p])
    return process(logits[None], *options)[0]


def assert_same(logits: Tensor, **options: float) -> None:
    got, expected = ours(logits, **options), oracle.processed(logits, **options)
    assert torch.equal(got.isinf(), expected.isinf()), "another set of tokens is kept"
    torch.testing.assert_close(got.softmax(-1), expected.softmax(-1), rtol=0, atol=2e-6)


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.floats(0.1, 5.0),
    top_k=st.integers(0, 40),
    top_p=st.floats(0.05, 1.0),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 0.9]),
    spread=st.sampled_from([0.1, 1.0, 8.0]),
)
def test_equals_transformers(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float, spread: float
) -> None:
    logits = torch.randn(4, 32, generator=torch.Generator().manual_seed(seed)) * spread
    better = oracle.processed(logits, temperature, top_k).softmax(-1).sort(-1, descending=True).values.cumsum(-1)
    if (better - top_p).abs().min() < 1e-5:  # at the border the two sums may round apart
        return
    share = oracle.processed(logits, temperature).softmax(-1)
    if min_p and (share / share.amax(-1, keepdim=True) - min_p).abs().min() < 1e-5:
        return
    assert_same(logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)


@pytest.mark.parametrize("top_k, kept", [(1, 1), (2, 2), (5, 5), (6, 5), (1000, 5), (0, 5)])
def test_top_k_counts(top_k: int, kept: int) -> None:
    logits = torch.tensor([[0.1, 3.0, -2.0, 1.0, 0.2]])
    assert int(ours(logits, top_k=top_k).isfinite().sum()) == kept


@pytest.mark.parametrize("top_p, kept", [(0.01, 1), (0.49, 1), (0.51, 2), (0.79, 2), (0.81, 3), (0.96, 4), (1.0, 4)])
def test_top_p_keeps_the_token_that_crosses(top_p: float, kept: int) -> None:
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log()
    assert int(ours(logits, top_p=top_p).isfinite().sum()) == kept
    assert_same(logits, top_p=top_p)


def test_top_p_counts_the_mass_that_top_k_leaves() -> None:
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    assert ours(logits, top_k=2, top_p=0.5).isfinite().tolist() == [[True, False, False, False]]  # 4/7 > 0.5
    assert ours(logits, top_p=0.5).isfinite().tolist() == [[True, True, False, False]]
    assert_same(logits, top_k=2, top_p=0.5)


def test_ties_at_the_border_are_all_kept() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 2.0, 0.0]])
    assert ours(logits, top_k=2).isfinite().tolist() == [[False, True, True, True, False]]
    assert ours(logits, top_p=0.2).isfinite().tolist() == [[False, True, True, True, False]]


def test_parameters_are_those_of_the_row() -> None:
    logits = torch.randn(3, 2, 16, generator=torch.Generator().manual_seed(1))
    temperature, top_k, top_p = torch.tensor([0.5, 1.0, 2.0]), torch.tensor([3, 0, 16]), torch.tensor([1.0, 0.7, 1.0])
    min_p = torch.tensor([0.0, 0.3, 0.0])
    got = process(logits, temperature, top_k, top_p, min_p)
    for row in range(3):
        alone = ours(
            logits[row],
            *(float(x[row]) if x.is_floating_point() else int(x[row]) for x in (temperature, top_k, top_p, min_p)),
        )
        assert torch.equal(got[row], alone)


def test_best_token_is_zero_and_survives_everything() -> None:
    logits = torch.randn(5, 64, generator=torch.Generator().manual_seed(2)) * 50
    got = ours(logits, temperature=0.01, top_k=1, top_p=1e-6)
    assert torch.equal(got.argmax(-1), logits.argmax(-1))
    assert got.amax(-1).tolist() == [0.0] * 5
    assert int(got.isfinite().sum()) == 5


def test_tokens_that_are_impossible_already() -> None:
    """A model may give -inf itself."""
    logits = torch.tensor([[0.0, float("-inf"), 1.0, float("-inf")]])
    assert ours(logits).isfinite().tolist() == [[True, False, True, False]]
    assert ours(logits, top_k=3, top_p=0.99).isfinite().tolist() == [[True, False, True, False]]


def test_large_vocabulary_counts_exactly() -> None:
    logits = torch.randperm(50_000, generator=torch.Generator().manual_seed(0)).float()[None] / 1000
    for top_k in (1, 49_999, 30_001):
        assert int(ours(logits, top_k=top_k).isfinite().sum()) == top_k


@pytest.mark.parametrize("min_p, kept", [(0.0, 4), (0.05, 4), (0.2, 3), (0.5, 2), (0.61, 1), (1.0, 1)])
def test_min_p_is_a_share_of_the_best(min_p: float, kept: int) -> None:
    logits = torch.tensor([[0.05, 0.5, 0.15, 0.3]]).log()
    assert int(ours(logits, min_p=min_p).isfinite().sum()) == kept
    assert_same(logits, min_p=min_p)


def test_temperature_zero_keeps_the_lowest_of_the_best() -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 0.0]])
    shifted = ours(logits, temperature=0.0)
    assert shifted.tolist() == [[-1.0, 0.0, 0.0, -2.0]]
    law = only_best(shifted[None], torch.tensor([0.0]))[0]
    assert law.isfinite().tolist() == [[False, True, False, False]]
    assert torch.equal(only_best(shifted[None], torch.tensor([0.5]))[0], shifted)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    temperature=st.sampled_from([0.0, 0.5, 1.5]),
    top_k=st.sampled_from([0, 1, 7]),
    top_p=st.sampled_from([1.0, 0.8, 0.3]),
    min_p=st.sampled_from([0.0, 0.2]),
)
def test_the_drafters_side_is_the_same_law(
    seed: int, temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    """Over a vocabulary that fits its width, a drafter's scores are the target's."""
    logits = torch.randn(1, 2, 32, generator=torch.Generator().manual_seed(seed)) * 3
    options = torch.tensor([temperature]), torch.tensor([top_k]), torch.tensor([top_p]), torch.tensor([min_p])
    scores, ids = process_best(logits, *options)
    law = only_best(process(logits, *options), options[0])
    best = law.sort(-1, descending=True).values.softmax(-1).cumsum(-1)
    if (best - top_p).abs().min() < 1e-5:
        return
    full = torch.full_like(law, float("-inf")).scatter(2, ids, scores)
    torch.testing.assert_close(full.softmax(-1), law.softmax(-1), rtol=0, atol=2e-6)
