"""n-gram lookup: the text so far is the drafter."""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafter import LONGEST
from ..program import Level, Program
from ..tree import DraftTree
from . import inputs
from .contract import Pass
from .forced import force
from .graph import emit
from .tree_mask import TreeMask


class LookupDraft(Pass):
    """Draft what followed earlier occurrences of the longest suffix (`longest` to 1 tokens) of the text.

    Before: `tokens: i64[B, 1]`, `depths`.
    After:  `tokens: i64[B, N]`, `valid: b8[B, N]`: nothing is offered where no suffix occurs before. A match that
    overlaps the end is continued with its own period. A chain holds the latest of the longest matches; the children of
    a node are the different tokens that follow it in the best matches. With a pool the latest tokens of texts that have
    ended (`shared: i64[B, P]`) are searched too, as if they stood before this one.
    Source: prompt lookup decoding (Saxena 2023).
    """

    needs = (TreeMask,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DraftTree, longest: int = LONGEST, pool: int = 0) -> None:
        self.tree, self.longest, self.pool = tree, longest, pool

    def run(self, program: Program) -> int:
        if "valid" in program.values:
            return 0
        history, length = inputs.history(program), inputs.vector(program, "target_length")
        limit, vocab = inputs.vector(program, "draft_limit"), program.models["target"].vocab_size
        text = [history, length, limit, inputs.bucket(program)]
        text += [inputs.shared(program, self.pool)] if self.pool else []
        tokens, valid = emit(program, self, lookup, *text, parents=self.tree.parents, longest=self.longest)
        forced, depths = inputs.forced(program, len(self.tree)), program.values["depths"]
        tokens, valid = emit(program, self, force, tokens, valid, forced, depths, limit, vocab=vocab)
        program.give(tokens=tokens, valid=valid)
        return 1


def lookup(
    history: Tensor,
    length: Tensor,
    draft_limit: Tensor,
    bucket: Tensor,
    shared: Tensor | None = None,
    *,
    parents: tuple[int, ...],
    longest: int = LONGEST,
    least: int = 1,
) -> tuple[Tensor, Tensor]:
    """Find the continuations.

    Args:
        history: `[B, S]` int64.
        length: `[B]` int64; the text is `history[: length + 1]`.
        draft_limit: `[B]` int64, levels to offer.
        bucket: `[n]`, n at least every length: only that much of the history is searched.
        shared: `[B, P]` int64, ids plus 1 of other texts, a 0 behind each.
        parents: of the tree's N nodes, in its order.
        longest: tokens of the longest suffix.
        least: tokens of the shortest.

    Returns:
        tokens `[B, N]` (the root first) and valid `[B, N]` bool.
    """
    first = 0
    if shared is not None:
        first = shared.shape[1]
        history, length = torch.cat([shared - 1, history], 1), length + first
    index = torch.arange(bucket.shape[0] + first, device=history.device)
    root = history.gather(1, length[:, None])
    tokens, found = [root], [torch.ones_like(root, dtype=torch.bool)]
    # For each node: the match that it continues, and the matches (by rank) that go through it, or past it.
    ends, through, past = [root], [rank(history, length, index, longest, first, least)], [torch.zeros_like(root)]
    depths, youngest = [0], dict[int, int]()
    for node, parent in list(enumerate(parents))[1:]:
        depths.append(depths[parent] + 1)
        elder = youngest.get(parent)
        youngest[parent] = node
        left = through[parent] if elder is None else past[elder]
        follows = _next(history, length, index.expand(len(history), -1), depths[node])
        if elder is None and parent and shared is None:  # the best match through the parent is the parent's own
            end, some = ends[parent], found[parent]
        else:
            left = torch.where(follows >= 0, left, 0)  # a text of the pool ends here
            end = left.argmax(1, keepdim=True)
            some = left.gather(1, end) > 0
        token = _next(history, length, end, depths[node])
        through.append(torch.where(follows == token, left, 0))  # dropped as dead code where no node branches
        past.append(torch.where(follows == token, 0, left))
        tokens.append(token.clamp(min=0))
        ends.append(end)
        found.append(some)
    offered = [some & (depth <= draft_limit[:, None]) for some, depth in zip(found, depths, strict=True)]
    return torch.cat(tokens, 1), torch.cat(offered, 1)


def rank(history: Tensor, length: Tensor, index: Tensor, longest: int, first: int = 0, least: int = 1) -> Tensor:
    """How good a match ends at each place: `[B, n]` int64, the longest first, then the latest; 0 is none.

    The text begins at `first`; its suffix does not reach further back.
    """
    slots = index.shape[0]
    text = history[:, :slots]
    matched = (index < length[:, None]).long()  # an occurrence ends before the last token
    size = torch.zeros_like(matched)
    for back in range(longest):
        wanted = history.gather(1, (length - back).clamp(min=0)[:, None])
        inside = (index >= back) & (length[:, None] - back >= first)
        behind = text.index_select(1, (index - back).clamp(min=0))  # not `pad`: tracing it fixes n
        matched = matched * (inside & (behind == wanted)).long()
        size = size + matched
    return torch.where(size >= least, size * slots + index, 0)


def _next(history: Tensor, length: Tensor, end: Tensor, depth: int) -> Tensor:
    """The token `depth` places behind each `end`, going round where that is behind the text."""
    period = (length[:, None] - end).clamp(min=1)
    return history.gather(1, end + 1 + (depth - 1) % period)
