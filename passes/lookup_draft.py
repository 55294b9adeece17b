"""n-gram lookup: the text so far is the drafter."""

from __future__ import annotations

import torch
from torch import Tensor

from ..drafter import LONGEST
from ..errors import PassError
from ..program import Level, Program
from ..tree import DraftTree
from . import inputs
from .contract import Pass
from .graph import emit
from .tree_mask import TreeMask


class LookupDraft(Pass):
    """Draft what followed the latest occurrence of the longest suffix (`longest` to 1 tokens) of the text.

    Before: `tokens: i64[B, 1]`, `depths`.
    After:  `tokens: i64[B, K+1]`, `valid: b8[B, K+1]`: nothing is offered where no suffix occurs before. A match that
    overlaps the end is continued with its own period. Source: prompt lookup decoding (Saxena 2023).
    """

    needs = (TreeMask,)
    reads = leaves = Level.CAPTURED
    preserves_outputs = False

    def __init__(self, *, tree: DraftTree, longest: int = LONGEST) -> None:
        self.tree, self.longest = tree, longest

    def requires(self, program: Program) -> None:
        if not self.tree.is_chain:
            raise PassError("n-gram lookup drafts one continuation: give --draft-length K instead of --tree")

    def run(self, program: Program) -> int:
        if "valid" in program.values:
            return 0
        history, length = inputs.history(program), inputs.vector(program, "target_length")
        limit, vocab = inputs.vector(program, "draft_limit"), program.models["target"].vocab_size
        sizes = {"drafts": self.tree.depth, "longest": self.longest}
        tokens, valid = emit(program, self, lookup, history, length, limit, inputs.bucket(program), **sizes)
        tokens, valid = emit(
            program, self, _force, tokens, valid, inputs.forced(program, len(self.tree)), limit, vocab=vocab
        )
        program.give(tokens=tokens, valid=valid)
        return 1


def lookup(
    history: Tensor, length: Tensor, draft_limit: Tensor, bucket: Tensor, *, drafts: int, longest: int = LONGEST
) -> tuple[Tensor, Tensor]:
    """Find the continuation.

    Args:
        history: `[B, S]` int64.
        length: `[B]` int64; the text is `history[: length + 1]`.
        draft_limit: `[B]` int64, tokens to offer.
        bucket: `[n]`, n at least every length: only that much of the history is searched.
        drafts: K.
        longest: tokens of the longest suffix.

    Returns:
        tokens `[B, K+1]` (the root first) and valid `[B, K+1]` bool.
    """
    slots = bucket.shape[0]
    index = torch.arange(slots, device=history.device)
    text = history[:, :slots]
    matched = (index < length[:, None]).long()  # an occurrence ends before the last token
    size = torch.zeros_like(matched)
    for back in range(longest):
        wanted = history.gather(1, (length - back).clamp(min=0)[:, None])
        inside = (index >= back) & (length[:, None] >= back)
        behind = text.index_select(1, (index - back).clamp(min=0))  # not `pad`: tracing it fixes n
        matched = matched * (inside & (behind == wanted)).long()
        size = size + matched
    best = (size * slots + index).argmax(1, keepdim=True)  # longest first, then latest
    found = size.gather(1, best) > 0
    step = torch.arange(drafts, device=history.device)
    period = (length[:, None] - best).clamp(min=1)
    tokens = history.gather(1, best + 1 + step % period)
    offered = found & (step < draft_limit[:, None])
    root = history.gather(1, length[:, None])
    return torch.cat([root, tokens], 1), torch.cat([torch.ones_like(found), offered], 1)


def _force(tokens: Tensor, valid: Tensor, forced: Tensor, draft_limit: Tensor, *, vocab: int) -> tuple[Tensor, Tensor]:
    """Forced drafts are offered whether the lookup found anything or not; ids of padded rows never are."""
    level = torch.arange(tokens.shape[1], device=tokens.device)
    wanted = forced[:, : tokens.shape[1]]
    given = (wanted >= 0) & (level > 0) & (level <= draft_limit[:, None])
    return torch.where(given, wanted.clamp(max=vocab - 1), tokens), (valid | given) & (wanted < vocab)
