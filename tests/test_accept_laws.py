"""Every acceptance rule alone: 20,000 rows in one call against exact laws, in eager mode and compiled.

Seeds are fixed. A chi-square test fails a right rule with probability below 1e-5, an acceptance rate one of 1e-6 (five
standard deviations); the planted wrong rules at the end show that the same tests have the power to catch mistakes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import oracle
from torch import Tensor

from specc.passes.accept import coupled, greedy, rejection
from specc.passes.accept.noise import draw
from specc.passes.accept.walk import walk
from specc.philox import COIN, DRAFT, RACE, RESIDUAL, uniform
from specc.tree import DraftTree

ROWS = 20_000
FIRST = ((0.6, 0.2, 0.1, 0.1), (0.7, 0.2, 0.05, 0.05))
SECOND = ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1))
VECTORS = [FIRST, SECOND]
DISJOINT = ((0.0, 0.0, 0.5, 0.5), (0.5, 0.5, 0.0, 0.0))
EQUAL = (SECOND[0], SECOND[0])
SEEDS = torch.arange(ROWS) * 977 + 3
SAMPLE = torch.zeros(ROWS, dtype=torch.long)


@pytest.fixture(params=["eager", "inductor"])
def mode(request: pytest.FixtureRequest) -> str:
    return request.param


@functools.cache
def in_mode(mode: str, function: Callable[..., Any]) -> Callable[..., Any]:
    return function if mode == "eager" else torch.compile(function, dynamic=False, fullgraph=True)


def noise(stream: int, positions: int = 1, size: int = 4) -> Tensor:
    return draw(SEEDS, SAMPLE, torch.arange(10, 10 + positions).expand(ROWS, -1), stream=stream, size=size)


def coins(drafts: int = 1) -> Tensor:
    return uniform(SEEDS, SAMPLE, torch.arange(10, 10 + drafts).expand(ROWS, -1), COIN, 1).squeeze(2)


def rows(*laws: tuple[float, ...]) -> Tensor:
    """Logits `[ROWS, len(laws), V]`."""
    return torch.tensor(laws).log().expand(ROWS, -1, -1)


# --- the rules as a step uses them: each gives levels accepted and the block


def by_rejection(processed: Tensor, q: Tensor, tokens: Tensor, valid: Tensor, u: Tensor, last: Tensor) -> Any:
    accepted, law = rejection.accept(processed, q, tokens, valid, u)
    bonus = (law.log() + last).argmax(-1)
    level = torch.arange(tokens.shape[1])
    ahead = torch.cat([tokens[:, 1:], bonus[:, None]], 1)
    return accepted, torch.where(level < accepted[:, None], ahead, bonus[:, None])


def by_coupling(processed: Tensor, gumbel: Tensor, tokens: Tensor, parents: Tensor, depths: Tensor) -> Any:
    depth = gumbel.shape[1] - 1
    choices = coupled.choose(processed, gumbel, depths)
    _, accepted, block = walk(choices, tokens, parents, depths, torch.ones_like(tokens).bool(), depth=depth)
    return accepted, block


def by_greed(logits: Tensor, tokens: Tensor, parents: Tensor, depths: Tensor) -> Any:
    _, accepted, block = walk(greedy.choose(logits), tokens, parents, depths, torch.ones_like(tokens).bool(), depth=1)
    return accepted, block


def reject_once(p: tuple[float, ...], q: tuple[float, ...], rule: Callable[..., Any] = by_rejection) -> Any:
    """One draft from q, one step of the rule."""
    law = torch.tensor(q).expand(ROWS, 1, -1)
    draft = (law.log() + noise(DRAFT)).argmax(-1)
    tokens = torch.cat([torch.zeros(ROWS, 1).long(), draft], 1)
    return rule(rows(p, p), law, tokens, torch.ones(ROWS, 2).bool(), coins(), noise(RESIDUAL)[:, 0])


def couple_once(p: tuple[float, ...], q: tuple[float, ...], children: int, rule: Any = by_coupling) -> Any:
    """The best children of `log q + noise`, one step of the rule."""
    tree = DraftTree.from_widths((children,))
    gumbel = noise(RACE, positions=2)
    draft = (torch.tensor(q).log() + gumbel[:, 0]).topk(children, -1).indices
    tokens = torch.cat([torch.zeros(ROWS, 1).long(), draft], 1)
    return rule(rows(*[p] * (children + 1)), gumbel, tokens, torch.tensor([tree.parents]), torch.tensor([tree.depths]))


def assert_law(tokens: Tensor, p: tuple[float, ...]) -> None:
    tail = oracle.chi_square_tail(torch.bincount(tokens, minlength=len(p)), torch.tensor(p))
    assert tail > 1e-5, f"law {(torch.bincount(tokens, minlength=len(p)) / len(tokens)).tolist()} is not {p}"


def assert_rate(accepted: Tensor, chance: float) -> None:
    deviation = oracle.binomial_deviation(int(accepted.sum()), len(accepted), chance)
    assert abs(deviation) < 5, f"acceptance {float(accepted.double().mean())} is not {chance}"


def coupled_rate(p: tuple[float, ...], q: tuple[float, ...]) -> float:
    """`sum_i 1 / sum_j max(p_j/p_i, q_j/q_i)`."""
    index = range(len(p))
    return sum(1 / sum(max(p[j] / p[i], q[j] / q[i]) for j in index) for i in index if p[i] and q[i])


# --- right rules


@pytest.mark.parametrize("p, q, rate", [(*FIRST, 0.9), (*SECOND, 0.6), (*EQUAL, 1.0), (*DISJOINT, 0.0)])
def test_rejection(mode: str, p: tuple[float, ...], q: tuple[float, ...], rate: float) -> None:
    accepted, block = reject_once(p, q, in_mode(mode, by_rejection))
    assert_law(block[:, 0], p)
    if rate in (0.0, 1.0):
        assert set(accepted.tolist()) == {int(rate)}
    else:
        assert_rate(accepted, rate)
    # The token behind an accepted draft follows p as well.
    assert (
        rate == 0.0
        or oracle.chi_square_tail(torch.bincount(block[accepted == 1, 1], minlength=4), torch.tensor(p)) > 1e-5
    )


@pytest.mark.parametrize("p, q, rate", [(*FIRST, 0.882), (*SECOND, 0.543), (*EQUAL, 1.0)])
def test_coupled_chain(mode: str, p: tuple[float, ...], q: tuple[float, ...], rate: float) -> None:
    accepted, block = couple_once(p, q, 1, in_mode(mode, by_coupling))
    assert round(coupled_rate(p, q), 3) == rate
    assert_law(block[:, 0], p)
    if rate == 1.0:
        assert accepted.all()
    else:
        assert_rate(accepted, coupled_rate(p, q))


@pytest.mark.parametrize("p, q", VECTORS)
def test_coupled_tree(p: tuple[float, ...], q: tuple[float, ...]) -> None:
    rates = []
    for children in (1, 2, 3, 4):
        accepted, block = couple_once(p, q, children)
        assert_law(block[:, 0], p)
        rates.append(float(accepted.double().mean()))
    assert rates == sorted(rates) and rates[-1] == 1.0, "all tokens are offered: acceptance is certain"
    blocks = [couple_once(p, q, children)[1][:, 0] for children in (1, 4)]
    assert torch.equal(*blocks), "the noise alone decides the text"


@pytest.mark.parametrize("p, q, chances", [(*FIRST, (0.6, 0.8, 0.9, 1.0)), (*SECOND, (0.1, 0.3, 0.6, 1.0))])
def test_fixed_children_are_compared_with_a_sample(
    p: tuple[float, ...], q: tuple[float, ...], chances: tuple[float, ...]
) -> None:
    """Trees and lookup under `rejection`: children known beforehand, q one-hot; acceptance is their share of p."""
    for children, chance in enumerate(chances, 1):
        tree = DraftTree.from_widths((children,))
        tokens = torch.tensor([0, *range(children)]).expand(ROWS, -1)
        tables = torch.tensor([tree.parents]), torch.tensor([tree.depths])
        accepted, block = by_coupling(rows(*[p] * (children + 1)), noise(RACE, 2), tokens, *tables)
        assert_law(block[:, 0], p)
        assert_rate(accepted, chance)


def test_chain_of_two_has_the_joint_law(mode: str) -> None:
    """K = 2, every row of p and q depends on the tokens before: nine texts."""
    generator = torch.Generator().manual_seed(3)
    p0, q0 = (torch.rand(3, generator=generator).softmax(0) ** 3 for _ in range(2))
    p1, q1 = (torch.rand(3, 3, generator=generator).pow(3) + 0.01 for _ in range(2))
    p0, q0, p1, q1 = (t / t.sum(-1, keepdim=True) for t in (p0, q0, p1, q1))
    race = noise(DRAFT, 2, 3)
    first = (q0.log() + race[:, 0]).argmax(-1)
    second = (q1[first].log() + race[:, 1]).argmax(-1)
    tokens = torch.stack([torch.zeros_like(first), first, second], 1)
    laws = torch.stack([q0.expand(ROWS, -1), q1[first]], 1)
    logits = torch.stack([p0.expand(ROWS, -1), p1[first], torch.full((ROWS, 3), 1 / 3)], 1).log()
    rule = in_mode(mode, by_rejection)
    accepted, block = rule(logits, laws, tokens, torch.ones(ROWS, 3).bool(), coins(2), noise(RESIDUAL, 1, 3)[:, 0])
    later = (p1[block[:, 0]].log() + noise(RACE, 1, 3)[:, 0]).argmax(-1)  # the next step of rows that were stopped
    text = block[:, 0] * 3 + torch.where(accepted > 0, block[:, 1], later)
    assert_law(text, tuple((p0[:, None] * p1).flatten().tolist()))
    assert {0, 1, 2} == set(accepted.tolist())


def test_greedy(mode: str) -> None:
    tree = DraftTree.from_widths((2,))
    logits = torch.randn(ROWS, 3, 4, generator=torch.Generator().manual_seed(0)).round(decimals=1)  # with ties
    tokens = torch.randint(0, 4, (ROWS, 3), generator=torch.Generator().manual_seed(1))
    tables = torch.tensor([tree.parents]), torch.tensor([tree.depths])
    accepted, block = in_mode(mode, by_greed)(logits, tokens, *tables)
    best = torch.tensor([[row.index(max(row)) for row in rows] for rows in logits.tolist()])
    assert torch.equal(block[:, 0], best[:, 0]), "ties go to the lowest id"
    assert torch.equal(accepted.bool(), (tokens[:, 1:] == best[:, :1]).any(1))
    assert {0, 1} == set(accepted.tolist())


def test_compiled_noise_is_bit_equal() -> None:
    key = SEEDS, SAMPLE, torch.arange(2).expand(ROWS, -1), RACE, 6
    assert torch.equal(in_mode("inductor", uniform)(*key), uniform(*key))


def test_equal_laws_are_accepted_at_the_largest_coin() -> None:
    p = torch.rand(ROWS, 64, generator=torch.Generator().manual_seed(5)).softmax(-1)
    token = torch.arange(ROWS)[:, None] % 64
    logits = p.log()[:, None].expand(-1, 2, -1)
    q = logits[:, :1].softmax(-1)
    largest = torch.full((ROWS, 1), 1 - 2.0**-24)
    accepted, _ = rejection.accept(logits, q, torch.cat([token, token], 1), torch.ones(ROWS, 2).bool(), largest)
    assert accepted.all()


@pytest.mark.parametrize("coin", [0.0, 2.0**-24])
def test_impossible_token_is_rejected_at_the_smallest_coin(coin: float) -> None:
    accepted, law = _one(p=(0.0, 1.0), q=(1.0, 0.0), draft=0, coin=coin)
    assert accepted == 0 and law == [0.0, 1.0]


def test_empty_residual_falls_back_to_p() -> None:
    """Rounding may reject where p and q are equal; here q is a little larger everywhere."""
    accepted, law = _one(p=(0.5, 0.5), q=(0.500001, 0.500001), draft=0, coin=1 - 2.0**-24)
    assert accepted == 0 and law == [0.5, 0.5]


def test_nothing_offered_gives_p_and_not_the_residual() -> None:
    accepted, law = _one(p=(0.5, 0.5), q=(0.9, 0.1), draft=0, coin=2.0**-24, offered=0)
    assert accepted == 0 and law == [0.5, 0.5]


def test_residual_of_the_rejected_level() -> None:
    p = torch.tensor([[0.5, 0.5], [0.2, 0.8], [0.9, 0.1]])
    q = torch.tensor([[0.5, 0.5], [0.7, 0.3]])
    expected = {1: [0.0, 1.0], 2: [0.9, 0.1]}
    for second, taken in ((0.9, 1), (0.1, 2)):
        u = [0.5, second]
        arguments = p.log()[None], q[None], torch.tensor([[0, 0, 0]]), torch.ones(1, 3).bool(), torch.tensor([u])
        accepted, law = rejection.accept(*arguments)
        reference = oracle.reject(p, q, [0, 0], 2, u)
        assert int(accepted) == reference[0] == taken
        torch.testing.assert_close(law[0] / law.sum(), reference[1], rtol=0, atol=1e-6)
        torch.testing.assert_close(reference[1], torch.tensor(expected[taken]), rtol=0, atol=1e-6)


def test_rejection_equals_the_loop() -> None:
    generator = torch.Generator().manual_seed(8)
    count, drafts, vocab = 300, 3, 5
    p, q = (torch.rand(count, n, vocab, generator=generator) ** 4 for n in (drafts + 1, drafts))
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    tokens = torch.randint(0, vocab, (count, drafts + 1), generator=generator)
    offered = torch.randint(0, drafts + 1, (count,), generator=generator)
    valid = torch.arange(drafts + 1) <= offered[:, None]
    u = torch.rand(count, drafts, generator=generator).clamp(min=1e-6)
    accepted, law = rejection.accept(p.log(), q, tokens, valid, u)
    for row in range(count):
        expected = oracle.reject(p[row], q[row], tokens[row, 1:].tolist(), int(offered[row]), u[row].tolist())
        assert int(accepted[row]) == expected[0]
        torch.testing.assert_close(law[row] / law[row].sum(), expected[1], rtol=0, atol=1e-5)
    assert set(accepted.tolist()) == {0, 1, 2, 3}


def _one(
    p: tuple[float, ...], q: tuple[float, ...], draft: int, coin: float, offered: int = 1
) -> tuple[int, list[float]]:
    valid = torch.tensor([[True, bool(offered)]])
    tokens = torch.tensor([[0, draft]])
    arguments = torch.tensor([p, p]).log()[None], torch.tensor([[q]]), tokens, valid, torch.tensor([[coin]])
    accepted, law = rejection.accept(*arguments)
    return int(accepted), law[0].tolist()


# --- planted wrong rules: the tests above must refuse them


def _ratio_upside_down(p: Tensor, q: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    return u * _at(p, x) < _at(q, x), (p - q).clamp(min=0)


def _residual_is_p(p: Tensor, q: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    return u * _at(q, x) < _at(p, x), p


def _residual_without_clamp(p: Tensor, q: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    return u * _at(q, x) < _at(p, x), (p - q).abs()


def _residual_swapped(p: Tensor, q: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    return u * _at(q, x) < _at(p, x), (q - p).clamp(min=0)


def _q_unprocessed(p: Tensor, q: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    raw = (q.log() * 0.5).softmax(-1)  # q before a temperature of one half
    return u * _at(raw, x) < _at(p, x), (p - raw).clamp(min=0)


def _lenient(p: Tensor, q: Tensor, x: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    return u * 0.8 * _at(q, x) < _at(p, x), (p - q).clamp(min=0)


def _at(law: Tensor, x: Tensor) -> Tensor:
    return law.gather(1, x[:, None]).squeeze(1)


def _planted(decide: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., Any]:
    def rule(processed: Tensor, q: Tensor, tokens: Tensor, valid: Tensor, u: Tensor, last: Tensor) -> Any:
        ok, law = decide(processed[:, 0].softmax(-1), q[:, 0], tokens[:, 1], u[:, 0])
        bonus = (law.log() + last).argmax(-1)
        return ok.long(), torch.where(ok, tokens[:, 1], bonus)[:, None]

    return rule


@pytest.mark.parametrize(
    "decide",
    [_ratio_upside_down, _residual_is_p, _residual_without_clamp, _residual_swapped, _q_unprocessed, _lenient],
)
def test_wrong_rules_are_refused(decide: Callable[..., tuple[Tensor, Tensor]]) -> None:
    def passes(vector: tuple[tuple[float, ...], tuple[float, ...]], rule: Any) -> bool:
        try:
            assert_law(reject_once(*vector, rule)[1][:, 0], vector[0])
        except AssertionError:
            return False
        return True

    assert all(passes(vector, by_rejection) for vector in VECTORS)
    assert not all(passes(vector, _planted(decide)) for vector in VECTORS)


def test_dropping_a_sampled_draft_by_its_confidence_is_refused() -> None:
    """`valid` may not depend on the token that was drawn: p = q = [.6, .4], dropped below .5, gives [.84, .16]."""

    def dropping(processed: Tensor, q: Tensor, tokens: Tensor, valid: Tensor, u: Tensor, last: Tensor) -> Any:
        confident = q.gather(2, tokens[:, 1:, None]).squeeze(2) >= 0.5
        return by_rejection(processed, q, tokens, torch.cat([valid[:, :1], confident], 1), u, last[:, :2])

    law = (0.6, 0.4)

    def once(rule: Any) -> Tensor:
        q = torch.tensor(law).expand(ROWS, 1, -1)
        tokens = torch.cat([torch.zeros(ROWS, 1).long(), (q.log() + noise(DRAFT, 1, 2)).argmax(-1)], 1)
        ones = torch.ones(ROWS, 2).bool()
        return rule(rows(law, law), q, tokens, ones, coins(), noise(RESIDUAL, 1, 2)[:, 0])[1][:, 0]

    assert_law(once(by_rejection), law)
    assert_law(once(dropping), (0.84, 0.16))


def test_noise_of_a_depth_is_shared_by_its_nodes() -> None:
    """Rows ab, ac, ad, ef with p(a) = p(e) = .5: noise of its own for every row of the tree gives P(a) = .875."""
    tree = DraftTree.from_widths((4, 1))
    a, b, c, d, e, f = range(6)
    tokens = torch.tensor([0, a, a, a, e, b, c, d, f]).expand(ROWS, -1)
    root = (0.5, 0.0, 0.0, 0.0, 0.5, 0.0)
    behind = (1 / 6,) * 6
    tables = torch.tensor([tree.parents]), torch.tensor([tree.depths])
    _, block = by_coupling(rows(root, *[behind] * 8), noise(RACE, 3, 6), tokens, *tables)
    assert_law(block[:, 0], root)

    own = (torch.tensor(root).log() + noise(RACE, 4, 6)).argmax(-1)  # one sample a row of the tree
    matches = tokens[:, [1, 2, 3, 4]] == own
    row = torch.where(matches.any(1), matches.long().argmax(1), 0)
    first = own.gather(1, row[:, None]).squeeze(1)
    assert_law(first, (0.875, 0.0, 0.0, 0.0, 0.125, 0.0))
    with pytest.raises(AssertionError, match="is not"):
        assert_law(first, root)


def test_noise_that_the_drafter_does_not_share_costs_acceptance() -> None:
    """Still lossless, so only the rate can tell: matches by chance, `sum p q`."""
    p, q = SECOND
    draft = (torch.tensor(q).log() + noise(DRAFT)[:, 0]).argmax(-1)
    tokens = torch.stack([torch.zeros_like(draft), draft], 1)
    tables = torch.tensor([[0, 0]]), torch.tensor([[0, 1]])
    accepted, block = by_coupling(rows(p, p), noise(RACE, 2), tokens, *tables)
    assert_law(block[:, 0], p)
    assert_rate(accepted, sum(x * y for x, y in zip(p, q, strict=True)))
    with pytest.raises(AssertionError, match="acceptance"):
        assert_rate(accepted, coupled_rate(p, q))
