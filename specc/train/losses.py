"""Cross-entropy of a head over many ids, without keeping its logits."""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 512  # rows of logits held at once


class HeadLoss(torch.autograd.Function):  # type: ignore[misc]
    """Sum over rows of logsumexp(h W^T) * sum_k p_k - sum_k p_k (h W^T)_k, and how often the largest logit is named.

    The gradients are made along with the loss, a chunk of rows at a time: the logits of a batch would be hundreds of
    megabytes, written and read again several times.

        hidden [M, E], weight [N, E], index int64 [M, k], columns of the logits, share [M, k]
        -> the sum, and int64 [M], the column of the largest logit
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, index: torch.Tensor, share: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else weight.dtype
        head, hidden = weight.to(made), hidden.to(made)
        loss, choice = weight.new_zeros(()), index.new_empty(len(hidden))
        d_hidden = torch.empty_like(hidden, dtype=weight.dtype)
        d_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for at in range(0, len(hidden), CHUNK):
            part = slice(at, at + CHUNK)
            h, i, p = hidden[part], index[part], share[part]
            logits = (h @ head.T).float()
            choice[part] = logits.argmax(1)
            whole = p.sum(1, keepdim=True)
            loss -= (logits.gather(1, i) * p).sum()
            lse = logits.logsumexp(1, keepdim=True)
            loss += (lse * whole).sum()
            logits.sub_(lse).exp_().mul_(whole).scatter_add_(1, i, -p)
            slope = logits.to(made)
            d_hidden[part] = slope @ head
            if d_weight is not None:
                d_weight += slope.T @ h
        ctx.save_for_backward(d_hidden, d_weight)
        ctx.mark_non_differentiable(choice)
        return loss, choice

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        d_hidden, d_weight = ctx.saved_tensors
        return d_hidden * g, None if d_weight is None else d_weight * g, None, None
