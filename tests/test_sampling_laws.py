"""Sampled texts follow the target's own law, end to end: all texts of three tokens, enumerated and counted."""

from __future__ import annotations

import pytest
from helpers.exact import CHAINS, LAW_ROUNDS, LAW_ROWS, LAW_TEXT, NAMES, TREES, greedy, law_tail, law_texts

from specc.tree import DraftTree, DynamicTree

CHAINS_APART = DraftTree.from_widths((3, 1))


@pytest.mark.parametrize(
    "rule, tree, drafter",
    [
        ("coupled", CHAINS[1], "model"),
        ("coupled", TREES[1], "model"),
        ("coupled", CHAINS[1], "ngram"),
        ("rejection", CHAINS[1], "model"),
        ("rejection", TREES[1], "model"),
        ("rejection", TREES[1], "ngram"),
        ("coupled", CHAINS_APART, "lookahead:2,3,3"),
        ("rejection", CHAINS_APART, "lookahead:2,3,3"),
    ],
    ids=lambda v: NAMES.get(v, v),
)
def test_sampled_law(rule: str, tree: DraftTree, drafter: str) -> None:
    """20,000 texts against all 27 contexts, enumerated; a right program fails with probability below 1e-5."""
    found, session = law_texts(tree, rule, drafter=drafter)
    assert len(found) == LAW_ROWS * LAW_ROUNDS
    assert law_tail(found) > 1e-5
    assert drafter != "model" or 0.2 < session.stats["accepted"] / session.stats["offered"] < 1


@pytest.mark.parametrize(
    "rule, tree, kind",
    [
        ("rejection", CHAINS[1], "eagle"),
        ("rejection", DynamicTree.of(6, 2, 3), "eagle3-pruned"),
        ("coupled", DynamicTree.of(6, 2, 3), "eagle3-pruned"),
        ("rejection", TREES[1], "medusa"),
    ],
    ids=lambda v: NAMES.get(v, str(v)),
)
def test_sampled_law_of_drafters_that_read_features(rule: str, tree: DraftTree, kind: str) -> None:
    """Nothing is drafted behind the one token of the prompt, and something behind those that follow."""
    found, session = law_texts(tree, rule, kind, drafter="medusa:x" if kind == "medusa" else "model")
    assert law_tail(found, kind) > 1e-5
    assert 1000 < session.stats["accepted"] < session.stats["offered"]  # random weights are seldom right


def test_greedy_under_a_law_test_is_refused() -> None:
    found = [tuple(greedy(tuple(LAW_TEXT), 3))] * 1000
    assert law_tail(found) == 0.0
