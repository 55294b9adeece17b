"""Candidate table: what could be drafted, and what each draft promises."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from .console import new_table
from .manifest import EngineManifest
from .tree import DraftTree
from .tune import Candidate

SHOWN = 6  # of the chains, and of the trees


def candidate_table(title: str, found: Sequence[Candidate], best: Candidate) -> Table:
    """The best few of the chains and of the trees, the chosen one marked."""
    table = new_table(title, "draft", "rows", "levels", "tokens a step", "plain steps", "speed-up", "")
    for one in best_few(found):
        numbers = f"{one.tokens:.2f}", f"{one.cost:.2f}", f"{one.speedup:.2f}x"
        chosen = "chosen" if one is best else ""
        table.add_row(draft_name(one.tree), str(len(one.tree)), str(one.tree.depth), *numbers, chosen)
    return table


def best_few(found: Sequence[Candidate]) -> list[Candidate]:
    """Those of the table: chains first, each group by size."""
    chains = [candidate for candidate in found if candidate.tree.is_chain]
    trees = [candidate for candidate in found if not candidate.tree.is_chain]
    few = [sorted(group, key=lambda c: -c.speedup)[:SHOWN] for group in (chains, trees)]
    return [one for group in few for one in sorted(group, key=lambda c: len(c.tree))]


def main_draft(manifest: EngineManifest) -> str:
    """The name of what an engine drafts; of a dynamic tree the manifest's paths are an outline only."""
    tree, asked = DraftTree(manifest.tree_paths), manifest.config.get("draft", {}).get("tree")
    if isinstance(asked, str) and asked.startswith("dynamic"):
        return f"dynamic tree of {len(tree) - 1}, depth {tree.depth}"
    return draft_name(tree)


def draft_name(tree: DraftTree) -> str:
    """`chain of 3`, or `tree 3+2+1` with the nodes of each level."""
    if tree.is_chain:
        return f"chain of {tree.depth}"
    return f"tree {'+'.join(str(len(tree.level(depth))) for depth in range(1, tree.depth + 1))}"
