"""FeatureDrafter: a drafter that reads the target's hidden states, and its capture."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import ops  # noqa: F401  registers specc::attend
from ..drafter import EAGLE, EAGLE3, MEDUSA, DrafterSpec
from ..program import Model
from .checkpoint import read_checkpoint
from .checkpoint_kind import check_kind
from .export import SAMPLE_ROWS, capture_module, telling
from .load import DTYPES, LoadedModel
from .taps import Taps


@dataclass(frozen=True, eq=False)
class FeatureDrafter:
    """A drafter over a target's hidden states, in the target's dtype.

    Attributes:
        kind: `medusa`, `eagle` or `eagle3`.
        module: EAGLE: `(tokens, positions, hidden) -> (logits, hidden)`, `[B, T, Vd]` and `[B, T, F]`. Medusa:
            `hidden -> logits`, `[B, 1, F]` to `[B, heads, V]`.
        taps: what it reads of the target.
        size: F.
        depth: the most levels that it can draft; 0 for any number.
        column_of: `[V]` int64, the column of its logits that means a target id, -1 where none does; None where they
            are the target's.
        parameters: of the checkpoint; what it takes from the target is not counted.
        notes: what looks wrong and is not known to be.
    """

    kind: str
    module: nn.Module
    taps: Taps
    size: int
    max_positions: int
    source: str
    digest: str
    parameters: int
    depth: int = 0
    column_of: Tensor | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def model(self) -> nn.Module:
        """The module, as whole models are called."""
        return self.module

    def first_drafts(self, target: Any, tokens: Tensor) -> Tensor:
        """Logits `[T, columns]` of the first draft behind each of `[1, T]` tokens; zeros behind the first of all."""
        with torch.no_grad(), self.taps.hooked(target):
            target(input_ids=tokens, use_cache=False)
            hidden = self.taps.read()[:, :-1]
            if self.kind == MEDUSA:
                logits = self.module.heads[0](hidden)[0]
            else:
                positions = torch.arange(hidden.shape[1])[None]
                logits = self.module(tokens[:, 1:], positions, hidden)[0][0]
        return torch.cat([torch.zeros_like(logits[:1]), logits])

    @property
    def architecture(self) -> str:
        """The name that `inspect` shows."""
        return type(self.module).__name__


def load_feature_drafter(spec: DrafterSpec, target: LoadedModel, *, dtype: str) -> FeatureDrafter:
    """Read a published checkpoint and check it against its target.

    Args:
        spec: of kind `medusa`, `eagle` or `eagle3`.
        target: as loaded.
        dtype: one of `load.DTYPES`.

    Raises:
        CaptureError: the files are not what this kind has, or were made for another target; says which tensor.
    """
    from . import eagle, eagle3, medusa

    loaders = {EAGLE: eagle.load, EAGLE3: eagle3.load, MEDUSA: medusa.load}
    checkpoint = read_checkpoint(spec.sources[0])
    check_kind(checkpoint, spec.kind)
    with telling("drafter"):
        drafter = loaders[spec.kind](checkpoint, target)
        checkpoint.finish()
    for part in (drafter.module, drafter.taps.fuse):
        for parameter in part.eval().requires_grad_(False).parameters() if part is not None else ():
            parameter.data = parameter.data.to(DTYPES[dtype])  # buffers stay: rotary frequencies are never rounded
    return drafter


def capture_drafter(drafter: FeatureDrafter, target: LoadedModel, *, batch: int = 1) -> Model:
    """Export a feature drafter as a `Model`.

    Raises:
        CaptureError: it cannot be exported.
    """
    hidden = torch.zeros(batch, SAMPLE_ROWS, drafter.size, dtype=next(drafter.module.parameters()).dtype)
    if drafter.kind == MEDUSA:
        example, count = {"hidden": hidden[:, :1]}, None
    else:
        rows = torch.arange(SAMPLE_ROWS).expand(batch, -1).contiguous()
        example, count = {"tokens": torch.zeros_like(rows), "positions": rows, "hidden": hidden}, drafter.max_positions
    with telling("drafter"):
        graph, weights = capture_module(drafter.module, example, name="drafter", count=count)
    model = Model("drafter", graph, weights, target.vocab_size, drafter.max_positions, features=drafter.size)
    return model.with_vocabulary(column_of=drafter.column_of)
