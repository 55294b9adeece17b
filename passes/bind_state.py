"""The last pass: state in and out paired, our own ops in the back end's form."""

from __future__ import annotations

import torch
from torch import Tensor

from ..philox import uniform
from ..program import Level, Program
from .contract import Pass
from .graph import call, clean_up, emit
from .lower_attention import LowerAttention


class BindState(Pass):
    """Write caches in place, expand the noise, and fix what the program returns.

    Before: `new: f32[B, G, S, D] = specc::kv_update(cache, rows, start)`, returned under the cache's name.
    After (`form="in_place"`): `index_put_(cache, [batch, head, slot], rows)`, nothing returned: the only form that
    Inductor writes without a copy of the cache. After (`form="functional"`): `kv_update` stays and its result is
    returned, for back ends that take caches as inputs and outputs. `specc::noise` becomes integer ops (Philox).
    """

    needs = (LowerAttention,)
    reads = Level.STATIC
    leaves = Level.ENGINE
    preserves_outputs = False

    def __init__(self, *, form: str = "in_place") -> None:
        self.form = form
        ours = {torch.ops.specc.kv_update.default} if form == "functional" else set()
        self.kept: frozenset[object] = frozenset(ours)

    def run(self, program: Program) -> int:
        rewrites = 0
        for node in program.graph.find_nodes(op="call_function", target=torch.ops.specc.noise.default):
            seed, sample, position, stream, size = node.args
            numbers = emit(program, self, uniform, seed, sample, position, before=node, stream=stream, size=size)
            node.replace_all_uses_with(numbers)
            rewrites += 1
        if self.form == "in_place":
            rewrites += self._write_in_place(program)
        clean_up(program.graph)
        return rewrites

    def _write_in_place(self, program: Program) -> int:
        updates = program.graph.find_nodes(op="call_function", target=torch.ops.specc.kv_update.default)
        returned = {node: name for name, node in program.values.items()}
        for node in updates:
            cache, rows, start = node.args
            with program.graph.inserting_before(program.output):
                index = emit(program, self, _indices, rows, start)
                call(program, self, torch.ops.aten.index_put_.default, cache, list(index), rows)
            program.drop(returned[node])
        return len(updates)


def _indices(rows: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, count, _ = rows.shape
    device = start.device
    slots = start[:, None] + torch.arange(count, device=device)
    return (
        torch.arange(batch, device=device)[:, None, None],
        torch.arange(heads, device=device)[None, :, None],
        slots[:, None, :],
    )
