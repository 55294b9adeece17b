"""What ONNX has no function for, or several: translations that `torch.onnx` is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import BackendError

_TENSOR_SCATTER = 24  # the first opset that can write a cache as one op


def cache_write(opset: int, *, floats_only: bool = False) -> Callable[..., Any]:
    """`specc::kv_update` as one op of the opset.

    Args:
        floats_only: `TensorScatter` for caches of floating-point numbers alone, as TensorRT wants it.
    """
    from onnxscript import opset18 as op
    from onnxscript.onnx_opset import opset24

    def write_or_scatter(cache: Any, new: Any, start: Any) -> Any:
        if opset < _TENSOR_SCATTER or (floats_only and "FLOAT" not in str(cache.dtype)):
            return write(cache, new, start)
        return opset24.TensorScatter(cache, new, start, axis=-2)

    def write(cache: Any, new: Any, start: Any) -> Any:
        batch, heads, count, size = map(int, new.shape)
        rows = op.Constant(value_ints=list(range(count)))
        slots = op.Add(op.Reshape(start, op.Constant(value_ints=[batch, 1])), rows)
        slots = op.Reshape(slots, op.Constant(value_ints=[batch, 1, count, 1]))
        index = op.Expand(slots, op.Constant(value_ints=[batch, heads, count, size]))
        return op.ScatterElements(cache, index, new, axis=2)

    return write_or_scatter


def linear(x: Any, weight: Any, bias: Any = None) -> Any:
    """`linear` as `Gemm` over rows, which reads the weight as it is stored: `MatMul` would want a transposed copy."""
    from onnxscript import opset18 as op

    *outer, size = map(int, x.shape)
    rows = op.Reshape(x, op.Constant(value_ints=[-1, size]))
    made = op.Gemm(rows, weight, *([] if bias is None else [bias]), transB=1)
    return op.Reshape(made, op.Constant(value_ints=[*outer, int(weight.shape[0])]))


def scatter_add_by_comparison(base: Any, dim: int, index: Any, source: Any) -> Any:
    """`scatter_add` along the last axis as a comparison of every index with every place, summed.

    For TensorRT, whose scatter cannot add. It takes places times indices comparisons, which a GPU has to spare.
    """
    from onnxscript import opset18 as op

    if int(dim) != len(base.shape) - 1:
        raise BackendError(f"scatter_add along axis {dim} of {len(base.shape)} has no form for TensorRT")
    numbers = [op.Constant(value_int=value) for value in (0, int(base.shape[-1]), 1)]
    places = op.Unsqueeze(op.Range(*numbers), op.Constant(value_ints=[1]))
    there = op.Equal(op.Unsqueeze(index, op.Constant(value_ints=[-2])), places)
    added = op.Where(there, op.Unsqueeze(source, op.Constant(value_ints=[-2])), op.CastLike(0, source))
    return op.Add(base, op.ReduceSum(added, op.Constant(value_ints=[-1]), keepdims=0))


def float_bits(x: Any, dtype: int) -> Any:
    """The bits of float32 numbers as int32 (`x.view(torch.int32)`), computed: ONNX has no such op before opset 26.

    The exponent is found by binary search, every product and quotient is by a power of two, hence exact. -0.0 gives 0.
    """
    from onnxscript import opset18 as op

    if (str(x.dtype), int(dtype)) != ("FLOAT", 6):
        raise BackendError(f"ONNX export sees the bits of float32 as int32 only, not of {x.dtype} as type {dtype}")

    def number(value: float) -> Any:
        return op.Constant(value_float=value)

    size, power, exponent = op.Abs(x), number(2.0**-126), number(0.0)
    for step in (127, 64, 32, 16, 8, 4, 2, 1):
        trial = op.Mul(power, number(2.0**step))
        reached = op.GreaterOrEqual(size, trial)
        power = op.Where(reached, trial, power)
        exponent = op.Where(reached, op.Add(exponent, number(float(step))), exponent)
    fraction = op.Cast(op.Mul(op.Div(size, power), number(2.0**23)), to=6)
    whole = op.Mul(op.Cast(exponent, to=6), op.Constant(value=_int32(1 << 23)))
    bits = op.Where(op.IsInf(x), op.Constant(value=_int32(0x7F800000)), op.Add(whole, fraction))
    return op.Where(op.Less(x, number(0.0)), op.Add(bits, op.Constant(value=_int32(-(2**31)))), bits)


def _int32(value: int) -> Any:
    from onnx import TensorProto, helper

    return helper.make_tensor("", TensorProto.INT32, [], [value])
