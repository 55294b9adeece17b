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
from ...manifest import ProgramSpec
from ...philox import uniform
from ..call import Runner

LIBRARIES = ("tensorrt", "tensorrt_rtx")  # TensorRT, and TensorRT for RTX: one interface
NOISE = "noise_"  # inputs that are filled here, for want of ops on bits in the plan
RACE = 0  # the stream of `specc::noise` that they hold


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


def check_tensorrt(device: torch.device) -> None:
    """Check that plans can be built and run there.

    Raises:
        EngineVersionError: TensorRT is not installed, or the device is no GPU.
    """
    if device.type != "cuda":
        raise EngineVersionError(f"TensorRT runs on GPUs, not on {device}; give --device cuda, or --backend inductor")
    library()


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
        EngineFormatError: TensorRT cannot read the plan (at the first call).
    """
    trt = library()

    @functools.cache
    def bound() -> _Bound:
        log = new_log(trt)
        with _on(device):
            runtime = trt.Runtime(log)
            engine = runtime.deserialize_cuda_engine(path.read_bytes())
            if engine is None:
                raise EngineFormatError(
                    f"{path}: {trt.__name__} {trt.__version__} cannot read this plan on {device} ({log.last()}); "
                    "a plan is for one release and one kind of GPU: compile again here"
                )
            return _Bound(trt, runtime, engine, spec, device)

    return lambda arguments: bound()(arguments)


class _Bound:
    """An execution context, with the addresses that it was told last.

    A cache comes out where it went in, as TensorRT says of each output that shares an input's memory. The history may
    be read after it was written, so it comes out beside and is copied back.
    """

    def __init__(self, trt: Any, runtime: Any, engine: Any, spec: ProgramSpec, device: torch.device) -> None:
        self.runtime, self.engine, self.spec, self.device = runtime, engine, spec, device
        self.context = engine.create_execution_context()
        names = [engine.get_tensor_name(i) for i in range(engine.num_io_tensors)]
        given = [name for name in names if engine.get_tensor_mode(name) == trt.TensorIOMode.INPUT]
        self.read = [name for name in given if not name.startswith(NOISE)]
        self.noise = [name for name in given if name.startswith(NOISE)]
        self.results = {name: _dtype(trt, engine.get_tensor_dtype(name)) for name in names if name not in given}
        alias = {name: engine.get_aliased_input_tensor(name) for name in self.results}
        self.in_place = {given: name for name, given in alias.items() if given}
        self.told: dict[str, tuple[int, torch.Size]] = {}

    def __call__(self, arguments: list[Tensor]) -> Sequence[Tensor]:
        values = dict(zip(self.spec.inputs, arguments, strict=True))
        for name in self.noise:
            values[name] = self._drawn(name, values)
        for name in (*self.read, *self.noise):
            self._tell(name, values[name])
            if name in self.in_place:
                self._tell(self.in_place[name], values[name])
        beside = {}
        for name, dtype in self.results.items():
            if name not in self.in_place.values():
                shape = tuple(self.context.get_tensor_shape(name))
                beside[name] = torch.empty(shape, dtype=dtype, device=self.device)
                self.context.set_tensor_address(name, beside[name].data_ptr())
        if not self.context.execute_async_v3(_stream(self.device)):
            raise EngineFault(f"TensorRT could not run {self.spec.file}; compile the engine again")
        results = {name.removesuffix("_out"): tensor for name, tensor in beside.items()}
        for name in results.keys() - set(self.spec.outputs):
            values[name].copy_(results[name])
        return [results[name] for name in self.spec.outputs]

    def _drawn(self, name: str, values: dict[str, Tensor]) -> Tensor:
        """`[B, T, V]` uniform numbers for the T positions behind the root, as the other back ends' graphs make them."""
        _, count, size = self.engine.get_tensor_shape(name)
        length = values["target_length"]
        positions = length[:, None] + torch.arange(1, count + 1, device=length.device)
        return uniform(values["seed"], values["sample"], positions, RACE, size)

    def _tell(self, name: str, tensor: Tensor) -> None:
        here = tensor.data_ptr(), tensor.shape
        if self.told.get(name) != here:
            if name in self.read and -1 in tuple(self.engine.get_tensor_shape(name)):
                self.context.set_input_shape(name, tuple(tensor.shape))
            self.context.set_tensor_address(name, tensor.data_ptr())
            self.told[name] = here


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
