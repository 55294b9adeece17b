"""A program's ONNX model, run step by step in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import onnxruntime
import torch
from torch import Tensor


class OnnxStep:
    """A model in ONNX Runtime as a step over the state; an output `<name>_out` replaces the input `<name>`."""

    def __init__(self, path: Path) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = 1, 3
        self.session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.inputs = [value.name for value in self.session.get_inputs()]
        self.outputs = [value.name for value in self.session.get_outputs()]

    def __call__(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        given = {name: state[name].numpy() for name in self.inputs}
        results = self.session.run(self.outputs, given)
        return {n.removesuffix("_out"): torch.from_numpy(r.copy()) for n, r in zip(self.outputs, results, strict=True)}
