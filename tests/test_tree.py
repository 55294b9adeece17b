"""DraftTree: order, parents, depths, ancestors, and what is refused."""

from __future__ import annotations

import pytest
from helpers import oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.config import DraftConfig
from specc.errors import ConfigError
from specc.tree import MAX_DEPTH, MAX_NODES, DraftTree


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, ...]]:
    """Prefix-closed lists of paths: each new node is the next child of a node that is there."""
    paths: list[tuple[int, ...]] = [()]
    for _ in range(draw(st.integers(1, 30))):
        parent = draw(st.sampled_from([p for p in paths if len(p) < MAX_DEPTH]))
        paths.append((*parent, sum(p[:-1] == parent for p in paths if p)))
    return draw(st.permutations(paths[1:]))


@settings(max_examples=60, deadline=None)
@given(paths=trees())
def test_any_prefix_closed_list(paths: list[tuple[int, ...]]) -> None:
    tree = DraftTree.from_paths(paths)
    assert sorted(tree.paths[1:]) == sorted(paths) and tree.paths[0] == ()
    assert tree == DraftTree.from_paths(reversed(paths)) and hash(tree) == hash(DraftTree.from_paths(paths))
    parents, depths, ancestors = oracle.tree_tables(tree.paths)
    assert list(tree.parents) == parents and list(tree.depths) == depths
    assert [list(row) for row in tree.ancestors] == ancestors
    assert all(parent < node for node, parent in enumerate(parents) if node)
    assert depths == sorted(depths)
    assert tree.depth == max(depths)
    assert tree.is_chain == all(len(tree.children(node)) <= 1 for node in range(len(tree)))
    for depth in range(tree.depth + 1):
        assert [depths[node] for node in tree.level(depth)] == [depth] * depths.count(depth)
    for node in range(len(tree)):
        assert [tree.paths[child][-1] for child in tree.children(node)] == list(range(len(tree.children(node))))
    assert len(tree.draw().splitlines()) == len(tree)


@settings(max_examples=60, deadline=None)
@given(paths=trees(), data=st.data())
def test_missing_prefix_or_sibling_is_named(paths: list[tuple[int, ...]], data: st.DataObject) -> None:
    parents = [p for p in paths if any(other[:-1] == p or other[:-1] == p[:-1] and other > p for other in paths)]
    if not parents:
        return
    out = data.draw(st.sampled_from(parents))
    with pytest.raises(ConfigError, match="lacks its (prefix|elder sibling)"):
        DraftTree.from_paths([p for p in paths if p != out])


@pytest.mark.parametrize("length", [0, 1, 5, MAX_DEPTH])
def test_chain(length: int) -> None:
    tree = DraftTree.chain(length)
    assert tree.is_chain and tree.depth == length and len(tree) == length + 1
    assert tree.parents == (0, *range(length))
    assert all(tree.ancestors[i][j] == (j <= i) for i in range(len(tree)) for j in range(len(tree)))


def test_widths() -> None:
    tree = DraftTree.from_widths((4, 2, 1))
    assert len(tree) == 1 + 4 + 8 + 8 and tree.depth == 3 and not tree.is_chain
    assert tree.parents == (0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, *range(5, 13))
    assert DraftTree.from_widths((1, 1)) == DraftTree.chain(2)


def test_siblings_do_not_see_each_other() -> None:
    tree = DraftTree.from_widths((2, 2))
    assert not tree.ancestors[1][2] and not tree.ancestors[2][1]
    assert not tree.ancestors[5][1] and tree.ancestors[5][2] and tree.ancestors[5][0]


def test_draw() -> None:
    assert DraftTree.from_widths((2, 1)).draw().splitlines() == [
        "0 root (last emitted token)",
        "├─ 1 (choice 0)",
        "│  └─ 3 (choice 0)",
        "└─ 2 (choice 1)",
        "   └─ 4 (choice 0)",
    ]


@pytest.mark.parametrize(
    "paths, message",
    [
        ([(0,), (0,)], "a path stands twice"),
        ([()], "not a non-empty list"),
        ([(0,), (-1,)], "child numbers >= 0"),
        ([(True,)], "child numbers >= 0"),
        ([(0,), (1, 0)], r"lacks its prefix \(1,\); add it"),
        ([(0,), (2,)], r"lacks its elder sibling \(1,\); add it"),
        ([(0,) * (i + 1) for i in range(MAX_DEPTH + 1)], f"depth {MAX_DEPTH + 1} is above {MAX_DEPTH}"),
        ([(i,) for i in range(MAX_NODES)], f"{MAX_NODES + 1} nodes with the root are more than {MAX_NODES}"),
    ],
)
def test_refused_paths(paths: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DraftTree.from_paths(paths)


@pytest.mark.parametrize(
    "widths, message",
    [
        ((2, 0), "children per level must be whole numbers >= 1"),
        ((1,) * (MAX_DEPTH + 1), f"{MAX_DEPTH + 1} levels are more than {MAX_DEPTH}"),
        ((100, 100, 100, 100), "nodes with the root are more than"),
    ],
)
def test_refused_widths(widths: tuple[int, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DraftTree.from_widths(widths)


def test_config_texts() -> None:
    assert DraftConfig(tree="4,2,1").shape() == DraftTree.from_widths((4, 2, 1))
    assert DraftConfig(tree="[[0], [1], [0, 0]]").shape() == DraftTree.from_paths([(0,), (1,), (0, 0)])
    assert DraftConfig(draft_length=5).shape() == DraftTree.chain(5)
    with pytest.raises(ConfigError, match="neither children per level"):
        DraftConfig(tree="4;2")
