"""A program to a TensorRT plan, by way of its ONNX model: one engine that writes its caches in place, or an error."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from ..errors import BackendError
from ..passes.inputs import role
from ..program import Program
from ..runtime.backends.tensorrt import library, new_log
from .onnx import export_onnx
from .onnx_stages import NOTE

OPSET = 24  # the first whose cache writes become a layer of TensorRT's own
USUAL = 512  # cache slots for which kernels are chosen
CACHE_AXES = 4  # of keys, values and features; the history has two, and is copied
SLOTS = 128  # whose rows, of 2 bytes or more each, are a multiple of the 256 that addresses must be
UPDATE = "KV_CACHE_UPDATE"


def lower(program: Program, path: Path) -> None:
    """Write a plan for the GPU that is here, weights inside.

    Args:
        program: bound by `BindState(form="functional", noise="input")`.
        path: the `.plan` file; its folder exists.

    Raises:
        BackendError: TensorRT is not installed, or cannot take the program as one engine; says which op of which pass.
    """
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:  # beside the plan: it has the weights too
        model = Path(folder) / f"{program.name}.onnx"
        export_onnx(program, model, opset=OPSET, reader="tensorrt")
        plan, layers = build(model, program.sizes.slots - 1)
    values = program.values.items()
    caches = [name for name, node in values if role(name) == "cache" and node.meta["val"].ndim == CACHE_AXES]
    if layers[UPDATE] != len(caches):  # a copy would cost more than the step
        raise BackendError(
            f"program {program.name}: TensorRT would write {layers[UPDATE]} of {len(caches)} caches in place and copy "
            "the others; use --backend inductor"
        )
    path.write_bytes(plan)


def build(model: Path, longest: int, capability: str | None = None) -> tuple[memoryview, Counter[str]]:
    """Parse a model and build its plan.

    Args:
        model: what `export_onnx(reader="tensorrt")` wrote.
        longest: most cache slots that are read.
        capability: of the GPU that it is for, as `SM86`, ahead of time with TensorRT-RTX; None is the one here.

    Returns:
        The plan, and how many layers of each kind it was made from.

    Raises:
        BackendError: as `lower`.
    """
    trt = library()
    log = new_log(trt)
    builder = trt.Builder(log)
    network = builder.create_network(_strongly_typed(trt))
    parser = trt.OnnxParser(network, log)
    if not parser.parse_from_file(str(model)):
        raise BackendError(_refused(model, [parser.get_error(i) for i in range(parser.num_errors)]))
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    config.clear_flag(trt.BuilderFlag.TF32)  # float32 is what was asked for
    for value in map(network.get_input, range(network.num_inputs)):
        if -1 in tuple(value.shape):  # the bucket
            profile.set_shape(value.name, [2], [min(USUAL, longest)], [longest])
    config.add_optimization_profile(profile)
    if capability is not None:
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise BackendError(
            f"program {model.stem}: TensorRT {trt.__version__} cannot build it as one engine ({log.last()}); "
            "use --backend inductor"
        )
    return memoryview(plan), Counter(network.get_layer(i).type.name for i in range(network.num_layers))


def _strongly_typed(trt: Any) -> int:
    """Types are the model's: the only way in TensorRT-RTX, and a flag elsewhere."""
    flag = getattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    return 0 if flag is None else 1 << int(flag)


def _refused(model: Path, errors: list[Any]) -> str:
    """Which ops the parser did not take, and which pass made them."""
    import onnx

    nodes = onnx.load(model, load_external_data=False).graph.node
    makers = {node.name: entry.value for node in nodes for entry in node.metadata_props if entry.key == NOTE}
    ops = sorted({f"{e.node_operator()} (made by {makers.get(e.node_name(), 'capture')}): {e.desc()}" for e in errors})
    said = "; ".join(ops)[:600]
    return f"program {model.stem} holds ops that TensorRT does not take: {said}; --without PASS leaves a pass out"
