"""Batches: rows of like length drawn by the number of the step, and nothing kept between steps.

So a run that was resumed draws what an uninterrupted one would have drawn.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .features import Sample


@dataclass
class Batch:
    """B rows of n_b tokens side by side; T is the largest n_b - 1.

    Row t of a text is the pair (x_{t+1}, f_t): what the drafter is given after the target has read x_0..x_t.

    Attributes:
        ids: int64 [B, T + 1], zeros behind the end.
        size: int64 [B], n_b.
        skip: int64 [B], tokens of the prompts.
        place: int64 [N], `b * T + t` of all pairs, t in 0..n_b - 2.
        states: float32 [N, layers * E], f_t of these.
        top: int64 [B, T + 1, k], the target's likeliest tokens in place of each token, 0 where not predicted.
        share: float32 [B, T + 1, k], how much each is to be learnt; sums to 1, or 0 where not predicted.
    """

    ids: torch.Tensor
    size: torch.Tensor
    skip: torch.Tensor
    place: torch.Tensor
    states: torch.Tensor
    top: torch.Tensor
    share: torch.Tensor

    @property
    def width(self) -> int:
        return self.ids.shape[1] - 1

    def bases(self, step: int) -> torch.Tensor:
        """int64 [M], the pairs from which the drafter drafts `step + 1` tokens that are in the answer."""
        t = torch.arange(self.width)
        inside = (t >= self.skip[:, None] - 1) & (t + 2 + step < self.size[:, None])
        return inside.flatten().nonzero()[:, 0]

    def token(self, base: torch.Tensor, ahead: int) -> torch.Tensor:
        """int64 [M], x_{t+ahead} of pairs `base`."""
        row, t = base // self.width, base % self.width
        return self.ids[row, t + ahead]

    def labels(self, base: torch.Tensor, ahead: int) -> tuple[torch.Tensor, torch.Tensor]:
        """[M, k] each: what the target finds likely in place of x_{t+ahead}, and how much each is to be learnt."""
        row, t = base // self.width, base % self.width
        return self.top[row, t + ahead], self.share[row, t + ahead]


def draw(samples: list[Sample], seed: int, tokens: int) -> list[Sample]:
    """About `tokens` tokens of rows of like length, the same for the same seed and samples."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(samples), generator=generator)[:256].tolist()
    order.sort(key=lambda i: len(samples[i].ids))
    mean = sum(len(samples[i].ids) for i in order) / len(order)
    take = max(1, min(len(order), round(tokens / mean)))
    at = int(torch.randint(len(order) - take + 1, (1,), generator=generator))
    return [samples[i] for i in order[at : at + take]]


def collate(samples: list[Sample], hard: float) -> Batch:
    """Rows side by side.

    Args:
        samples: the rows.
        hard: weight of the token that the target said against its distribution, 0..1.
    """
    count, width = len(samples), max(len(s.ids) for s in samples)
    k = max(s.top.shape[1] for s in samples)
    ids = torch.zeros(count, width, dtype=torch.long)
    top = torch.zeros(count, width, k + 1, dtype=torch.long)
    share = torch.zeros(count, width, k + 1)
    place = []
    for b, s in enumerate(samples):
        n = len(s.ids)
        ids[b, :n] = s.ids
        named = s.top.shape[1]
        top[b, s.skip : n, :named], top[b, s.skip : n, k] = s.top, s.ids[s.skip :]
        share[b, s.skip : n, :named], share[b, s.skip : n, k] = (1 - hard) * s.logp.softmax(-1), hard
        place.append(b * (width - 1) + torch.arange(n - 1))
    return Batch(
        ids=ids,
        size=torch.tensor([len(s.ids) for s in samples]),
        skip=torch.tensor([s.skip for s in samples]),
        place=torch.cat(place),
        states=torch.cat([s.states()[:-1] for s in samples]),
        top=top,
        share=share,
    )
