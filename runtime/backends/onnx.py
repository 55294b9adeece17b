"""The ONNX back end: models in ONNX Runtime that share the engine's weights, and write its caches where they are."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import EngineFormatError, EngineVersionError
from ...manifest import EMBEDDED_BYTES, ProgramSpec
from ..call import Runner

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}  # by type of device
OLDEST = "1.32"  # that was tried
IN_PLACE_AXES = 4  # of keys and values [B, G, S, D], and of features [B, 1, S, F]


def check_provider(device: torch.device) -> None:
    """Check that this ONNX Runtime can work there. (It is a package of its own for each kind of GPU.)

    Raises:
        EngineVersionError: it cannot; says which package can.
    """
    import onnxruntime

    wanted, there = PROVIDERS.get(device.type), onnxruntime.get_available_providers()
    package = "onnxruntime" if device.type == "cpu" else "onnxruntime-gpu"
    if not hasattr(onnxruntime.OrtValue, "from_dlpack"):
        raise EngineVersionError(
            f"ONNX Runtime {onnxruntime.__version__} cannot be lent tensors; pip install '{package}>={OLDEST}'"
        )
    if wanted not in there:
        raise EngineVersionError(
            f"ONNX Runtime {onnxruntime.__version__} has no provider for {device} (it has {', '.join(there)}); "
            f"pip uninstall onnxruntime, then pip install {package}"
        )


def open_onnx(
    path: Path, spec: ProgramSpec, weights: Mapping[str, Tensor], device: torch.device, threads: int | None
) -> Runner:
    """A model that is lent the weights it reads. An output `<name>_out` that `spec` does not name is a cache after the
    step's writes.

    It is opened at its first call: ONNX Runtime packs the weights of each session anew, which costs seconds and the
    memory of a copy, and a request needs two or three of an engine's programs. Prefill is not worth a copy.

    Raises:
        EngineVersionError: ONNX Runtime is not installed; at the first call also: it would run the model elsewhere.
        EngineFormatError: ONNX Runtime cannot open the model (at the first call).
    """
    try:
        import onnxruntime
    except ImportError as e:
        raise EngineVersionError(f"{path}: runs in ONNX Runtime ({e}); pip install onnxruntime") from e
    check_provider(device)

    @functools.cache
    def bound() -> _Bound:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or torch.get_num_threads()
        options.log_severity_level = 3
        if not spec.rule:
            options.add_session_config_entry("session.disable_prepacking", "1")
        large = [name for name in spec.weights if weights[name].nbytes > EMBEDDED_BYTES]
        lent = {name: onnxruntime.OrtValue.from_dlpack(weights[name]) for name in large}
        options.add_external_initializers(list(lent), list(lent.values()))
        provider = PROVIDERS[device.type]
        where = {"device_id": str(device.index or 0)} if device.type == "cuda" else {}
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=[(provider, where)])
        except Exception as e:  # its errors have no common class
            reason = f"ONNX Runtime {onnxruntime.__version__} cannot open this program ({str(e)[:300]})"
            raise EngineFormatError(f"{path}: {reason}; compile again") from e
        if session.get_providers()[:1] != [provider]:  # it goes on with another without a word
            raise EngineVersionError(
                f"{path}: would run on {', '.join(session.get_providers())}, not on {provider}: its libraries (of CUDA "
                "and cuDNN, say) do not load; see what onnxruntime.preload_dlls() says"
            )
        return _Bound(session, spec, lent, device)

    return lambda arguments: bound()(arguments)


class _Bound:
    """A session with tensors bound by address: those that stay where they are, once.

    Keys, values and features come out where they went in. That is safe: a step writes slots from its text's length on,
    and reads only those before it (of keys and values by its mask, of features by index), so it does not matter which
    comes first; and ONNX Runtime scatters in place when both addresses are one. The history may be read after it was
    written, so it comes out beside and is copied back.
    """

    def __init__(self, session: Any, spec: ProgramSpec, lent: Mapping[str, Any], device: torch.device) -> None:
        self.session, self.lent = session, lent  # the session reads the memory that `lent` holds
        self.device, self.place = device, (device.type, device.index or 0)
        self.binding = session.io_binding()
        self.bound: dict[str, tuple[int, torch.Size]] = {}
        self.inputs, read = spec.inputs, {value.name for value in session.get_inputs()}
        self.read = [name in read for name in spec.inputs]
        given = {value.name: len(value.shape) for value in session.get_outputs()}
        caches = [name for name in spec.inputs if f"{name}_out" in given and name not in spec.outputs]
        self.in_place = {name for name in caches if given[f"{name}_out"] == IN_PLACE_AXES}
        beside = [name for name in caches if name not in self.in_place]
        self.beside, self.results = [spec.inputs.index(name) for name in beside], len(spec.outputs)
        for name in (*beside, *spec.outputs):
            self.binding.bind_output(f"{name}_out" if f"{name}_out" in given else name, *self.place)

    def __call__(self, arguments: list[Tensor]) -> Sequence[Tensor]:
        for name, tensor, read in zip(self.inputs, arguments, self.read, strict=True):
            here = tensor.data_ptr(), tensor.shape
            if read and self.bound.get(name) != here:
                self._bind(self.binding.bind_input, name, tensor)
                if name in self.in_place:
                    self._bind(self.binding.bind_output, f"{name}_out", tensor)
                self.bound[name] = here
        if self.device.type == "cuda":  # it works on a stream of its own, and waits for that before it returns
            torch.cuda.current_stream(self.device).synchronize()
        self.session.run_with_iobinding(self.binding)
        values = [torch.from_dlpack(value) for value in self.binding.get_outputs()]  # in the order of binding
        for cache, value in zip(self.beside, values, strict=False):
            arguments[cache].copy_(value)
        return [value.clone() for value in values[len(self.beside) :][: self.results]]  # the next run writes there

    def _bind(self, bind: Any, name: str, tensor: Tensor) -> None:
        kind = torch.empty(0, dtype=tensor.dtype).numpy().dtype.type
        bind(name, *self.place, kind, tuple(tensor.shape), tensor.data_ptr())
