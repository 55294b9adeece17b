"""State: every tensor that the programs of an engine read and write, allocated once, and the checked call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import EngineFault, EngineFormatError
from ..manifest import EngineManifest, ProgramSpec, TensorSpec
from .recorded import Recorded, Recorder, bucket_sizes, largest_first

Runner = Callable[[list[Tensor]], Sequence[Tensor]]
"""A program as a back end opens it: arguments in the order of `ProgramSpec.inputs`, results in that of `outputs`."""

BUCKET_STEP = 64  # cache slots read grow by this many


class State:
    """The engine's buffers by name (`EngineManifest.tensors`), all rows of the batch.

    Caches and parameters keep their address for life: programs write the first in place, the runtime the second. State
    tensors are replaced by what a program returns under their name; with a recorder they are overwritten by it, since a
    recorded call finds its arguments where they were.

    Attributes:
        writes: how often the host has written to it.
    """

    def __init__(
        self,
        manifest: EngineManifest,
        device: torch.device,
        recorder: Recorder | None = None,
        only: set[str] | None = None,
    ) -> None:
        """`only`: names of the tensors that are wanted here; None is all of the manifest's."""
        self.batch, self.slots, self.recorder, self.device = manifest.batch, manifest.slots, recorder, device
        self.specs = {spec.name: spec for spec in manifest.tensors if only is None or spec.name in only}
        self.tensors = {
            name: torch.zeros(spec.shape, dtype=dtype_of(spec), device=device)  # never `empty`: 0 * NaN is NaN
            for name, spec in self.specs.items()
            if spec.role != "call"
        }
        self._calls: dict[tuple[str, int | None], _Call] = {}
        self._recorded: dict[tuple[str, int | None], Recorded] = {}
        self._held: dict[str, list[int]] = {}  # vectors whose content is known
        self.writes = 0

    def has(self, name: str) -> bool:
        """Whether the engine's programs read a tensor of that name."""
        return name in self.tensors

    def fill(self, name: str, value: float) -> None:
        """Write one value to all of a tensor, if this engine's programs have it."""
        if name in self.tensors:
            self.tensors[name].fill_(value)

    def set(self, name: str, row: int, value: float | Sequence[int] | Tensor) -> None:
        """Write one row of a state or parameter tensor; a name that this engine's programs do not have is skipped."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return
        self.writes += 1
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
            self.writes += 1
            self._held.pop(name, None)
            tensor.copy_(torch.tensor(values, dtype=tensor.dtype))
            self._held[name] = list(values)

    def write(self, row: int, start: int, tokens: Sequence[int]) -> None:
        """Write tokens of a text to the history."""
        history = self.tensors["history"]
        history[row, start : start + len(tokens)] = torch.tensor(tokens, device=history.device)

    def emitted(self, row: int, start: int, tokens: Sequence[int]) -> None:
        """A step has emitted tokens of a text; it wrote them to the history itself."""

    def hand(self, name: str, row: int | None, value: Tensor) -> None:
        """Copy what another device's program gave to the parameter of that name, for one row or for all."""
        rows = slice(None) if row is None or self.batch == 1 else slice(row, row + 1)
        self.tensors[name][rows, : value.shape[1]].copy_(value)

    def fetch(self, tensor: Tensor) -> Callable[[], list[list[int]]]:
        """What gives the numbers of a small output as it is now; where a recorder runs, without waiting for them."""
        return self.recorder.fetch(tensor) if self.recorder else tensor.tolist

    def trust(self, name: str, values: list[int]) -> None:
        """Take it that a program left these in a vector, one a row."""
        self._held[name] = list(values)

    def clear(self, row: int, start: int, stop: int) -> None:
        """Zero a row's cache slots from `start` on, so that nothing of one text (a NaN, say) reaches the next."""
        self.writes += 1
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
            self.writes += 1
            new = torch.tensor([*(token + 1 for token in tokens), 0][-shared.shape[1] :], device=shared.device)
            shared.copy_(torch.cat([shared[0, len(new) :], new]).expand_as(shared))

    def copy(self, source: int, row: int, slots: int) -> None:
        """Give a row the first `slots` slots of another's keys and values."""
        for name, spec in self.specs.items():
            if spec.role == "cache" and len(spec.shape) == 4:
                self.tensors[name][row, :, :slots] = self.tensors[name][source, :, :slots]

    def bucket(self, length: int) -> Tensor:
        """The dummy whose size says how many cache slots a program reads: `length`, rounded up."""
        if self.recorder:
            slots = next(size for size in bucket_sizes(self.slots) if size >= length)
        else:
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
            call = self._calls[name, row] = _Call(name, spec, runner, self, row)
            if self.recorder and spec.rule:  # prefill takes long enough to be called as it is
                self._recorded[name, row] = Recorded(call, self.recorder)

    def record(self) -> None:
        """Record the steps of all rows, and of the first alone, with every bucket; those of other rows alone are
        recorded when they are first called. All that the calls wrote is zeroed: no text may be held."""
        first = [recorded for (_, row), recorded in self._recorded.items() if not row]
        for size in largest_first(bucket_sizes(self.slots)):
            for recorded in first:
                self._record(recorded, self.tensors["bucket"][:size])
        for name, spec in self.specs.items():
            if spec.role in ("cache", "state", "draft"):
                self.tensors[name].zero_()
        self._held.clear()

    def call(self, name: str, length: int, row: int | None = None, **given: Tensor) -> Mapping[str, Tensor]:
        """Run a program on the state.

        Args:
            name: of the program.
            length: the most cache slots that any row has filled; sets the bucket.
            row: for programs of one row, the one to work on.
            given: `call` tensors.

        Returns:
            What the program returned, by name. Outputs that are state have replaced it already. With a recorder the
            next call of the program overwrites them.

        Raises:
            EngineFault: a tensor about to be passed is not what the program was compiled for.
        """
        key = (name, row) if (name, row) in self._calls else (name, None)  # None: one row is all there are
        for output in self._calls[key].outputs:
            self._held.pop(output, None)
        recorded, bucket = self._recorded.get(key), self.bucket(length)
        if recorded is None:
            return self._calls[key](bucket, {name: tensor.to(self.device) for name, tensor in given.items()})
        self._record(recorded, bucket)
        return recorded(bucket)

    def _record(self, recorded: Recorded, bucket: Tensor) -> None:
        """Make a recording that is missing. That runs the call, which must advance nobody's text."""
        if not recorded.holds(bucket):
            active = self.tensors["active"].clone()
            self.tensors["active"].zero_()
            recorded.record(bucket)
            self.tensors["active"].copy_(active)


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
        self.device = state.tensors["bucket"].device  # with its index
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

    def __call__(self, bucket: Tensor, given: Mapping[str, Tensor] = MappingProxyType({})) -> dict[str, Tensor]:
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
        if self.rows == slice(None) and not self.state.recorder:
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
