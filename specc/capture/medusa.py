"""Medusa: heads on the target's last hidden state, the k-th for the token k + 2 places on.

Source: Cai et al. 2024, Medusa, section 3.1, and the published `medusa_lm_head` files.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from ..errors import CaptureError
from .checkpoint import Checkpoint
from .feature_drafter import FeatureDrafter
from .llama_parts import fill
from .load import LoadedModel
from .taps import Taps

_PREFIXES = ("medusa_head.", "medusa_heads.")  # of full checkpoints


class ResBlock(nn.Module):  # type: ignore[misc]
    """`x + SiLU(W x + b)`."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + nn.functional.silu(self.linear(hidden))


class Medusa(nn.Module):  # type: ignore[misc]
    """`hidden [B, 1, E] -> logits [B, heads, V]`."""

    def __init__(self, heads: int, blocks: int, size: int, rows: int) -> None:
        super().__init__()
        self.heads = nn.ModuleList(
            nn.Sequential(*[ResBlock(size) for _ in range(blocks)], nn.Linear(size, rows, bias=False))
            for _ in range(heads)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        return torch.cat([head(hidden) for head in self.heads], 1)


def load(checkpoint: Checkpoint, target: LoadedModel) -> FeatureDrafter:
    """Build the heads from a file; how many there are is counted there, since configurations are wrong about it.

    Raises:
        CaptureError: a tensor is missing, has another shape or is not Medusa's.
    """
    checkpoint.tensors = _heads_alone(checkpoint, target)
    numbers = [re.match(r"(\d+)\.(\d+)\.", name) for name in checkpoint.tensors]
    if not all(numbers):
        strange = next(name for name, found in zip(checkpoint.tensors, numbers, strict=True) if not found)
        raise CaptureError(
            f"drafter: {checkpoint.source} holds {strange}, which is no Medusa head's; expected names as "
            "0.0.linear.weight; give the medusa_lm_head file itself"
        )
    heads = {int(found[1]) for found in numbers if found}
    blocks = max((int(found[2]) for found in numbers if found and found[1] == "0"), default=0)
    if heads != set(range(len(heads))) or not blocks:
        raise CaptureError(
            f"drafter: {checkpoint.source} has the heads {sorted(heads)}, of {blocks} blocks each; expected heads 0, "
            "1, 2, ... of one block or more; fetch the drafter again"
        )
    rows, size = target.model.get_output_embeddings().weight.shape
    module = Medusa(len(heads), blocks, size, rows)
    fill(module.heads, checkpoint, "", f"the target has hidden size {size} and {rows} ids")
    return FeatureDrafter(
        kind="medusa",
        module=module,
        taps=Taps(),
        size=size,
        max_positions=target.max_positions,
        source=checkpoint.source,
        digest=checkpoint.digest,
        parameters=sum(tensor.numel() for tensor in checkpoint.tensors.values()),
        depth=len(heads),
    )


def _heads_alone(checkpoint: Checkpoint, target: LoadedModel) -> dict[str, Tensor]:
    """The heads by number: full checkpoints hold them under a prefix, beside the target's own weights."""
    tensors = checkpoint.tensors
    heads = {name.removeprefix(p): tensors[name] for name in tensors for p in _PREFIXES if name.startswith(p)}
    if not heads:
        return tensors
    known = {name for name, _ in target.model.named_parameters(remove_duplicate=False)}
    others = [name for name in tensors if not name.startswith(_PREFIXES) and name not in known]
    return heads | {name: tensors[name] for name in others}
