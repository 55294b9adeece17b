"""Logits processors that come before temperature: bias, penalties, and no end of text before its time.

Each is per row and per tree node: a node sees the text so far and the drafted tokens of its own path, never a
sibling's. Order and formulas are transformers' (`RepetitionPenaltyLogitsProcessor`,
`MinNewTokensLengthLogitsProcessor`); presence and frequency penalty are the OpenAI API's. Neutral values leave every
bit of the logits as it is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Counts(NamedTuple):
    """What penalties need to know of the text so far.

    Attributes:
        in_text, generated: `[B, V]` float32, as `count_tokens` gives them.
        ends: `[B, V]` bool, as `mark_ends` gives them.
    """

    in_text: Tensor
    generated: Tensor
    ends: Tensor


class Paths(NamedTuple):
    """The drafted tokens before each of T nodes.

    Attributes:
        tokens: `[B, P]` int64, drafted tokens (the root, which the counts hold, may be among them).
        on_path: `[1, T, P]` float32, 1 where a drafted token is on a node's path (0 for the root); `[B, T, P]` where
            each row has a tree of its own.
        depths: `[1, T]` int64, or `[B, T]`.
    """

    tokens: Tensor
    on_path: Tensor
    depths: Tensor


class Penalties(NamedTuple):
    """What a row's request asks for.

    Attributes:
        bias: `[B, V]` float32; -inf bans.
        repetition: `[B]` float32 above 0; 1 is neutral. Of all the text, the prompt included.
        presence, frequency: `[B]` float32; 0 is neutral. Of the generated part.
        min_length: `[B]` int64, no end of text before the text holds so many tokens.
    """

    bias: Tensor
    repetition: Tensor
    presence: Tensor
    frequency: Tensor
    min_length: Tensor


def count_tokens(
    history: Tensor, length: Tensor, prompt_length: Tensor, bucket: Tensor, *, vocab: int
) -> tuple[Tensor, Tensor]:
    """How often each token occurs in the text, and in its generated part.

    Args:
        history: `[B, S]` int64 ids below `vocab`.
        length: `[B]` int64; the text is `history[: length + 1]`.
        prompt_length: `[B]` int64; from there on the text was generated.
        bucket: `[n]`, n at least every length: only that much of the history is read.
        vocab: V.

    Returns:
        Two `[B, V]` float32.
    """
    slots = bucket.shape[0]
    index = torch.arange(slots, device=history.device)
    text, root = history[:, :slots], history.gather(1, length[:, None])
    inside = (index < length[:, None]).float()  # the root may lie behind the bucket and is counted apart
    generated = inside * (index >= prompt_length[:, None]).float()
    rooted = torch.ones_like(root, dtype=torch.float32)
    root_generated = (length >= prompt_length).float()[:, None]
    zero = torch.zeros(history.shape[0], vocab, device=history.device)
    in_text = zero.scatter_add(1, text, inside).scatter_add(1, root, rooted)
    return in_text, zero.scatter_add(1, text, generated).scatter_add(1, root, root_generated)


def mark_ends(eos: Tensor, *, vocab: int) -> Tensor:
    """`[B, V]` bool, the ids of `eos` (`[B, 8]` int64, padded by -1)."""
    marks = torch.zeros(eos.shape[0], vocab + 1, dtype=torch.bool, device=eos.device)
    return marks.scatter(1, torch.where(eos < 0, vocab, eos), torch.ones_like(eos, dtype=torch.bool))[:, :vocab]


def penalize(logits: Tensor, length: Tensor, counts: Counts, paths: Paths, asked: Penalties) -> Tensor:
    """Logit bias, then repetition, presence and frequency penalty, then the ban on ends below the least length.

    Args:
        logits: `[B, T, V]` float32, of the token after each of T nodes.
        length: `[B]` int64, L_t: the text behind a node of depth d holds `L_t + 1 + d` tokens.

    Returns:
        `[B, T, V]` float32.
    """
    batch, nodes, _ = logits.shape
    index = paths.tokens[:, None, :].expand(-1, nodes, -1)
    drafted = torch.zeros_like(logits).scatter_add(2, index, paths.on_path.expand(batch, -1, -1).contiguous())
    scores = logits + asked.bias[:, None]
    factor = asked.repetition[:, None, None]
    seen = (counts.in_text[:, None] + drafted) > 0
    scores = torch.where(seen, torch.where(scores < 0, scores * factor, scores / factor), scores)
    count = counts.generated[:, None] + drafted
    presence = asked.presence[:, None, None] * (count > 0).float()
    scores = scores - asked.frequency[:, None, None] * count - presence
    early = (length + 1)[:, None] + paths.depths < asked.min_length[:, None]
    return torch.where(early[:, :, None] & counts.ends[:, None], float("-inf"), scores)
