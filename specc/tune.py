"""Tune: the tree that promises most tokens per second, from the drafter's acceptance and the price of a pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from .tree import MAX_DEPTH, DraftTree

MOST_NODES = 16  # rows of one pass, the root's included: beyond, a pass costs more than its rows gain


class Candidate(NamedTuple):
    """A tree, and what it promises.

    Attributes:
        tokens: that a step emits.
        cost: of a step, in plain steps.
    """

    tree: DraftTree
    tokens: float
    cost: float

    @property
    def speedup(self) -> float:
        """Over plain decoding."""
        return self.tokens / self.cost


class BestTrees:
    """The trees that emit most tokens, for every number of nodes and every depth.

    `T[m][l][b]` are the tokens of the best tree of m nodes (the root's own token is one of them), at most l levels
    below its root, which has b children: `T[1][l][0] = 1`, and a last child with its m - y nodes is added to y others,
    `T[m][l][b] = max over y of T[y][l][b-1] + P[b] * max over b' of T[m-y][l-1][b']`.
    Source: Sequoia (Chen et al. 2024), section 3.1: the acceptance of a child is that of its rank, whatever its parent.
    """

    def __init__(self, acceptance: Sequence[float], nodes: int, depth: int) -> None:
        """For trees of up to `nodes` nodes and `depth` levels; `acceptance[i]` is P of the child of rank i."""
        self._table: dict[tuple[int, int, int], tuple[float, int]] = {}  # tokens, and y of the last child
        self._best: dict[tuple[int, int], int] = {}  # b
        for levels in range(depth + 1):
            self._table[1, levels, 0], self._best[1, levels] = (1.0, 0), 0
            for m in range(2, nodes + 1 if levels else 0):
                for b in range(1, min(m - 1, len(acceptance)) + 1):
                    splits = [
                        (self._table[y, levels, b - 1][0] + acceptance[b - 1] * self.tokens(m - y, levels - 1), y)
                        for y in range(1, m)
                        if (y, levels, b - 1) in self._table and (m - y, levels - 1) in self._best
                    ]
                    if splits:
                        self._table[m, levels, b] = max(splits)
                known = [b for b in range(1, m) if (m, levels, b) in self._table]
                if known:
                    self._best[m, levels] = max(known, key=lambda b, m=m, n=levels: self._table[m, n, b][0])  # type: ignore[misc]

    def __contains__(self, size: tuple[int, int]) -> bool:
        """Whether there is a tree of so many nodes and at most so many levels."""
        return size in self._best

    def tokens(self, nodes: int, depth: int) -> float:
        """Tokens that the best tree of this size emits."""
        return self._table[nodes, depth, self._best[nodes, depth]][0]

    def tree(self, nodes: int, depth: int) -> DraftTree:
        """That tree."""
        return DraftTree.from_paths(self._paths(nodes, depth, ()))

    def _paths(self, nodes: int, depth: int, above: tuple[int, ...]) -> list[tuple[int, ...]]:
        paths: list[tuple[int, ...]] = []
        for child in range(self._best[nodes, depth] - 1, -1, -1):
            others = self._table[nodes, depth, child + 1][1]
            paths += [(*above, child), *self._paths(nodes - others, depth - 1, (*above, child))]
            nodes = others
        return paths


def expected_tokens(tree: DraftTree, acceptance: Sequence[float]) -> float:
    """Tokens that a step of this tree emits: every node counts with the acceptance of the path to it."""
    total = 0.0
    for path in tree.paths:
        share = 1.0
        for child in path:
            share *= acceptance[child] if child < len(acceptance) else 0.0
        total += share
    return total


def candidates(
    acceptance: Sequence[float],
    draft: float,
    verify: Callable[[int], float],
    nodes: int = MOST_NODES,
    depth: int = MAX_DEPTH,
) -> list[Candidate]:
    """Every chain, and the best tree of every number of nodes (at the depth that serves it best).

    Args:
        acceptance: `P`, by rank.
        draft: one level of the drafter, in plain steps.
        verify: a pass of the target over so many rows, in plain steps.
        nodes: the most rows of a pass.
        depth: the most levels.
    """
    depth = min(depth, nodes - 1)
    best = BestTrees(acceptance, nodes, depth)
    found = [chain_of(k, expected_tokens(DraftTree.chain(k), acceptance), draft, verify) for k in range(1, depth + 1)]
    for m in range(3, nodes + 1):
        sizes = [(best.tokens(m, n) / (n * draft + verify(m)), -n) for n in range(1, depth + 1) if (m, n) in best]
        levels = -max(sizes)[1]
        tree = best.tree(m, levels)
        if not tree.is_chain:
            found.append(Candidate(tree, best.tokens(m, levels), tree.depth * draft + verify(m)))
    return found


def chain_of(length: int, tokens: float, draft: float, verify: Callable[[int], float]) -> Candidate:
    """A chain that emits so many tokens a step."""
    return Candidate(DraftTree.chain(length), tokens, length * draft + verify(length + 1))


def best_of(found: Sequence[Candidate]) -> Candidate:
    """The one that promises most; of equals the first, and chains stand first."""
    return max(found, key=lambda candidate: candidate.speedup)
