"""Our own C++ called on tensors, without a compiled program around it."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor

from ..errors import BackendError
from . import native

_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class Native:
    """Products and attention in native code: for timing and for tests.

    Raises:
        BackendError: the C++ compiler failed.
    """

    def __init__(self) -> None:
        self._library = ctypes.CDLL(str(native.library()))

    def skinny_linear(self, x: Tensor, weight: Tensor) -> Tensor:
        """`specc::skinny_linear` of contiguous float32 `x` `[rows, in]` and `weight` `[out, in]`."""
        (rows, size), out = x.shape, weight.shape[0]
        y = torch.empty(rows, out)
        self._library.specc_skinny_linear(*_pointers(x, weight, y), *map(ctypes.c_int64, (rows, out, size)))
        return y

    def levels_linear(self, x: Tensor, levels: Tensor, scale: Tensor, bits: int) -> Tensor:
        """`specc::levels_linear` of contiguous tensors, `x` being `[rows, in]`."""
        (rows, size), out = x.shape, levels.shape[0]
        y, numbers = torch.empty(rows, out), (rows, out, size, bits, scale.shape[1])
        self._library.specc_levels_linear(*_pointers(x, levels, scale, y), *map(ctypes.c_int64, numbers))
        return y

    def cached_attention(
        self,
        *tensors: Tensor,
        scale: float,
        window: int | None = None,
        softcap: float | None = None,
        positions: Tensor | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        """`specc::cached_attention`; the tensors in front of `scale` in its order.

        Raises:
            BackendError: the code refused the tensors.
        """
        made = ctypes.c_void_p()
        with _handles([*tensors, positions, sinks]) as handles:
            code = self._library.aoti_torch_cpu_cached_attention(
                *handles[:-2],
                ctypes.c_double(scale),
                window if window is None else ctypes.byref(ctypes.c_int64(window)),
                softcap if softcap is None else ctypes.byref(ctypes.c_double(softcap)),
                *(handle and ctypes.byref(handle) for handle in handles[-2:]),
                ctypes.byref(made),
            )
        if code:
            raise BackendError("attention in native code refused its tensors: a dtype, a shape or a stride")
        return torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(_new_capsule(made, None, None))


@contextlib.contextmanager
def _handles(tensors: list[Tensor | None]) -> Iterator[list[ctypes.c_void_p | None]]:
    """What compiled programs call tensors by, as long as the block lasts."""
    capsules = [
        None if tensor is None else torch._C._aoti.unsafe_alloc_void_ptr_from_tensor(tensor) for tensor in tensors
    ]
    try:
        yield [None if capsule is None else ctypes.c_void_p(_pointer(capsule, None)) for capsule in capsules]
    finally:
        for capsule in capsules:
            if capsule is not None:
                torch._C._aoti.alloc_tensor_by_stealing_from_void_ptr(capsule)


def _pointers(*tensors: Tensor) -> Iterator[ctypes.c_void_p]:
    return (ctypes.c_void_p(tensor.data_ptr()) for tensor in tensors)
