"""DraftTree: the shape of what is drafted in one step; a chain is the tree whose nodes have one child."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product

from .errors import ConfigError

BEST, SAMPLED = CHILDREN = ("best", "sampled")  # how siblings come about: the drafter's best tokens, or draws from it
MAX_DEPTH = 16
MAX_NODES = 128


@dataclass(frozen=True)
class DraftTree:
    """Nodes in breadth-first order; node 0 is the root (the last emitted token), which is not drafted.

    Attributes:
        paths: for each node, the child numbers that lead to it from the root; `paths[0] == ()`.
    """

    paths: tuple[tuple[int, ...], ...]

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> DraftTree:
        """A tree from any prefix-closed list of paths (the root is implied), as Medusa lists are written.

        Raises:
            ConfigError: a prefix is missing, a path is doubled, or the tree is too deep or too wide.
        """
        given = [tuple(path) for path in paths]
        known = {(), *given}
        if len(set(given)) != len(given):
            raise ConfigError(f"tree: a path stands twice in {given}; list each path once")
        for path in given:
            if not path or any(isinstance(c, bool) or not isinstance(c, int) or c < 0 for c in path):
                raise ConfigError(f"tree: path {path} is not a non-empty list of child numbers >= 0")
            if path[:-1] not in known:
                raise ConfigError(f"tree: path {path} lacks its prefix {path[:-1]}; add it")
            if path[-1] > 0 and (*path[:-1], path[-1] - 1) not in known:
                raise ConfigError(f"tree: path {path} lacks its elder sibling {(*path[:-1], path[-1] - 1)}; add it")
        tree = cls(tuple(sorted(known, key=lambda p: (len(p), p))))
        if tree.depth > MAX_DEPTH:
            raise ConfigError(f"tree: depth {tree.depth} is above {MAX_DEPTH}; shorten the paths")
        if len(tree) > MAX_NODES:
            raise ConfigError(f"tree: {len(tree)} nodes with the root are more than {MAX_NODES}; drop some paths")
        return tree

    @classmethod
    def from_widths(cls, widths: Sequence[int]) -> DraftTree:
        """Every node of level i gets `widths[i]` children: `(4, 2, 1)` has 4 + 8 + 8 drafted nodes."""
        if not all(isinstance(w, int) and w >= 1 for w in widths):
            raise ConfigError(f"tree: children per level must be whole numbers >= 1, not {list(widths)}")
        if len(widths) > MAX_DEPTH:
            raise ConfigError(f"tree: {len(widths)} levels are more than {MAX_DEPTH}; give fewer")
        total, level = 1, 1
        for width in widths:
            level *= width
            total += level
        if total > MAX_NODES:
            raise ConfigError(f"tree: {total} nodes with the root are more than {MAX_NODES}; use fewer children")
        levels = (product(*map(range, widths[: d + 1])) for d in range(len(widths)))
        return cls.from_paths(path for level in levels for path in level)

    @classmethod
    def chain(cls, length: int) -> DraftTree:
        """`length` drafted nodes, one after the other; 0 is the plain step."""
        return cls.from_paths([(0,) * (i + 1) for i in range(length)])

    def __len__(self) -> int:
        """Number of nodes N, the root included."""
        return len(self.paths)

    @cached_property
    def parents(self) -> tuple[int, ...]:
        """Index of each node's parent; the root is its own."""
        index = {path: i for i, path in enumerate(self.paths)}
        return tuple(index[path[:-1]] for path in self.paths)

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node; 0 for the root."""
        return tuple(len(path) for path in self.paths)

    def times(self, count: int) -> DraftTree:
        """`count` trees like this one under one root, for as many drafters: the first's children come first."""
        width = len(self.children(0))
        return DraftTree.from_paths(
            (path[0] + copy * width, *path[1:]) for copy in range(count) for path in self.paths[1:]
        )

    def share(self, place: int, count: int) -> tuple[DraftTree, tuple[int, ...]]:
        """What `times(count)` was made of: the tree of drafter `place`, and the nodes here that are its own."""
        width = len(self.children(0)) // count
        nodes = tuple(i for i, path in enumerate(self.paths) if not path or path[0] // width == place)
        paths = [self.paths[node] for node in nodes[1:]]
        return DraftTree(((), *((path[0] - place * width, *path[1:]) for path in paths))), nodes

    @property
    def depth(self) -> int:
        """Depth D of the tree: the most tokens that one step can accept."""
        return len(self.paths[-1])

    @property
    def is_chain(self) -> bool:
        """Whether no node has two children."""
        return len(self) == self.depth + 1

    def level(self, depth: int) -> range:
        """Indices of the nodes of one depth (they stand together)."""
        first = self.depths.index(depth)
        return range(first, first + self.depths.count(depth))

    def children(self, node: int) -> list[int]:
        """Indices of a node's children, in draw order."""
        return [i for i in range(1, len(self)) if self.parents[i] == node]

    @cached_property
    def ancestors(self) -> tuple[tuple[bool, ...], ...]:
        """`ancestors[i][j]`: j is i or an ancestor of i, so row i may attend to row j."""
        rows = [[False] * len(self) for _ in self.paths]
        for i in range(len(self)):
            rows[i] = list(rows[self.parents[i]]) if i else rows[i]
            rows[i][i] = True
        return tuple(map(tuple, rows))

    def draw(self) -> str:
        """The tree as text, one node a line: its index, and the child number behind a branch."""
        lines = ["0 root (last emitted token)"]

        def visit(node: int, indent: str) -> None:
            children = self.children(node)
            for child in children:
                last = child == children[-1]
                lines.append(f"{indent}{'└─' if last else '├─'} {child} (choice {self.paths[child][-1]})")
                visit(child, indent + ("   " if last else "│  "))

        visit(0, "")
        return "\n".join(lines)


DYNAMIC_NODES, DYNAMIC_DEPTH, DYNAMIC_TOP_K = 60, 8, 10  # as EAGLE-2 has them: total_token, depth + 1, top_k


@dataclass(frozen=True)
class DynamicTree(DraftTree):
    """A tree whose shape the drafter chooses in every step: the likeliest N - 1 of all candidates.

    `paths` is an outline that says how large and how deep it is: D nodes in a row, the others below the root.

    Attributes:
        top_k: children of each node that is grown, and nodes that are grown on each level.
    """

    top_k: int = 0

    @classmethod
    def of(cls, nodes: int, depth: int, top_k: int) -> DynamicTree:
        """A tree of `nodes` nodes with the root, at most `depth` levels deep.

        Raises:
            ConfigError: sizes out of range, or more nodes than there are candidates.
        """
        if not 1 <= depth <= MAX_DEPTH or not depth + 1 < nodes <= MAX_NODES or top_k < 2:
            raise ConfigError(
                f"tree: dynamic:{nodes},{depth},{top_k} needs 1..{MAX_DEPTH} levels, more drafted nodes than levels, "
                f"at most {MAX_NODES} nodes, and at least 2 children; try dynamic:8,4,4"
            )
        pool = top_k + (depth - 1) * top_k * top_k
        if nodes > pool + 1:
            raise ConfigError(
                f"tree: dynamic:{nodes},{depth},{top_k} has {pool} candidates for {nodes - 1} nodes; "
                f"use dynamic:{pool + 1},{depth},{top_k} or more children"
            )
        chain = [(0,) * (i + 1) for i in range(depth)]
        return cls(DraftTree.from_paths([*chain, *[(i,) for i in range(1, nodes - depth)]]).paths, top_k)

    @classmethod
    def parse(cls, text: str) -> DynamicTree:
        """`dynamic` or `dynamic:NODES,DEPTH,TOP_K`.

        Raises:
            ConfigError: it is neither.
        """
        name, _, sizes = text.partition(":")
        parts = sizes.split(",") if sizes else [str(n) for n in (DYNAMIC_NODES, DYNAMIC_DEPTH, DYNAMIC_TOP_K)]
        if name != "dynamic" or len(parts) != 3 or not all(part.isdigit() for part in parts):
            raise ConfigError(f"tree: {text!r} is not dynamic:NODES,DEPTH,TOP_K, as dynamic:60,8,10")
        return cls.of(*map(int, parts))

    def __str__(self) -> str:
        """As it is given: `dynamic:NODES,DEPTH,TOP_K`."""
        return f"dynamic:{len(self)},{self.depth},{self.top_k}"

    @property
    def is_chain(self) -> bool:
        """Never: its nodes may have several children."""
        return False
