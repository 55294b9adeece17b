"""Parts of a Llama layer as the drafters of the EAGLE family have them, on packed rows."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):  # type: ignore[misc]
    """x / rms(x) * weight over the last axis."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class MLP(nn.Module):  # type: ignore[misc]
    """down(silu(gate x) * up x)."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(size, inner, bias=False)
        self.up_proj = nn.Linear(size, inner, bias=False)
        self.down_proj = nn.Linear(inner, size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):  # type: ignore[misc]
    """The four products of attention; how rows attend is `unroll`'s affair."""

    def __init__(self, inputs: int, size: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.q_proj = nn.Linear(inputs, heads * head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(inputs, kv_heads * head_dim, bias=False)
        self.o_proj = nn.Linear(heads * head_dim, size, bias=False)


def rotate(x: torch.Tensor, position: torch.Tensor, theta: float) -> torch.Tensor:
    """Rotary embedding in halves, as Llama's.

    Args:
        x: float32 [M, heads, D].
        position: int64 [M].
        theta: base of the frequencies.
    """
    half = x.shape[-1] // 2
    angle = position[:, None] * theta ** (-torch.arange(half, device=x.device) / half)
    cos, sin = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def half(model: nn.Module) -> dict[str, torch.Tensor]:
    """The trained weights in bfloat16, by name."""
    return {name: p.detach().to(torch.bfloat16).contiguous() for name, p in model.named_parameters()}
