"""A program to ONNX, with its caches as inputs and outputs."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ..errors import BackendError
from ..program import Program
from .exporting import export_lifted

OPSET = 18
_TENSOR_SCATTER = 24  # the first opset that can write a cache as one op
_EMBEDDED = 1_800_000_000  # a model file holds at most 2 GB
_SMALL = 1024  # ONNX Runtime wants to see the values of indices and shapes in the model itself
_KV_UPDATE = torch.ops.specc.kv_update.default


def export_onnx(program: Program, path: Path, *, opset: int = OPSET, weights: Path | None = None) -> None:
    """Write an ONNX model and check it.

    Inputs and outputs keep the names of the manifest; an output that replaces an input is called `<name>_out`
    (`target_k_0` in, `target_k_0_out` out: treat the input as consumed). Only the bucket's length `n` is dynamic.

    Args:
        program: bound by `BindState(form="functional")`.
        path: the `.onnx` file; its folder exists.
        opset: 18 writes caches by `ScatterElements`; from 24 on by `TensorScatter`.
        weights: a safetensors file in the same folder that holds every weight that the program reads: the model
            points into it, so several models share one copy and no values are needed here. None stores the weights in
            the model, or beside it in `<path>.data` where they are more than 1.8 GB.

    Raises:
        BackendError: onnx or onnxscript is missing, or the program holds ops without an ONNX function.
    """
    try:
        import onnx
        from onnxscript import ir
    except ImportError as e:
        raise BackendError(f"ONNX export needs onnx and onnxscript ({e}); pip install 'specc[onnx]'") from e
    _check_form(program, path, weights)
    try:
        with warnings.catch_warnings(), _quiet("torch.onnx", "onnxscript"):
            warnings.simplefilter("ignore")
            table = {_KV_UPDATE: _cache_write(opset), torch.ops.aten.view.dtype: _bits}
            exported = export_lifted(program)
            # Not its optimizer: that spends two thirds of the export on patterns that do not occur here.
            made = torch.onnx.export(
                exported, (), opset_version=opset, custom_translation_table=table, verbose=False, optimize=False
            )
            assert made is not None
            _tidy(made.model)
    except Exception as e:
        raise BackendError(_explain(program, e)) from e
    _name(made.model, program)
    for name, value in zip(program.weight_names(), made.model.graph.inputs[_inputs(program) :], strict=True):
        value.name = name
        value.const_value = _stored(ir, weights, name) if weights else _tensor(ir, name, program.weights[name])
        made.model.graph.initializers[name] = value
    del made.model.graph.inputs[_inputs(program) :]
    size = sum(program.weights[n].nbytes for n in program.weight_names())
    beside = f"{path.name}.data" if size > _EMBEDDED and not weights else None
    ir.save(made.model, path, external_data=beside)
    onnx.checker.check_model(str(path), full_check=True)


def _check_form(program: Program, path: Path, weights: Path | None) -> None:
    if program.graph.find_nodes(op="call_function", target=torch.ops.aten.index_put_.default):
        raise BackendError(
            f"program {program.name} writes its caches in place, and ONNX would lose that; "
            'bind it with BindState(form="functional")'
        )
    if weights is not None and weights.resolve().parent != path.resolve().parent:
        raise BackendError(f"{path}: a model points to weights in its own folder only; copy {weights} there")


class _quiet:
    """Loggers that tell what torchvision lacks, silent for a while."""

    def __init__(self, *names: str) -> None:
        self.loggers = [logging.getLogger(name) for name in names]

    def __enter__(self) -> None:
        self.levels = [logger.level for logger in self.loggers]
        for logger in self.loggers:
            logger.setLevel(logging.ERROR)

    def __exit__(self, *_: object) -> None:
        for logger, level in zip(self.loggers, self.levels, strict=True):
            logger.setLevel(level)


def _tidy(model: Any) -> None:
    """Fold constants, compute equal things once, drop what nobody reads."""
    from onnx_ir.passes import common
    from onnxscript import optimizer

    optimizer.fold_constants(model, onnx_shape_inference=False)
    common.IdentityEliminationPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)


def _inputs(program: Program) -> int:
    return len(program.graph.find_nodes(op="placeholder"))


def _name(model: Any, program: Program) -> None:
    """Names of inputs and outputs, and `n` for the one dynamic size, everywhere."""
    inputs: list[fx.Node] = program.graph.find_nodes(op="placeholder")
    names = [str(node.target) for node in inputs]
    for value, name in zip(model.graph.inputs[: len(names)], names, strict=True):
        value.name = name
    for value, name in zip(model.graph.outputs, program.values, strict=True):
        value.name = f"{name}_out" if name in names else name
    free = {str(size): "n" for node in inputs for size in node.meta["val"].shape if isinstance(size, torch.SymInt)}
    values = [*model.graph.inputs, *(out for node in model.graph for out in node.outputs)]
    for value in values:
        if value.shape is not None:
            for axis, size in enumerate(value.shape):
                if str(getattr(size, "value", size)) in free:
                    value.shape[axis] = free[str(getattr(size, "value", size))]


def _tensor(ir: Any, name: str, tensor: torch.Tensor) -> Any:
    from onnx_ir.tensor_adapters import TorchTensor

    return TorchTensor(tensor.contiguous().cpu(), name=name)


def _stored(ir: Any, file: Path, name: str) -> Any:
    """A reference to the bytes of one tensor of a safetensors file; a copy of a small one."""
    from onnx_ir.tensor_adapters import from_torch_dtype

    from .graphs import torch_dtype

    with file.open("rb") as stream:
        size = int.from_bytes(stream.read(8), "little")
        entry = json.loads(stream.read(size))[name]
    begin, end = entry["data_offsets"]
    stored = ir.ExternalTensor(
        file.name,
        8 + size + begin,
        end - begin,
        from_torch_dtype(torch_dtype(entry["dtype"])),
        shape=ir.Shape(entry["shape"]),
        name=name,
        base_dir=str(file.parent),
    )
    return stored if end - begin > _SMALL else ir.Tensor(stored.numpy().copy(), dtype=stored.dtype, name=name)


def _cache_write(opset: int) -> Callable[..., Any]:
    """`specc::kv_update` as one op of the opset."""
    if opset >= _TENSOR_SCATTER:
        from onnxscript.onnx_opset import opset24

        return lambda cache, new, start: opset24.TensorScatter(cache, new, start, axis=-2)
    from onnxscript import opset18 as op

    def write(cache: Any, new: Any, start: Any) -> Any:
        batch, heads, count, size = map(int, new.shape)
        rows = op.Constant(value_ints=list(range(count)))
        slots = op.Add(op.Reshape(start, op.Constant(value_ints=[batch, 1])), rows)
        slots = op.Reshape(slots, op.Constant(value_ints=[batch, 1, count, 1]))
        index = op.Expand(slots, op.Constant(value_ints=[batch, heads, count, size]))
        return op.ScatterElements(cache, index, new, axis=2)

    return write


def _bits(x: Any, dtype: int) -> Any:
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


def _explain(program: Program, error: BaseException) -> str:
    """Which ops have no ONNX function, and which pass made them."""
    chain: BaseException | None = error
    text = ""
    while chain is not None:
        text += f"{chain}\n"
        chain = chain.__cause__ or chain.__context__
    makers: dict[str, set[str]] = {}
    for node in program.graph.nodes:
        target = node.target
        if isinstance(target, torch._ops.OpOverload) and any(
            form in text for form in (repr(target), f"target=torch.ops.{target}")
        ):
            makers.setdefault(str(target), set()).add(node.meta.get("specc_pass", "capture"))
    ops = "; ".join(f"{op} (made by {', '.join(sorted(passes))})" for op, passes in sorted(makers.items()))
    if ops:
        return f"program {program.name} holds ops without an ONNX function: {ops}; --without PASS leaves a pass out"
    return f"torch.onnx cannot export program {program.name}: {type(error).__name__}: {str(error)[:300]}"
