"""Medusa: heads that each tell one more token from the target's last hidden state."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ..capture.medusa import ResBlock
from .batches import Batch
from .drafter import Drafter, Rows
from .layers import half


class Medusa(Drafter):
    """Heads `0..count-1`; head k tells x_{t + 2 + k} from f_t. Names of weights are those of the published files.

    Args:
        count: heads.
        lm_head: float32 [V, E], the target's, with which every head begins.
        name: what the target is called, for the config.
    """

    def __init__(self, count: int, lm_head: torch.Tensor, name: str) -> None:
        super().__init__(torch.arange(len(lm_head)), len(lm_head))
        self.name = name
        self.heads = nn.ModuleList(
            nn.ModuleList([ResBlock(lm_head.shape[1]), nn.Linear(*lm_head.shape[::-1], bias=False)])
            for _ in range(count)
        )
        with torch.no_grad():
            for block, head in self.heads:
                nn.init.zeros_(block.linear.weight)  # so that a head says what the target's own says of its state
                nn.init.zeros_(block.linear.bias)
                head.weight.copy_(lm_head)

    @staticmethod
    def taps(count: int) -> tuple[int, ...]:
        """The input of the LM head."""
        return (count,)

    def start(self, target: Any, rows: Rows) -> None:
        """It was begun as it was made."""

    def head(self, step: int) -> torch.Tensor:
        return self.heads[step][1].weight

    def unroll(self, batch: Batch, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for step, head in enumerate(self.heads[:steps]):
            base = batch.bases(step)
            yield base, head[0](batch.states[torch.searchsorted(batch.place, base)])

    def files(self, target: Any, layers: tuple[int, ...]) -> dict[str, Any]:
        settings = {
            "medusa_num_heads": len(self.heads),
            "medusa_num_layers": 1,
            "base_model_name_or_path": self.name,
            "hidden_size": self.heads[0][1].in_features,
            "vocab_size": self.heads[0][1].out_features,
        }
        weights = {name.removeprefix("heads."): p for name, p in half(self).items()}
        return {"config.json": settings, "medusa_lm_head.safetensors": weights}
