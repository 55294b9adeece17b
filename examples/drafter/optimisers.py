"""Two optimisers that are cheap on a CPU: Muon for the matrices of the layers, Adam by rows for the embedding.

Muon is momentum whose matrix is replaced by the nearest one with all singular values near 1. torch.optim.Muon works in
bfloat16, which is five times slower than float32 on a CPU without bfloat16 units; this one stays in float32 and takes
matrices of equal shape together.
"""

import torch


def orthogonal(x: torch.Tensor, rounds: int = 5) -> torch.Tensor:
    """x [N, rows, columns] -> the same singular vectors with singular values of about 1 (Newton-Schulz iteration)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = x.shape[1] > x.shape[2]
    x = x.transpose(1, 2) if tall else x
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(rounds):
        gram = x @ x.transpose(1, 2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """For matrices only. The size of an update is that of AdamW (root mean square 0.2 x rate)."""

    def __init__(self, params, lr: float, momentum: float = 0.95, weight_decay: float = 0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for shape, params in shapes.items():
                grads = []
                for p in params:
                    state = self.state[p]
                    if not state:
                        state["mean"] = torch.zeros_like(p)
                    state["mean"].lerp_(p.grad, 1 - group["momentum"])
                    grads.append(p.grad.lerp(state["mean"], group["momentum"]))
                size = 0.2 * max(shape) ** 0.5 * group["lr"]
                for p, update in zip(params, orthogonal(torch.stack(grads)), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=size)


class RowAdam(torch.optim.Optimizer):
    """Adam for one table [V, h] of which a step touches some rows; the other rows and their means stay as they are.

    A dense step reads and writes four tables of V rows, which takes as long as the model itself at small batches.
    The gradient of the rows is left by the caller in `rows` [U] and `grad` [U, h].
    """

    def __init__(self, table: torch.nn.Parameter, lr: float, betas=(0.9, 0.98), eps: float = 1e-8):
        super().__init__([table], dict(lr=lr))
        self.table, self.betas, self.eps = table, betas, eps
        self.state[table] = dict(mean=torch.zeros_like(table), square=torch.zeros_like(table), step=torch.zeros(()))
        self.rows = self.grad = None

    @torch.no_grad()
    def step(self, closure=None):
        state, (b1, b2), g = self.state[self.table], self.betas, self.grad
        state["step"] += 1
        t = state["step"].item()
        mean = state["mean"][self.rows].lerp_(g, 1 - b1)
        square = state["square"][self.rows].mul_(b2).addcmul_(g, g, value=1 - b2)
        state["mean"][self.rows], state["square"][self.rows] = mean, square
        root = (square / (1 - b2**t)).sqrt_().add_(self.eps)
        self.table.index_add_(0, self.rows, mean.div_(root), alpha=-self.param_groups[0]["lr"] / (1 - b1**t))
