"""Every attention of a model gets the slots and the rows that it may see."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, fx

from ..program import Block, Level, Program
from . import inputs
from .commit import Commit
from .contract import Pass
from .graph import call, clean_up, emit
from .inline_prefill import InlinePrefill

_ARGUMENTS = ("q", "k", "v", "layer", "scale", "window", "softcap", "sinks")


class LowerAttention(Pass):
    """Replace every `specc::attend` by attention over the cache's filled slots and the step's own rows.

    The cache is neither copied nor written before acceptance. Windows, soft caps, sinks, grouped heads and values of
    another size than the keys are carried. How it is computed is `ExpandAttention`'s business.

    Before: `attend: f32[B, H, T, Dv] = specc::attend(q, k, v, layer, scale, window, softcap, sinks)`
    After:  `specc::cached_attention(q, cache_k, cache_v, rows_k, rows_v, length, mask, bucket, scale, ...)`, level
    STATIC; it reads `n` slots of the cache, the length of the bucket.
    """

    after = (Commit, InlinePrefill)
    reads = Level.FUSED
    leaves = Level.STATIC
    preserves_outputs = False  # the bucket becomes an input

    def run(self, program: Program) -> int:
        rewrites = 0
        for block in program.blocks:
            positions: fx.Node | None = None  # the same for all layers of a block; read where there is a window
            for layer, marker in enumerate(block.markers):
                args = dict(zip(_ARGUMENTS, marker.args, strict=False)) | marker.kwargs
                if args.get("window") is not None and positions is None:
                    positions = self._joined(program, [b.positions for b in (*block.prior, block)], 1, marker)
                self._lower(program, block, layer, args, positions)
                rewrites += 1
        program.blocks = []
        clean_up(program.graph)
        return rewrites

    def _lower(
        self, program: Program, block: Block, layer: int, args: dict[str, Any], positions: fx.Node | None
    ) -> None:
        marker, blocks, window = block.markers[layer], [*block.prior, block], args.get("window")
        caches = [inputs.cache(program, block.model, kind, layer, args[kind]) for kind in ("k", "v")]
        bucket = inputs.bucket(program)
        rows = [self._joined(program, [b.markers[layer].args[place] for b in blocks], 2, marker) for place in (1, 2)]
        with program.graph.inserting_before(marker):
            out = call(
                program,
                self,
                torch.ops.specc.cached_attention.default,
                args["q"],
                *caches,
                *rows,
                block.length,
                block.mask,
                bucket,
                args["scale"],
                window,
                args.get("softcap"),
                positions if window is not None else None,
                args.get("sinks"),
                origin=marker,
            )
        marker.replace_all_uses_with(out)

    def _joined(self, program: Program, parts: list[fx.Node], dim: int, before: fx.Node) -> fx.Node:
        """Rows of several blocks side by side."""
        if len(parts) == 1:
            return parts[0]
        return emit(program, self, _side_by_side, *parts, before=before, dim=dim)


def _side_by_side(*parts: Tensor, dim: int) -> Tensor:
    return torch.cat(parts, dim)
