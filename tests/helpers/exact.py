"""The texts and the law that speculation must reproduce, and the trees on which it is tried."""

from __future__ import annotations

import functools
from typing import Any

import torch
from helpers import oracle
from helpers.decoding import PLAIN, Pair, Session, pair, prompt
from helpers.features import feature_pair

from specc.tree import DraftTree

ODD = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (2, 0), (2, 1), (2, 1, 0), (2, 1, 1), (2, 1, 0, 0)])
CHAINS = [DraftTree.chain(k) for k in range(1, 6)]
TREES = [DraftTree.from_widths((4, 2, 1)), DraftTree.from_widths((2, 2)), ODD]
NAMES = {tree: f"chain{tree.depth}" if tree.is_chain else f"tree{len(tree)}" for tree in [PLAIN, *CHAINS, *TREES]}
SAMPLING = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}
LAST = 24  # the plain text of a test; prompts are shorter than two chunks
K3 = CHAINS[2]

LAW_ROWS, LAW_ROUNDS, LAW_SLOTS = 5000, 4, 32
LAW_TEXT = [5]
LAW = {"temperature": 1.3, "top_k": 3, "top_p": 1.0}


@functools.cache
def greedy(text: tuple[int, ...], new: int, kind: str = "near") -> tuple[int, ...]:
    """What the target alone writes behind `text`."""
    return tuple(oracle.greedy_text(pair(kind).target, text, new))


@functools.cache
def coupled_reference(seed: int = 5) -> tuple[int, ...]:
    """What plain sampling with this seed writes behind the test's prompt."""
    return tuple(oracle.sampled_text(pair().target, prompt(), LAST, seed, **SAMPLING))


def law_models(kind: str = "") -> Pair:
    """A pair over 16 tokens, so that every text of three can be enumerated; `kind` as `feature_pair` has it."""
    return feature_pair(kind, 16) if kind else pair("near", vocab=16)


@functools.cache
def exact_law(kind: str = "") -> dict[tuple[int, ...], float]:
    """Probability of each text of three tokens under the target alone."""
    law = oracle.text_law(law_models(kind).target, LAW_TEXT, 3, **LAW)
    assert len(law) == 27
    return law


def law_texts(tree: DraftTree, rule: str, kind: str = "", **options: Any) -> tuple[list[tuple[int, ...]], Session]:
    """20,000 texts of three tokens; every row has a seed of its own. `options` are those of `Session`."""
    session = Session(law_models(kind), tree=tree, rule=rule, batch=LAW_ROWS, slots=LAW_SLOTS, **options)
    found: list[tuple[int, ...]] = []
    for number in range(LAW_ROUNDS):
        seeds = range(number * LAW_ROWS, (number + 1) * LAW_ROWS)
        found += map(tuple, session.start([LAW_TEXT], new=3, seeds=list(seeds), **LAW).run())
    return found, session


def law_tail(found: list[tuple[int, ...]], kind: str = "") -> float:
    """Probability that a right program gives counts as far from the enumerated law as these; 0 for impossible texts."""
    law = exact_law(kind)
    counts = dict.fromkeys(law, 0)
    for text in found:
        if text not in counts:
            return 0.0
        counts[text] += 1
    return oracle.chi_square_tail(torch.tensor(list(counts.values())), torch.tensor(list(law.values())))
