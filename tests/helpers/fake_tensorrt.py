"""TensorRT's Python interface over ONNX Runtime: what a plan says of itself, and what a context reads and writes.

A plan is the ONNX model itself. Nothing of a GPU is here: addresses are the CPU's.
"""

from __future__ import annotations

import ctypes
from enum import Enum
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime

ALIGNMENT = 64  # bytes: what torch's tensors on the CPU have; TensorRT asks for 256
__version__ = "0 (fake)"
_NUMPY = {"FLOAT": np.float32, "HALF": np.float16, "BOOL": np.bool_, "INT64": np.int64, "INT32": np.int32} | {
    "INT8": np.int8, "UINT8": np.uint8, "BF16": None
}  # fmt: skip
DataType = Enum("DataType", list(_NUMPY))
TensorIOMode = Enum("TensorIOMode", ["NONE", "INPUT", "OUTPUT"])
LayerType = Enum("LayerType", ["KV_CACHE_UPDATE", "ELEMENTWISE"])
BuilderFlag = Enum("BuilderFlag", ["TF32"])
NetworkDefinitionCreationFlag = SimpleNamespace(STRONGLY_TYPED=0)


class ILogger:
    INTERNAL_ERROR, ERROR, WARNING = range(3)


class Builder:
    def __init__(self, log: Any) -> None:
        self.log = log

    def create_network(self, flags: int) -> Network:
        assert flags == 1
        return Network()

    def create_builder_config(self) -> Any:
        self.cleared, self.profiles, self.ranges = [], [], dict[str, tuple[list[int], ...]]()
        return SimpleNamespace(clear_flag=self.cleared.append, add_optimization_profile=self.profiles.append)

    def create_optimization_profile(self) -> Any:
        return SimpleNamespace(set_shape=lambda name, *sizes: self.ranges.update({name: sizes}))

    def build_serialized_network(self, network: Network, config: Any) -> bytes | None:
        assert self.cleared == [BuilderFlag.TF32] and len(self.profiles) == 1
        assert all(-1 not in value.shape or value.name in self.ranges for value in network.inputs)
        assert all(low <= usual <= high for low, usual, high in self.ranges.values())
        if network.fails:
            self.log.log(ILogger.ERROR, network.fails)
            return None
        return network.model


class Network:
    """A parsed model; `fails` and `copies` are for tests to set on the class."""

    fails, copies = "", 0

    def parse(self, path: Path) -> None:
        self.model, graph = path.read_bytes(), onnx.load(path).graph
        self.inputs = [_value(value) for value in graph.input]
        updates = [LayerType.KV_CACHE_UPDATE for node in graph.node if node.op_type == "TensorScatter"]
        self.kinds = [LayerType.ELEMENTWISE] * (len(graph.node) - len(updates)) + updates[self.copies :]
        self.num_inputs, self.num_layers = len(self.inputs), len(self.kinds)

    def get_input(self, i: int) -> Any:
        return self.inputs[i]

    def get_layer(self, i: int) -> Any:
        return SimpleNamespace(type=self.kinds[i])


class OnnxParser:
    """`refuses` is an op that a test lets it refuse."""

    refuses = ""

    def __init__(self, network: Network, log: Any) -> None:
        self.network = network

    def parse_from_file(self, path: str) -> bool:
        self.errors = [node for node in onnx.load(path).graph.node if node.op_type == self.refuses]
        self.num_errors = len(self.errors)
        self.network.parse(Path(path))
        return not self.errors

    def get_error(self, i: int) -> Any:
        node = self.errors[i]
        told = {"node_operator": node.op_type, "node_name": node.name, "desc": "no such op"}
        return SimpleNamespace(**{name: lambda value=value: value for name, value in told.items()})


class Runtime:
    def __init__(self, log: Any) -> None:
        self.log = log

    def deserialize_cuda_engine(self, plan: bytes) -> Engine | None:
        try:
            return Engine(plan)
        except Exception as e:
            self.log.log(ILogger.ERROR, str(e))
            return None


class Engine:
    def __init__(self, plan: bytes) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(plan, options, providers=["CPUExecutionProvider"])
        model = onnx.load_from_string(plan)
        graph = model.graph
        self.values = {v.name: (_value(v), mode) for v, mode in _both(graph)}
        self.names = list(self.values)
        self.num_io_tensors = len(self.names)
        written = {out: node.input[0] for node in graph.node for out in node.output if node.op_type == "TensorScatter"}
        self.alias = {name: written.get(name, "") for name in self.names}

    def get_tensor_name(self, i: int) -> str:
        return self.names[i]

    def get_tensor_mode(self, name: str) -> Any:
        return self.values[name][1]

    def get_tensor_dtype(self, name: str) -> Any:
        return self.values[name][0].dtype

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.values[name][0].shape

    def get_aliased_input_tensor(self, name: str) -> str:
        return self.alias[name]

    def create_execution_context(self) -> Context:
        return Context(self)


class Context:
    def __init__(self, engine: Engine) -> None:
        self.engine, self.addresses, self.shapes = engine, dict[str, int](), dict[str, tuple[int, ...]]()

    def set_input_shape(self, name: str, shape: tuple[int, ...]) -> bool:
        assert self.engine.get_tensor_mode(name) == TensorIOMode.INPUT
        self.shapes[name] = shape
        return True

    def set_tensor_address(self, name: str, address: int) -> bool:
        assert address % ALIGNMENT == 0, f"{name} is not aligned"
        self.addresses[name] = address
        return True

    def get_tensor_shape(self, name: str) -> tuple[int, ...]:
        return self.shapes.get(name, self.engine.get_tensor_shape(name))

    def execute_async_v3(self, stream: int) -> bool:
        arrays = {name: self._array(name) for name in self.engine.names}
        given = [n for n in arrays if self.engine.get_tensor_mode(n) == TensorIOMode.INPUT]
        results = [n for n in arrays if n not in given]
        for name, alias in self.engine.alias.items():
            assert not alias or self.addresses[name] == self.addresses[alias], "an update writes where its cache is"
        made = self.engine.session.run(results, {name: arrays[name].copy() for name in given})
        for name, value in zip(results, made, strict=True):
            arrays[name][...] = value
        return True

    def _array(self, name: str) -> Any:
        """The memory at the address that was told for a tensor, in its shape."""
        shape = self.get_tensor_shape(name)
        assert -1 not in shape, f"{name} was given no shape"
        kind = np.dtype(_NUMPY[self.engine.get_tensor_dtype(name).name])
        size = int(np.prod(shape)) * kind.itemsize
        memory = (ctypes.c_char * size).from_address(self.addresses[name])
        return np.frombuffer(memory, kind).reshape(shape)


def _value(value: Any) -> Any:
    shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in value.type.tensor_type.shape.dim)
    kind = onnx.TensorProto.DataType.Name(value.type.tensor_type.elem_type)
    kind = {"FLOAT16": "HALF", "BFLOAT16": "BF16"}.get(kind, kind)
    return SimpleNamespace(name=value.name, shape=shape, dtype=DataType[kind])


def _both(graph: Any) -> list[tuple[Any, Any]]:
    given = [(v, TensorIOMode.INPUT) for v in graph.input]
    return given + [(v, TensorIOMode.OUTPUT) for v in graph.output]
