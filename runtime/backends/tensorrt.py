"""The TensorRT back end: plans that write the engine's caches where they are, weights inside."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import EngineFault, EngineFormatError, EngineVersionError
from ...manifest import EngineManifest, ProgramSpec
from ...philox import NOISE, RACE, uniform
from ..call import Runner
from ..checks import AGAIN

LIBRARIES = ("tensorrt", "tensorrt_rtx")  # TensorRT, and TensorRT for RTX: one interface
OLDEST = "1.7.1"  # of TensorRT-RTX, whose plans were built
ALIGNMENT = 256  # bytes, of every address


def library() -> Any:
    """The TensorRT that is installed.

    Raises:
        EngineVersionError: there is none.
    """
    for name in LIBRARIES:
        try:
            return importlib.import_module(name)
        except ImportError:  # not installed, or without its libraries
            continue
    raise EngineVersionError(
        "TensorRT is not installed; pip install tensorrt, or tensorrt_rtx for a GeForce or RTX GPU"
    )


def release() -> str:
    """Which library that is, and its version: plans are for one."""
    return f"{library().__name__} {library().__version__}"


def check_tensorrt(device: torch.device) -> None:
    """Check that plans can be built and run there.

    Raises:
        EngineVersionError: TensorRT is not installed, too old, or the device is no GPU.
    """
    if device.type != "cuda":
        raise EngineVersionError(f"TensorRT runs on GPUs, not on {device}; give --device cuda, or --backend inductor")
    trt = library()
    if not hasattr(trt.LayerType, "KV_CACHE_UPDATE") or not hasattr(trt.ICudaEngine, "get_aliased_input_tensor"):
        raise EngineVersionError(
            f"{release()} cannot update caches in place; pip install -U {trt.__name__} (tried: tensorrt_rtx {OLDEST})"
        )


def check_release(engine: Path, manifest: EngineManifest) -> None:
    """Check that the TensorRT here is the one that the plans are for.

    Raises:
        EngineVersionError: it is another, or there is none.
    """
    built = manifest.processor.get("tensorrt", "another TensorRT")
    if built != release():
        raise EngineVersionError(
            f"{engine}: its plans are for {built}, and this is {release()}; install that one, or {AGAIN.format(engine)}"
        )


def new_log(trt: Any) -> Any:
    """A logger for a builder or a runtime, silent, whose `last()` is the latest error."""

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (trt.ILogger.INTERNAL_ERROR, trt.ILogger.ERROR):
                self.errors.append(message)

        def last(self) -> str:
            return self.errors[-1][:300] if self.errors else "it does not say why"

    return Log()


def open_tensorrt(path: Path, spec: ProgramSpec, device: torch.device) -> Runner:
    """A plan. An output `<name>_out` that `spec` does not name is a cache after the step's writes.

    It is read at its first call: each plan has the weights on the device anew, and a request needs two or three of an
    engine's programs.

    Raises:
        EngineVersionError: TensorRT is not installed.
        EngineFormatError: TensorRT cannot read the plan, or there is no memory for it (at the first call).
    """
    trt = library()

    @functools.cache
    def plan() -> _Plan:
        return _Plan(trt, new_log(trt), path.read_bytes(), spec, device)

    return lambda arguments: plan()(arguments)


class _Plan:
    """A plan and its execution context.

    A cache comes out where it went in, as TensorRT says of each output that shares an input's memory. The history may
    be read after it was written, so it comes out beside and is copied back.
    """

    def __init__(self, trt: Any, log: Any, plan: bytes, spec: ProgramSpec, device: torch.device) -> None:
        self.log, self.spec, self.device = log, spec, device
        with _on(device):
            self.runtime = trt.Runtime(log)
            self.engine = engine = self.runtime.deserialize_cuda_engine(plan)
            self.context = engine and engine.create_execution_context()
        if self.context is None:
            raise EngineFormatError(
                f"{spec.file}: {release()} cannot open this plan on {device} ({log.last()}); free memory there, or "
                "compile again here: a plan is for one kind of GPU"
            )
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        self.given = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self.noise = [name for name in self.given if name.startswith(NOISE)]
        self.free = [name for name in self.given if -1 in tuple(engine.get_tensor_shape(name))]  # the bucket
        kinds = {name: _dtype(trt, engine.get_tensor_dtype(name)) for name in names if name not in self.given}
        written = {name: engine.get_aliased_input_tensor(name) for name in kinds}
        self.in_place = {cache: name for name, cache in written.items() if cache}
        self.beside = {name: kind for name, kind in kinds.items() if not written[name]}

    def __call__(self, arguments: list[Tensor]) -> Sequence[Tensor]:
        values = dict(zip(self.spec.inputs, arguments, strict=True))
        for name in self.noise:
            values[name] = self._drawn(name, values)
        for name in self.free:
            self._done(self.context.set_input_shape(name, tuple(values[name].shape)))
        given = {name: self._aligned(name, values[name]) for name in self.given}
        results = {}
        for name, kind in self.beside.items():
            results[name] = torch.empty(tuple(self.context.get_tensor_shape(name)), dtype=kind, device=self.device)
        written = {name: given[cache] for cache, name in self.in_place.items()}
        for name, tensor in {**given, **written, **results}.items():
            self._done(self.context.set_tensor_address(name, tensor.data_ptr()))
        self._done(self.context.execute_async_v3(_stream(self.device)))
        named = {name.removesuffix("_out"): tensor for name, tensor in results.items()}
        for name in named.keys() - set(self.spec.outputs):
            values[name].copy_(named[name])
        return [named[name] for name in self.spec.outputs]

    def _aligned(self, name: str, tensor: Tensor) -> Tensor:
        """The tensor, or a copy of a small one whose address TensorRT does not take, as of a batch's second row."""
        if tensor.data_ptr() % ALIGNMENT == 0:
            return tensor
        if name in self.in_place:
            raise EngineFault(f"{self.spec.file}: cache {name} is not at a multiple of {ALIGNMENT} bytes")
        return tensor.clone()

    def _drawn(self, name: str, values: dict[str, Tensor]) -> Tensor:
        """`[B, T, V]` uniform numbers for the T positions behind the root, as the other back ends' graphs make them."""
        _, count, size = self.engine.get_tensor_shape(name)
        length = values["target_length"]
        positions = length[:, None] + torch.arange(1, count + 1, device=length.device)
        return uniform(values["seed"], values["sample"], positions, RACE, size)

    def _done(self, done: bool) -> None:
        if not done:
            raise EngineFault(f"{self.spec.file}: TensorRT cannot run it ({self.log.last()}); compile the engine again")


def _dtype(trt: Any, kind: Any) -> torch.dtype:
    """torch's name of one of TensorRT's."""
    table = {"FLOAT": torch.float32, "HALF": torch.float16, "BF16": torch.bfloat16, "BOOL": torch.bool}
    table |= {"INT64": torch.int64, "INT32": torch.int32, "INT8": torch.int8, "UINT8": torch.uint8}
    return next(dtype for name, dtype in table.items() if kind == getattr(trt.DataType, name))


def _on(device: torch.device) -> Any:
    return torch.cuda.device(device)


def _stream(device: torch.device) -> int:
    """The handle of torch's stream, on which everything else of the step is."""
    return int(torch.cuda.current_stream(device).cuda_stream)
