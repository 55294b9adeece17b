"""State in and out paired, cache writes and noise in the back end's form."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from ..errors import PassError
from ..philox import NOISE, RACE, uniform
from ..program import Level, Program
from .contract import Pass
from .graph import call, clean_up, emit


class BindState(Pass):
    """Write caches in place, expand the noise, and fix what the program returns.

    Before: `new: f32[B, G, S, D] = specc::kv_update(cache, rows, start)`, returned under the cache's name.
    After (`form="in_place"`): `index_put_(cache, [batch, head, slot], rows)`, nothing returned: the only form that
    Inductor writes without a copy of the cache. After (`form="functional"`): `kv_update` stays and its result is
    returned in the shape of its input, for back ends that take caches as inputs and outputs. `specc::noise` becomes
    integer ops (Philox), or with `noise="input"` an input `noise_0` for a back end that cannot shift bits: the caller
    fills it with `specc.philox.uniform` for the positions behind the root, so other streams are refused. The graph as
    it came is kept as `Program.unbound`.
    """

    reads = Level.STATIC
    leaves = Level.ENGINE
    preserves_outputs = False

    def __init__(self, *, form: str = "in_place", noise: str = "ops") -> None:
        self.form, self.noise = form, noise

    def run(self, program: Program) -> int:
        program.unbound = fx.Graph()
        program.unbound.output(program.unbound.graph_copy(program.graph, {}))
        rewrites = 0
        nodes = program.graph.find_nodes(op="call_function", target=torch.ops.specc.noise.default)
        for place, node in enumerate(nodes):
            seed, sample, position, stream, size = node.args
            if self.noise == "input":
                if stream != RACE:
                    raise PassError(
                        f"BindState: program {program.name} draws noise (stream {stream}) for positions that it "
                        "decides, which no caller can give it; compile the engine without --acceptance, for coupled"
                    )
                numbers = program.input(f"{NOISE}{place}", tuple(node.meta["val"].shape), torch.float32)
            else:
                numbers = emit(program, self, uniform, seed, sample, position, before=node, stream=stream, size=size)
            node.replace_all_uses_with(numbers)
            rewrites += 1
        if self.form == "in_place":
            rewrites += self._write_in_place(program)
        else:
            self._return_in_shape(program)
            program.kept = frozenset({torch.ops.specc.kv_update.default})
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

    def _return_in_shape(self, program: Program) -> None:
        """Written through a view (the history, as a cache), returned in the shape of the input."""
        inputs = {str(n.target): n for n in program.graph.find_nodes(op="placeholder")}
        for name, node in program.values.items():
            if node.target is torch.ops.specc.kv_update.default and node.args[0] is not inputs[name]:
                shape = list(inputs[name].meta["val"].shape)
                with program.graph.inserting_before(program.output):
                    program.give(**{name: call(program, self, torch.ops.aten.view.default, node, shape)})


def _indices(rows: Tensor, start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, count, _ = rows.shape
    device = start.device
    slots = start[:, None] + torch.arange(count, device=device)
    return (
        torch.arange(batch, device=device)[:, None, None],
        torch.arange(heads, device=device)[None, :, None],
        slots[:, None, :],
    )
