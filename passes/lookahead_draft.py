"""Lookahead decoding, before the target: guesses out of a pool of n-grams, and a window of guessed trajectories."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import PassError
from ..program import Level, Program
from ..tree import DraftTree
from . import inputs
from .contract import Pass
from .forced import force
from .graph import emit
from .tree_mask import TreeMask, label

STEPS_KEPT = 64  # the pool holds the n-grams of that many steps


class LookaheadDraft(Pass):
    """Offer n-grams that begin with the root as G chains, and lay the window's rows beside them.

    The window holds, for W columns, the last N - 1 rounds of a Jacobi iteration: level l of column j guesses the token
    at `length + 1 + j + l`. Its rows go through the target with the draft; none can be accepted.

    Before: `tokens: i64[B, 1]`, `depths`, `ancestors`; a tree of G chains of N - 1.
    After:  `tokens: i64[B, 1 + G(N-1)]` and `valid`, the chains; `window: i64[B, N-1, W]`, moved to this root; `more`,
    its rows, `more_offsets` and `more_mask` for all rows, `more_read` for those whose logits are read.
    Source: lookahead decoding (Fu et al. 2024), its masks as in section 3; the text counts as part of the pool.
    """

    needs = (TreeMask,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DraftTree, window: int) -> None:
        self.tree, self.width = tree, window

    def requires(self, program: Program) -> None:
        chains = len(self.tree.children(0))
        if self.tree != DraftTree.from_widths((chains, *[1] * (self.tree.depth - 1))):
            raise PassError("lookahead drafts chains of one length that part at the root; give lookahead:W,N,G alone")

    def run(self, program: Program) -> int:
        if "valid" in program.values:
            return 0
        tree, levels, batch = self.tree, self.tree.depth, program.sizes.batch
        history, limit = inputs.history(program), inputs.vector(program, "draft_limit")
        length, made_for = (inputs.vector(program, n) for n in ("target_length", "window_at"))
        window = inputs.window(program, levels, self.width)
        window = emit(program, self, slide, window, made_for, history, length)
        pool = inputs.ngrams(program, STEPS_KEPT * self.width, levels + 1)
        text = [history, length, limit, inputs.bucket(program)]
        tokens, valid = emit(program, self, guess, pool, *text, guesses=len(tree.children(0)))
        forced, vocab = inputs.forced(program, len(tree)), program.models["target"].vocab_size
        depths = program.values["depths"]
        tokens, valid = emit(program, self, force, tokens, valid, forced, depths, limit, vocab=vocab)
        offsets, mask = window_rows(tree, self.width)
        last = len(tree) + (levels - 1) * self.width
        read = torch.tensor([*range(len(tree)), *range(last, last + self.width)])
        name = f"lookahead.{label(tree)}.{self.width}"
        program.give(
            tokens=tokens,
            valid=valid,
            window=window,
            more=emit(program, self, _flat, window),
            more_offsets=program.constant(f"{name}.offsets", offsets),
            more_mask=program.constant(f"{name}.mask", mask),
            more_read=program.constant(f"{name}.read.{batch}", read[None, :, None].repeat(batch, 1, 1)),
        )
        return 1


def slide(window: Tensor, made_for: Tensor, history: Tensor, length: Tensor) -> Tensor:
    """Move the window to the root at `length`; columns that it lacks get tokens from anywhere in the text.

    Args:
        window: `[B, N-1, W]` int64.
        made_for: `[B]` int64, the length that it was made for, 0 for none. A text that went back, or another one, gets
            a new window (or a useless one, which costs a few drafts and never changes the text).
        history: `[B, S]` int64; the text is `history[: length + 1]`.
        length: `[B]` int64.

    Returns:
        The window for this length.
    """
    batch, levels, width = window.shape
    column, level = (torch.arange(n, device=window.device) for n in (width, levels))
    gone = torch.where((made_for > 0) & (made_for <= length), length - made_for, width)
    source = (column + gone[:, None])[:, None].expand(-1, levels, -1)
    place = length[:, None, None] + 1 + column + level[:, None]  # mixed well enough: drafts need no more
    anywhere = (place * 7919 + level[:, None] * 104729) % (length[:, None, None] + 1)
    fill = history.gather(1, anywhere.reshape(batch, -1)).view(batch, levels, width)
    return torch.where(source < width, window.gather(2, source.clamp(max=width - 1)), fill)


def guess(
    pool: Tensor, history: Tensor, length: Tensor, draft_limit: Tensor, bucket: Tensor, *, guesses: int
) -> tuple[Tensor, Tensor]:
    """The latest different n-grams that begin with the root: those of the pool, then those of the text.

    Args:
        pool: `[B, P, N]` int64, ids plus 1, the latest last; zeros where there is none.
        history, length, draft_limit, bucket: as in `lookup_draft.lookup`.
        guesses: G.

    Returns:
        tokens `[B, 1 + G(N-1)]`, the root first, then level by level; valid likewise.
    """
    size = pool.shape[2]
    index = torch.arange(bucket.shape[0], device=history.device)
    root = history.gather(1, length[:, None])
    last = history.shape[1] - 1
    text = torch.stack([history.index_select(1, (index + k).clamp(max=last)) for k in range(size)], 2)
    known = torch.cat([text + 1, pool], 1)
    whole = torch.cat([index + size - 1 <= length[:, None], torch.ones_like(pool[:, :, 0], dtype=torch.bool)], 1)
    recency = torch.arange(known.shape[1], device=history.device) + 1
    score = torch.where(whole & (known[:, :, 0] == root + 1), recency, 0)
    chains, found = [], []
    for _ in range(guesses):
        best = score.argmax(1, keepdim=True)
        found.append(score.gather(1, best) > 0)
        chains.append(known.gather(1, best[:, :, None].expand(-1, -1, size)))
        score = torch.where((known == chains[-1]).long().sum(-1) == size, 0, score)
    levels = torch.cat(chains, 1)[:, :, 1:].mT - 1  # the oldest place is text: no id is below 0
    offered = torch.cat(found, 1)[:, None] & (
        torch.arange(size - 1, device=history.device)[:, None] < draft_limit[:, None, None]
    )
    true = torch.ones_like(root, dtype=torch.bool)
    return torch.cat([root, levels.flatten(1)], 1), torch.cat([true, offered.flatten(1)], 1)


def window_rows(tree: DraftTree, width: int) -> tuple[Tensor, Tensor]:
    """Depths `[1, R]` and mask `[1, R, R]` of the draft's rows and, level by level, the window's behind them.

    A row of level l and column j sees the root, level 0 up to column j, and its own column up to level l.
    """
    nodes, levels = len(tree), tree.depth
    places = [(level, column) for level in range(levels) for column in range(width)]
    offsets = [*tree.depths, *(1 + level + column for level, column in places)]
    mask = torch.zeros(len(offsets), len(offsets), dtype=torch.bool)
    mask[:nodes, :nodes] = torch.tensor(tree.ancestors)
    for row, (level, column) in enumerate(places):
        for seen, (above, beside) in enumerate(places):
            mask[nodes + row, nodes + seen] = beside <= column if above == 0 else above <= level and beside == column
    mask[nodes:, 0] = True
    return torch.tensor([offsets]), mask[None]


def _flat(window: Tensor) -> Tensor:
    return window.flatten(1)
