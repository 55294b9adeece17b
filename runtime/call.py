"""A call of one program on the state: every argument is checked, for native code checks none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..errors import EngineFault, EngineFormatError
from ..manifest import ProgramSpec, TensorSpec

if TYPE_CHECKING:
    from .state import State

Runner = Callable[[list[Tensor]], Sequence[Tensor]]
"""A program as a back end opens it: arguments in the order of `ProgramSpec.inputs`, results in that of `outputs`."""


class _Slot(NamedTuple):
    """One argument that is looked up at each call, and what it must be."""

    place: int
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype


class Call:
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
