"""What every kind of drafter is to the training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import nn

from .batches import Batch
from .losses import HeadLoss

DECAY = 0.8  # weight of a step against the one before: later ones are reached less often
KNOWN = 0.05  # share of what is to be learnt that must lie within the draft vocabulary

Rows = list[tuple[torch.Tensor, torch.Tensor]]  # ids int64 [n]; states float32 [n, (taps + 1) * E]


class Drafter(nn.Module, ABC):  # type: ignore[misc]
    """A drafter that learns: what it reads, how it drafts, and what its files hold.

    Args:
        kept: int64 [N], ascending ids of the target's vocabulary within which it learns.
        vocab_size: rows of the target's head.
    """

    chains: ClassVar[bool] = True  # whether a step's output is the next one's input, so that unrolling teaches more
    kept: torch.Tensor
    column: torch.Tensor

    def __init__(self, kept: torch.Tensor, vocab_size: int) -> None:
        super().__init__()
        column = torch.full((vocab_size,), -1, dtype=torch.long)
        column[kept] = torch.arange(len(kept))
        self.register_buffer("kept", kept, persistent=False)
        self.register_buffer("column", column, persistent=False)

    @staticmethod
    @abstractmethod
    def taps(count: int) -> tuple[int, ...]:
        """Layers of a target of `count` layers whose input is read; `count` stands for the input of the LM head."""

    @abstractmethod
    def start(self, target: Any, rows: Rows) -> None:
        """Set the first weights.

        Args:
            target: the target, a transformers model.
            rows: some texts, with the states of the taps and, last, the input of the LM head.
        """

    @abstractmethod
    def unroll(self, batch: Batch, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Draft `steps` tokens from every pair of a batch, with the target's tokens as what was drafted before.

        That is what drafting meets: a chain whose earlier tokens were not the target's is refused anyway.

        Yields:
            For each step, int64 [M], the pairs drafted from (`b * T + t`), and float32 [M, E], from which `head(step)`
            tells x_{t + 2 + step}.
        """

    @abstractmethod
    def head(self, step: int) -> torch.Tensor:
        """float32 [N, E], whose products with what `unroll` yields at `step` are the logits of `kept`."""

    @abstractmethod
    def files(self, target: Any, layers: tuple[int, ...]) -> dict[str, Any]:
        """What a published folder of this kind holds: a name to tensors (a dict), or to settings (`config.json`)."""

    def slowness(self, name: str) -> float:
        """The part of the learning rate that a weight gets."""
        return 1.0

    def beside(self, batch: Batch, base: torch.Tensor, hidden: torch.Tensor, step: int) -> torch.Tensor | float:
        """What else is to be made small at a step."""
        return 0.0

    def loss(self, batch: Batch, steps: int) -> tuple[torch.Tensor, list[float]]:
        """Cross-entropy to the target's distribution within the draft vocabulary, summed with `DECAY**step`.

        Returns:
            The loss, and for each step the share of pairs whose first choice is what the target said.
        """
        total, right = torch.zeros((), device=batch.states.device), []
        for step, (base, hidden) in enumerate(self.unroll(batch, steps if self.chains else 1)):
            if not len(base):
                break
            token, share = batch.labels(base, 2 + step)
            column = self.column[token]
            share = share * (column >= 0)
            known = share.sum(-1, keepdim=True)
            share = share / known.clamp(min=KNOWN) * (known > KNOWN)
            entropy, choice = HeadLoss.apply(hidden, self.head(step), column.clamp(min=0), share)
            total = total + DECAY**step * (entropy / len(base) + self.beside(batch, base, hidden, step))
            right.append((self.kept[choice] == batch.token(base, 2 + step)).float().mean().item())
        return total, right

    def choices(self, hidden: torch.Tensor, step: int) -> torch.Tensor:
        """int64 [M], the likeliest ids of the target's vocabulary after outputs [M, E] of `unroll` at `step`."""
        return self.kept[(hidden @ self.head(step).T).argmax(-1)]
