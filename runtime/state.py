"""State: every tensor that the programs of an engine read and write, allocated once, and the checked call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import EngineFault, EngineFormatError
from ..manifest import EngineManifest, ProgramSpec, TensorSpec

Runner = Callable[[list[Tensor]], Sequence[Tensor]]
"""A program as a back end opens it: arguments in the order of `ProgramSpec.inputs`, results in that of `outputs`."""

BUCKET_STEP = 64  # cache slots read grow by this many


class State:
    """The engine's buffers by name (`EngineManifest.tensors`), all rows of the batch.

    Caches and parameters keep their address for life: programs write the first in place, the runtime the second. State
    tensors are replaced by what a program returns under their name.
    """

    def __init__(self, manifest: EngineManifest, device: torch.device) -> None:
        self.batch, self.slots = manifest.batch, manifest.slots
        self.specs = {spec.name: spec for spec in manifest.tensors}
        self.tensors = {
            spec.name: torch.zeros(spec.shape, dtype=dtype_of(spec), device=device)  # never `empty`: 0 * NaN is NaN
            for spec in manifest.tensors
            if spec.role != "call"
        }
        self._calls: dict[tuple[str, int | None], _Call] = {}
        self._held: dict[str, list[int]] = {}  # vectors whose content is known

    def set(self, name: str, row: int, value: float | Sequence[int] | Tensor) -> None:
        """Write one row of a state or parameter tensor; a name that this engine's programs do not have is skipped."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return
        self._held.pop(name, None)
        if isinstance(value, Sequence):
            value = torch.tensor(value, dtype=tensor.dtype, device=tensor.device)
        if isinstance(value, Tensor):
            tensor[row, : len(value)] = value
        else:
            tensor[row] = value

    def hold(self, name: str, values: list[int]) -> None:
        """Make a vector hold these, one a row. What it is known to hold already is not written again."""
        tensor = self.tensors.get(name)
        if tensor is not None and self._held.get(name) != values:
            self._held.pop(name, None)
            tensor.copy_(torch.tensor(values, dtype=tensor.dtype))
            self._held[name] = list(values)

    def trust(self, name: str, values: list[int]) -> None:
        """Take it that a program left these in a vector, one a row."""
        self._held[name] = list(values)

    def clear(self, row: int, start: int, stop: int) -> None:
        """Zero a row's cache slots from `start` on, so that nothing of one text (a NaN, say) reaches the next."""
        for name, spec in self.specs.items():
            if spec.role == "cache":
                part = self.tensors[name][row]
                (part[:, start:stop] if part.ndim == 3 else part[start:]).zero_()  # history is small: all of it

    def forget(self, row: int) -> None:
        """Zero a row's `draft` tensors, so that what is drafted depends on this row's own text alone."""
        for name, spec in self.specs.items():
            if spec.role == "draft":
                self.tensors[name][row] = 0

    def remember(self, tokens: Sequence[int]) -> None:
        """Add a text that has ended to those that lookup searches beside a row's own; the oldest make room."""
        shared = self.tensors.get("shared")
        if shared is not None and tokens:
            new = torch.tensor([*(token + 1 for token in tokens), 0][-shared.shape[1] :], device=shared.device)
            shared.copy_(torch.cat([shared[0, len(new) :], new]).expand_as(shared))

    def copy(self, source: int, row: int, slots: int) -> None:
        """Give a row the first `slots` slots of another's keys and values."""
        for name, spec in self.specs.items():
            if spec.role == "cache" and len(spec.shape) == 4:
                self.tensors[name][row, :, :slots] = self.tensors[name][source, :, :slots]

    def bucket(self, length: int) -> Tensor:
        """The dummy whose size says how many cache slots a program reads: `length`, rounded up."""
        slots = -(-max(length, 1) // BUCKET_STEP) * BUCKET_STEP
        return self.tensors["bucket"][: min(slots, self.slots - 1)]  # n = S is a size that programs guard against

    def bind(self, name: str, spec: ProgramSpec, runner: Runner) -> None:
        """Prepare the calls of one program: over all rows, or over each row where it works on one.

        Raises:
            EngineFormatError: the program names a tensor that the manifest does not describe.
        """
        missing = [n for n in spec.inputs if n not in self.specs]
        if missing:
            raise EngineFormatError(
                f"program {name} reads {missing[0]}, which the manifest does not describe; compile again"
            )
        for row in range(self.batch) if spec.batch < self.batch else (None,):
            self._calls[name, row] = _Call(name, spec, runner, self, row)

    def call(self, name: str, length: int, row: int | None = None, **given: Tensor) -> dict[str, Tensor]:
        """Run a program on the state.

        Args:
            name: of the program.
            length: the most cache slots that any row has filled; sets the bucket.
            row: for programs of one row, the one to work on.
            given: `call` tensors.

        Returns:
            What the program returned, by name. Outputs that are state have replaced it already.

        Raises:
            EngineFault: a tensor about to be passed is not what the program was compiled for.
        """
        call = self._calls.get((name, row)) or self._calls[name, None]  # None: one row is all there are
        for output in call.outputs:
            self._held.pop(output, None)
        return call(self.bucket(length), given)


class _Slot(NamedTuple):
    """One argument that is looked up at each call, and what it must be."""

    place: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class _Call:
    """One program with what keeps its address looked up and checked once, and the rest at each call.

    The check matters: a compiled package reads a strided view as if it were contiguous, without an error.
    """

    def __init__(self, name: str, spec: ProgramSpec, runner: Runner, state: State, row: int | None) -> None:
        self.name, self.runner, self.outputs, self.state = name, runner, spec.outputs, state
        self.device = state.tensors["bucket"].device
        self.fixed: list[Any] = [None] * len(spec.inputs)  # the gaps are filled at each call
        self.slots: list[_Slot] = []
        self.rows = slice(None) if row is None else slice(row, row + 1)
        for i, tensor_name in enumerate(spec.inputs):
            tensor = state.specs[tensor_name]
            shape = tensor.shape if row is None or tensor.role in ("call", "bucket") else (1, *tensor.shape[1:])
            slot = _Slot(i, tensor_name, shape, dtype_of(tensor))
            if tensor.role in ("cache", "parameter"):
                view = state.tensors[tensor_name][self.rows]
                self.check(slot, view)
                self.fixed[i] = view
            else:
                self.slots.append(slot)

    def __call__(self, bucket: Tensor, given: dict[str, Tensor]) -> dict[str, Tensor]:
        arguments: list[Tensor] = list(self.fixed)
        for slot in self.slots:
            if slot.name == "bucket":
                tensor = bucket
                self.check(slot._replace(shape=(max(2, bucket.shape[0]),)), tensor)
            else:
                tensor = given[slot.name] if slot.name in given else self.state.tensors[slot.name][self.rows]
                self.check(slot, tensor)
            arguments[slot.place] = tensor
        results = dict(zip(self.outputs, self.runner(arguments), strict=True))
        for name, tensor in results.items():
            if name in self.state.tensors:
                self._replace(name, tensor)
        return results

    def check(self, slot: _Slot, tensor: Tensor) -> None:
        """Shape, dtype, device and strides must be those that the program was compiled for."""
        fits = tuple(tensor.shape) == slot.shape and tensor.dtype == slot.dtype
        if not (fits and tensor.device == self.device and tensor.is_contiguous()):
            raise EngineFault(
                f"program {self.name}, input {slot.name}: found {tensor.dtype} {tuple(tensor.shape)} with strides "
                f"{tensor.stride()} on {tensor.device}, expected contiguous {slot.dtype} {slot.shape} on "
                f"{self.device}; this is a bug in specc, please report it"
            )

    def _replace(self, name: str, tensor: Tensor) -> None:
        if tensor is self.state.tensors[name]:
            return
        if self.rows == slice(None):
            # A program may return its input, or an expanded scalar: state must be its own and contiguous.
            self.state.tensors[name] = tensor.contiguous()
        else:
            self.state.tensors[name][self.rows] = tensor


def dtype_of(spec: TensorSpec) -> torch.dtype:
    """The dtype of a tensor that the manifest describes.

    Raises:
        EngineFormatError: torch has none of that name.
    """
    dtype = getattr(torch, spec.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise EngineFormatError(
            f"tensor {spec.name}: dtype {spec.dtype!r} is not known to torch; compile the engine again"
        )
    return dtype
