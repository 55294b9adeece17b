"""Recursive rejection: its law enumerated exactly, its acceptance against computed numbers, and what breaks it.

For every order in which children can be drawn, the coin at which each is accepted is found by bisection; so the law of
the emitted token is exact up to rounding, and no chance is left in these tests.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.decoding import Session
from helpers.exact import LAW_SLOTS, LAW_TEXT, NAMES, TREES, law_models, law_tail, law_texts
from torch import Tensor

from specc.config import CompileConfig, DraftConfig
from specc.errors import ConfigError
from specc.passes.accept import recursive
from specc.tree import DraftTree

FIRST = ((0.6, 0.2, 0.1, 0.1), (0.7, 0.2, 0.05, 0.05))
SECOND = ((0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1))
ODD = [
    ((0.0, 0.5, 0.5), (0.5, 0.5, 0.0)),
    ((0.2, 0.3, 0.5), (0.2, 0.3, 0.5)),
    ((0.0, 0.0, 1.0), (0.6, 0.3, 0.1)),
    ((0.7, 0.1, 0.2), (0.0, 0.0, 1.0)),
]
Law = tuple[float, ...]
Order = Callable[[tuple[int, ...]], tuple[int, ...]]


def orders(q: Sequence[float], count: int) -> dict[tuple[int, ...], float]:
    """Every tuple of draws from q without replacement, as far as its support goes, and its probability."""
    found = {}
    support = [token for token, share in enumerate(q) if share > 0]
    for draw in itertools.permutations(support, min(count, len(support))):
        left, chance = sum(q), 1.0
        for token in draw:
            chance *= q[token] / left
            left -= q[token]
        found[draw] = chance
    return found


def decide(p: Law, q: Law, drawn: Sequence[tuple[int, ...]], coins: Tensor) -> tuple[Tensor, Tensor]:
    """`recursive.accept` on one level, a row for each tuple of draws (all of one length)."""
    rows, count = coins.shape
    tokens = torch.tensor([[0, *draw] for draw in drawn])
    children = torch.zeros(count + 1, count, dtype=torch.long)
    children[0] = torch.arange(1, count + 1)
    scores = [torch.tensor(law).log().expand(rows, size, -1) for law, size in ((p, count + 1), (q, 1))]
    valid, alone = torch.ones_like(tokens, dtype=torch.bool), torch.zeros_like(tokens, dtype=torch.bool)
    inner = torch.zeros(count + 1, dtype=torch.long)
    return recursive.accept(*scores, tokens, valid, alone, coins[:, None], children, inner, widths=(count,))


def emitted(p: Law, q: Law, count: int, order: Order = lambda drawn: drawn) -> tuple[Tensor, float]:
    """The law of the next token `[V]`, and the probability that a child is accepted."""
    found = orders(q, count)
    drawn = [order(one) for one in found]
    chance = torch.tensor(list(found.values()), dtype=torch.float64)
    count = len(drawn[0])
    law, accepted = torch.zeros(len(p), dtype=torch.float64), 0.0
    open_ = chance.clone()
    for place in range(count):
        low, high = torch.zeros(len(drawn)), torch.ones(len(drawn))
        for _ in range(26):
            middle = (low + high) / 2
            coins = torch.ones(len(drawn), count)  # 1 refuses all that can be refused
            coins[:, place] = middle
            passed = decide(p, q, drawn, coins)[0][:, 0] == place + 1
            low, high = torch.where(passed, middle, low), torch.where(passed, high, middle)
        law.scatter_add_(0, torch.tensor([one[place] for one in drawn]), open_ * high)
        accepted += float((open_ * high).sum())
        open_ = open_ * (1 - high)
    end, rest = decide(p, q, drawn, torch.ones(len(drawn), count))
    rest = rest.double() / rest.sum(-1, keepdim=True)
    return law + (open_[:, None] * rest).sum(0), accepted


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("p, q", [FIRST, SECOND, *ODD], ids=str)
def test_the_law_is_p(p: Law, q: Law, count: int) -> None:
    law, _ = emitted(p, q, count)
    assert torch.allclose(law, torch.tensor(p, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_random_laws_of_three_and_four_tokens(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for size in (3, 4):
        p, q = (tuple(torch.rand(size, generator=generator).pow(3).add(1e-3).tolist()) for _ in range(2))
        p, q = (tuple(x / math.fsum(law) for x in law) for law in (p, q))
        for count in (1, 2, 3):
            assert torch.allclose(emitted(p, q, count)[0], torch.tensor(p, dtype=torch.float64), atol=1e-5)


@pytest.mark.parametrize(
    "vector, count, rate",
    [
        (FIRST, 1, 0.9),
        (FIRST, 2, 0.93333),
        (FIRST, 3, 1.0),
        (SECOND, 1, 0.6),
        (SECOND, 2, 0.764286),
        (SECOND, 3, 0.840298),
    ],
)
def test_acceptance_is_what_was_computed(vector: tuple[Law, Law], count: int, rate: float) -> None:
    assert emitted(*vector, count)[1] == pytest.approx(rate, abs=2e-5)


def test_dividing_by_the_original_q_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recursive, "without", lambda q, token: q)
    law, _ = emitted(*SECOND, 2)
    assert law.tolist() == pytest.approx([0.1, 0.2, 0.3434, 0.3566], abs=1e-4)


@pytest.mark.parametrize("wrong", [sorted, lambda drawn: drawn[::-1]], ids=["by id", "backwards"])
def test_another_order_is_seen(wrong: Any) -> None:
    law, _ = emitted(*SECOND, 2, lambda drawn: tuple(wrong(drawn)))
    assert (law - torch.tensor(SECOND[0], dtype=torch.float64)).abs().max() > 5e-3


def test_children_that_are_not_offered_leave_the_law_alone() -> None:
    """Two draws and places for three: the last place is empty, and the residual is that of the two."""
    p, q = ODD[0]
    tokens, valid = torch.tensor([[0, 0, 1, 2]]), torch.tensor([[True, True, True, False]])
    children = torch.tensor([[1, 2, 3], [0, 0, 0], [0, 0, 0], [0, 0, 0]])
    scores = [torch.tensor(law).log().expand(1, size, -1) for law, size in ((p, 4), (q, 1))]
    given = [tokens, valid, torch.zeros_like(valid), torch.full((1, 1, 3), 0.9999), children, torch.zeros(4).long()]
    end, law = recursive.accept(*scores, *given, widths=(3,))
    assert end.tolist() == [[0]] and law[0].tolist() == [0.0, 0.0, 1.0]
    nothing = recursive.accept(*scores, tokens, valid & False, *given[2:], widths=(3,))
    assert nothing[0].tolist() == [[0]] and nothing[1][0].tolist() == pytest.approx(p)


def test_a_given_token_has_a_law_of_its_own() -> None:
    """Accepted with its own probability p; refused, it leaves p without it."""
    p, q = SECOND
    scores = [torch.tensor(law).log().expand(1, size, -1) for law, size in ((p, 2), (q, 1))]
    tokens, valid = torch.tensor([[0, 3]]), torch.ones(1, 2, dtype=torch.bool)
    for coin, end in ((0.399, 1), (0.401, 0)):
        got, law = recursive.accept(
            *scores, tokens, valid, valid, torch.full((1, 1, 1), coin), torch.tensor([[1], [0]]), torch.zeros(2).long(),
            widths=(1,),
        )  # fmt: skip
        assert got.tolist() == [[end]]
    assert law[0].tolist() == pytest.approx([1 / 6, 2 / 6, 3 / 6, 0.0])


def test_two_levels_go_on_behind_the_accepted_child() -> None:
    """The second level compares with the row and the law of the child that was accepted, not of its sibling."""
    tree = DraftTree.from_widths((2, 1))
    p = torch.tensor([[[0.1, 0.9, 0.0], [0.3, 0.3, 0.4], [0.0, 0.2, 0.8], [0.5, 0.3, 0.2], [0.2, 0.2, 0.6]]]).log()
    q = torch.tensor([[[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]]).log()
    tokens = torch.tensor([[0, 0, 1, 0, 2]])
    valid = torch.ones(1, 5, dtype=torch.bool)
    children = torch.tensor([[1, 2], [3, 0], [4, 0], [0, 0], [0, 0]])
    coins = torch.tensor([[[0.5, 0.5], [0.5, 0.5]]])
    rows = torch.tensor([0, 1, 2, 0, 0])
    end, law = recursive.accept(p, q, tokens, valid, ~valid, coins, children, rows, widths=(2, 1))
    assert tree.parents == (0, 0, 0, 1, 2)
    assert end.tolist() == [[4]] and law[0].tolist() == pytest.approx([0.2, 0.2, 0.6])


@pytest.mark.parametrize("tree", TREES[1:2], ids=NAMES.get)
def test_sampled_children_follow_the_targets_law(tree: DraftTree) -> None:
    """20,000 texts against all 27 contexts, enumerated; a right program fails with probability below 1e-5."""
    found, session = law_texts(tree, "rejection", children="sampled")
    assert law_tail(found) > 1e-5
    best = law_texts(tree, "rejection")[1]
    rate, other = (s.stats["accepted"] / s.stats["offered"] for s in (session, best))
    assert other < rate < 1


def test_next_to_temperature_0_the_text_is_greedy() -> None:
    session = Session(law_models(), tree=TREES[1], rule="rejection", children="sampled", slots=LAW_SLOTS)
    assert session.start([LAW_TEXT], new=10, temperature=1e-5).run()[0] == oracle.greedy_text(
        law_models().target, LAW_TEXT, 10
    )
    assert session.stats["accepted"] > 0


def config(**changes: Any) -> CompileConfig:
    draft = DraftConfig(**{"children": "sampled", "tree": "2,1", **changes.pop("draft", {})})
    return CompileConfig(
        **{"target": "t", "drafter": "d", "output": "o", "acceptance": "rejection", **changes}, draft=draft
    )


def test_sampled_children_are_refused_where_they_mean_nothing() -> None:
    assert config().draft.children == "sampled"
    with pytest.raises(ConfigError, match="a matter of rejection; add --acceptance coupled,rejection"):
        config(acceptance="coupled")
    with pytest.raises(ConfigError, match="needs a tree, as --tree 3,2"):
        config(draft={"tree": None})
    with pytest.raises(ConfigError, match="would change the law of the text"):
        config(draft={"tree": "dynamic:8,3,3"})
    with pytest.raises(ConfigError, match="which medusa:x does not"):
        config(drafter="medusa:x")
    with pytest.raises(ConfigError, match="not one of best, sampled"):
        DraftConfig(children="all")
