"""The dynamic tree of EAGLE-2, written plainly, node by node."""

from __future__ import annotations

from collections.abc import Mapping

Path = tuple[int, ...]


def grow(law: Mapping[Path, list[tuple[float, int]]], nodes: int, depth: int, top_k: int) -> list[tuple[Path, float]]:
    """Paths of tokens that are kept, parents first: EAGLE-2 as its paper describes it.

    `law` gives every path's best children, best first.
    """
    pool: list[tuple[Path, float]] = [((token,), score) for score, token in law[()]]
    frontier = list(pool)
    for _ in range(depth - 1):
        added = [((*path, token), total + score) for path, total in frontier for score, token in law[path]]
        pool += added
        frontier = sorted(added, key=lambda entry: -entry[1])[:top_k]
    kept = sorted(range(len(pool)), key=lambda place: (-pool[place][1], place))[: nodes - 1]
    return [pool[place] for place in sorted(kept)]
