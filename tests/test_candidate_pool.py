"""The pool of a dynamic tree against the algorithm written plainly, node by node."""

from __future__ import annotations

import torch
from helpers.plain_tree import Path, grow
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.passes.candidate_pool import Pool, ancestors_of, best_of_last, best_tree, expand, first_level


def grown(law: dict[Path, list[tuple[float, int]]], nodes: int, depth: int, top_k: int) -> tuple[Tensor, ...]:
    """The same by the functions of the graph, twice side by side; frontier paths are looked up in `law`."""

    def children(paths: list[Path]) -> tuple[Tensor, Tensor]:
        scores = torch.tensor([[[s for s, _ in law[path]] for path in paths]] * 2)
        return scores, torch.tensor([[[token for _, token in law[path]] for path in paths]] * 2)

    pool, count, levels = first_level(*children([()])), top_k, [1] * top_k
    for level in range(2, depth + 1):
        frontier = best_of_last(pool, count, top_k)
        pool = expand(pool, frontier, *children([path_of(pool, int(place)) for place in frontier[0]]))
        count = top_k * top_k
        levels += [level] * count
    return best_tree(pool, torch.tensor([levels]), nodes=nodes)


def path_of(pool: Pool, place: int) -> Path:
    above = int(pool.parents[0, place])
    return (*(path_of(pool, above) if above >= 0 else ()), int(pool.tokens[0, place]))


class Law(dict[Path, list[tuple[float, int]]]):
    """Random children of every path, made when they are asked for."""

    def __init__(self, seed: int, top_k: int, step: float) -> None:
        super().__init__()
        self.generator, self.top_k, self.step = torch.Generator().manual_seed(seed), top_k, step

    def __missing__(self, path: Path) -> list[tuple[float, int]]:
        scores = torch.log_softmax(3 * torch.randn(16, generator=self.generator), -1)
        scores = (scores / self.step).ceil() * self.step if self.step else scores
        best = scores.sort(descending=True, stable=True)
        self[path] = list(zip(best.values[: self.top_k].tolist(), best.indices[: self.top_k].tolist(), strict=True))
        return self[path]


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(2, 5), st.data())
def test_the_tree_is_that_of_the_plain_algorithm(seed: int, depth: int, top_k: int, data: st.DataObject) -> None:
    nodes = data.draw(st.integers(2, top_k + (depth - 1) * top_k**2 + 1))
    law = Law(seed, top_k, 0.0)
    wanted = grow(law, nodes, depth, top_k)
    _, tokens, parents, depths = grown(law, nodes, depth, top_k)
    paths: list[Path] = [()]
    for token, parent in zip(tokens[1].tolist(), parents[1, 1:].tolist(), strict=True):
        paths.append((*paths[parent], token))  # fails where a parent stands behind its child
    assert paths[1:] == [path for path, _ in wanted]
    assert depths[0].tolist() == [len(path) for path in paths]
    seen = ancestors_of(parents, depth=depth)[0]
    assert seen.tolist() == [[path[: len(other)] == other for other in paths] for path in paths]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 15))
def test_no_parent_is_lost_among_equal_scores(seed: int, nodes: int) -> None:
    """Rounded scores: a child of probability 1 has its parent's score, and many paths are equal."""
    law = Law(seed, 3, 1.0)
    _, tokens, parents, depths = grown(law, nodes, 3, 3)
    assert tokens.shape == (2, nodes - 1)
    for node in range(1, nodes):
        parent = int(parents[0, node])
        assert parent < node
        assert int(depths[0, node]) == int(depths[0, parent]) + 1
