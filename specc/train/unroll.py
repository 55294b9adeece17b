"""Attention of a drafter that is trained on its own outputs (training-time test, EAGLE-3).

Base row t is the pair (x_{t+1}, f_t) with the target's true feature; it and the rows before are the drafter's cache.
From it the drafter goes on by itself: the row of step j stands at position t + j and sees the true rows up to t and
its own chain of steps 1..j, nothing of other chains. Rows are packed: only those that lead to a loss are computed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from .layers import Attention, rotate


@dataclass
class Chain:
    """Keys and values that rows may see.

    Attributes:
        rows: B, texts side by side.
        width: T, pairs of the longest.
        theta: base of the rotary frequencies.
        keys, values: float32 [B, H, T, D], of the pairs with true features.
        own_keys, own_values: float32 [M, H, D] for each step so far, of the chains that go on.
    """

    rows: int
    width: int
    theta: float
    keys: torch.Tensor = field(init=False)
    values: torch.Tensor = field(init=False)
    own_keys: list[torch.Tensor] = field(default_factory=list)
    own_values: list[torch.Tensor] = field(default_factory=list)

    def begin(self, layer: Attention, x: torch.Tensor, place: torch.Tensor) -> None:
        """Take up the pairs with true features.

        Args:
            layer: whose keys and values.
            x: float32 [N, inputs], what the layer reads at all pairs.
            place: int64 [N], `b * T + t` of each.
        """
        k, v = self._heads(layer, x, place % self.width)
        self.keys, self.values = self._spread(k, place), self._spread(v, place)

    def go_on(self, layer: Attention, x: torch.Tensor, base: torch.Tensor, step: int) -> None:
        """Take up the rows of one step of the chains from `base` (int64 [M])."""
        k, v = self._heads(layer, x, base % self.width + step)
        self.own_keys.append(k)
        self.own_values.append(v)

    def keep(self, which: torch.Tensor) -> None:
        """Only these chains go on (int64 [m], indices into the M of before)."""
        self.own_keys = [k[which] for k in self.own_keys]
        self.own_values = [v[which] for v in self.own_values]

    def attend(self, layer: Attention, x: torch.Tensor, base: torch.Tensor, step: int) -> torch.Tensor:
        """float32 [M, H * D]: what the rows of step `step` of the chains from `base` gather, before `o_proj`."""
        q = layer.q_proj(x).view(len(x), layer.heads, layer.head_dim)
        q = rotate(q, base % self.width + step, self.theta) * layer.head_dim**-0.5
        scores = self._spread(q, base) @ self.keys.transpose(2, 3)
        future = torch.ones(self.width, self.width, dtype=torch.bool, device=x.device).triu(1)
        scores = scores.masked_fill(future, float("-inf"))
        own = [self._spread((q * k).sum(-1, keepdim=True), base) for k in self.own_keys]
        weight = torch.cat([scores, *own], -1).softmax(-1)
        out = self._gather(weight[..., : self.width] @ self.values, base)
        for i, v in enumerate(self.own_values):
            out = out + self._gather(weight[..., self.width + i, None], base) * v
        return out.flatten(1)

    def _heads(self, layer: Attention, x: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys, turned to their positions, and values [M, H, D]; shared heads are repeated."""
        shape = (len(x), layer.kv_heads, layer.head_dim)
        k, v = rotate(layer.k_proj(x).view(shape), position, self.theta), layer.v_proj(x).view(shape)
        again = layer.heads // layer.kv_heads
        return k.repeat_interleave(again, 1), v.repeat_interleave(again, 1)

    def _spread(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """[M, H, D] -> [B, H, T, D], zeros elsewhere."""
        full = x.new_zeros(self.rows * self.width, *x.shape[1:]).index_copy(0, place, x)
        return full.view(self.rows, self.width, *x.shape[1:]).transpose(1, 2)

    def _gather(self, x: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
        """[B, H, T, D] -> [M, H, D]."""
        return x.transpose(1, 2).flatten(0, 1)[base]
