"""Child acceptance: how often the drafter's first, second, ... choice is the target's, on the target's own texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .drafter import LONGEST
from .passes.lookup_draft import lookup
from .tree import DraftTree

if TYPE_CHECKING:
    from .capture import LoadedModel


class Sample(NamedTuple):
    """A prompt, and what the target writes behind it."""

    prompt: list[int]
    text: list[int]


def own_texts(
    target: LoadedModel, prompts: Sequence[list[int]], tokens: int, advance: Callable[[], None]
) -> list[Sample]:
    """Let the target write `tokens` greedily behind each prompt, up to the end of its text; `advance` after each."""
    from .capture.proof import own_text

    samples = []
    for prompt in prompts:
        with torch.no_grad():
            text: list[int] = own_text(target.model, torch.tensor([prompt]), tokens)[0, len(prompt) :].tolist()
        ends = [i for i, token in enumerate(text) if token in target.eos_token_ids]
        samples.append(Sample(prompt, text[: ends[0] + 1] if ends else text))
        advance()
    return samples


def child_acceptance(draft_logits: Callable[[Tensor], Tensor], samples: Sequence[Sample], children: int) -> list[float]:
    """`P`: the share of positions at which the token of rank 0, 1, ... of the drafter is the target's.

    The drafter sees the target's text: a node is only compared where the path to it was accepted.

    Args:
        draft_logits: the drafter's `[T, V]` behind each of `[1, T]` tokens (`Pair.draft_logits`).
        children: how many ranks.
    """
    counts, total = torch.zeros(children, dtype=torch.int64), 0
    for prompt, text in samples:
        rows = draft_logits(torch.tensor([prompt + text[:-1]]))[len(prompt) - 1 :]
        wanted = torch.tensor(text)
        own = rows.gather(1, wanted[:, None])
        first = torch.arange(rows.shape[1]) < wanted[:, None]  # of equal logits the lowest id is drafted first
        ranks = ((rows > own) | ((rows == own) & first)).sum(1)
        ranks = ranks[own.squeeze(1) > float("-inf")]  # what cannot be drafted has no rank
        counts += torch.bincount(ranks[ranks < children], minlength=children)
        total += len(text)
    return [int(count) / max(1, total) for count in counts]


def lookup_tokens(samples: Sequence[Sample], length: int, longest: int = LONGEST) -> float:
    """Tokens that a step emits when lookup, from suffixes of `longest` on, drafts `length` tokens of these texts."""
    parents = DraftTree.chain(length).parents
    tokens = steps = 0
    for prompt, text in samples:
        known, place = [*prompt, *text], len(prompt)
        history = torch.tensor([[*known, 0]])  # a slot more than the bucket, as in an engine
        while place < len(known):
            last, limit = torch.tensor([place - 1]), torch.tensor([length])
            bucket = torch.empty(len(known))
            drafts, valid = lookup(history, last, limit, bucket, parents=parents, longest=longest)
            accepted, rest = 0, known[place:]
            for draft, offered, token in zip(drafts[0, 1:].tolist(), valid[0, 1:].tolist(), rest, strict=False):
                if not offered or draft != token:
                    break
                accepted += 1
            emitted = min(accepted + 1, len(rest))
            place, tokens, steps = place + emitted, tokens + emitted, steps + 1
    return tokens / max(1, steps)
