"""A program to ONNX, with its caches as inputs and outputs."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import fx

from ..errors import BackendError
from ..manifest import EMBEDDED_BYTES, WEIGHTS_NAME
from ..program import Program
from .exporting import export_lifted
from .onnx_bytes import byte_linear
from .onnx_ops import cache_write, float_bits, linear, scatter_add_by_comparison
from .onnx_stages import note_passes, outline

OPSET = 18
OPSETS = (18, 24)
READERS = ("onnxruntime", "tensorrt")  # what a model is exported for
_EMBEDDED = 1_800_000_000  # a model file holds at most 2 GB
_KV_UPDATE = torch.ops.specc.kv_update.default


def lower(program: Program, path: Path) -> None:
    """Write the model of an engine's program. The runtime lends it the engine's weights: only small ones are inside.

    Args:
        path: the `.onnx` file, in a folder of the engine's.

    Raises:
        BackendError: as `export_onnx`.
    """
    ir, made = _translate(program, OPSET)
    _add_weights(made, program, lambda name: _lent(ir, name, program.weights[name]))
    ir.save(made.model, path)


def export_onnx(
    program: Program, path: Path, *, opset: int = OPSET, weights: Path | None = None, reader: str = READERS[0]
) -> None:
    """Write an ONNX model and check it.

    A step that is read by ONNX Runtime, or by a person, calls a function for each of its stages (`onnx_stages`);
    TensorRT gets it flat, without inputs that nothing reads. Inputs and outputs keep the names of the manifest; an
    output that replaces an input is called `<name>_out` (`target_k_0` in, `target_k_0_out` out: treat the input as
    consumed). Only the bucket's length `n` is dynamic.

    Args:
        program: bound by `BindState(form="functional")`.
        path: the `.onnx` file; its folder exists.
        opset: 18 writes caches by `ScatterElements`; from 24 on by `TensorScatter`.
        weights: a safetensors file in the same folder that holds every weight that the program reads: the model
            points into it, so several models share one copy and no values are needed here. None stores the weights in
            the model, or beside it in `<path>.data` where they are more than 1.8 GB.
        reader: `onnxruntime`, or `tensorrt` for forms that its parser takes.

    Raises:
        BackendError: onnx or onnxscript is missing, or the program holds ops without an ONNX function.
    """
    _check_form(program, path, weights)
    ir, made = _translate(program, opset, reader)
    _add_weights(
        made, program, lambda name: _stored(ir, weights, name) if weights else _tensor(name, program.weights[name])
    )
    if reader == READERS[0] and "report" in program.values:
        outline(ir, made.model)
    elif reader == "tensorrt":
        _drop_unread(made.model.graph)
    size = sum(program.weights[n].nbytes for n in program.weight_names())
    beside = f"{path.name}.data" if size > _EMBEDDED and not weights else None
    ir.save(made.model, path, external_data=beside)
    import onnx

    onnx.checker.check_model(str(path), full_check=True)


def _translate(program: Program, opset: int, reader: str = READERS[0]) -> tuple[Any, Any]:
    """`onnxscript.ir`, and the program as torch's exporter gives it, named; its weights are its last inputs."""
    try:
        import onnx  # noqa: F401
        from onnxscript import ir
    except ImportError as e:
        raise BackendError(f"ONNX needs onnx and onnxscript ({e}); pip install 'specc[onnx]'") from e
    try:
        with _quiet("torch.onnx"):
            tensorrt = reader == "tensorrt"
            table: dict[Any, Callable[..., Any]] = {
                _KV_UPDATE: cache_write(opset, floats_only=tensorrt),
                torch.ops.aten.view.dtype: float_bits,
                torch.ops.aten.linear.default: linear,
                **({} if tensorrt else {torch.ops.specc.byte_linear.default: byte_linear}),
            }
            if tensorrt:
                table[torch.ops.aten.scatter_add.default] = scatter_add_by_comparison
            exported = export_lifted(program)
            note_passes(program, exported.graph)
            # Not its optimizer: that spends two thirds of the export on patterns that do not occur here.
            made = torch.onnx.export(
                exported, (), opset_version=opset, custom_translation_table=table, verbose=False, optimize=False
            )
            assert made is not None
            _tidy(made.model)
    except Exception as e:
        raise BackendError(_explain(program, e)) from e
    _name(made.model, program)
    return ir, made


def _add_weights(made: Any, program: Program, value_of: Callable[[str], Any]) -> None:
    """Make initializers of the inputs that stand for weights."""
    graph = made.model.graph
    for name, value in zip(program.weight_names(), graph.inputs[_inputs(program) :], strict=True):
        value.name = name
        value.const_value = value_of(name)
        graph.initializers[name] = value
    del graph.inputs[_inputs(program) :]


def _check_form(program: Program, path: Path, weights: Path | None) -> None:
    if program.graph.find_nodes(op="call_function", target=torch.ops.aten.index_put_.default):
        raise BackendError(
            f"program {program.name} writes its caches in place, and ONNX would lose that; "
            'bind it with BindState(form="functional")'
        )
    if weights is not None and weights.resolve().parent != path.resolve().parent:
        raise BackendError(f"{path}: a model points to weights in its own folder only; copy {weights} there")
    if weights is not None and weights.stat().st_nlink > 1:
        raise BackendError(f"{weights}: has several hard links, and onnx refuses such files; make it a copy")


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """A logger that tells what torchvision lacks, and warnings about torch's own code, silent for a while."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _tidy(model: Any) -> None:
    """Fold constants, compute equal things once, drop what nobody reads."""
    from onnx_ir.passes import common
    from onnxscript import optimizer

    optimizer.fold_constants(model, onnx_shape_inference=False)
    common.IdentityEliminationPass()(model)
    common.CommonSubexpressionEliminationPass()(model)
    common.RemoveUnusedNodesPass()(model)


def _drop_unread(graph: Any) -> None:
    """Inputs that nothing reads, as the seed where noise is an input: a builder may keep them, or not."""
    for value in [value for value in graph.inputs if not value.uses() and not value.is_graph_output()]:
        graph.inputs.remove(value)


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


def _tensor(name: str, tensor: torch.Tensor) -> Any:
    from onnx_ir.tensor_adapters import TorchTensor

    return TorchTensor(tensor.contiguous().cpu(), name=name)


def _lent(ir: Any, name: str, tensor: torch.Tensor) -> Any:
    """What stands for a weight that the runtime lends; a copy of a small one."""
    from onnx_ir.tensor_adapters import from_torch_dtype

    if tensor.nbytes <= EMBEDDED_BYTES:
        return _tensor(name, tensor)
    shape, place = ir.Shape(tensor.shape), f"../{WEIGHTS_NAME}"
    return ir.ExternalTensor(place, 0, tensor.nbytes, from_torch_dtype(tensor.dtype), shape=shape, name=name)


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
    return stored if end - begin > EMBEDDED_BYTES else ir.Tensor(stored.numpy().copy(), dtype=stored.dtype, name=name)


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
