"""Devices: where an engine's programs run, and whether they can run there."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import torch

from ..errors import EngineError, EngineMismatchError
from ..manifest import EngineManifest
from .call import dtype_of
from .checks import AGAIN, MEMINFO, available_memory
from .weights import weight_bytes


class Devices(NamedTuple):
    """Where the target runs, and the drafter if that is apart from it."""

    target: torch.device
    drafter: torch.device | None = None

    def of(self, drafts: bool) -> torch.device:
        """Where a program runs, by whether it runs a drafter alone (`ProgramSpec.drafts`)."""
        return self.drafter if drafts and self.drafter is not None else self.target

    def distinct(self) -> tuple[torch.device, ...]:
        """Each once, the target's first."""
        return tuple(dict.fromkeys(device for device in self if device is not None))


def find_devices(engine: Path, manifest: EngineManifest, device: str | torch.device | None = None) -> Devices:
    """The devices to run on: `device` for the target, by default what the engine was compiled for.

    Raises:
        EngineMismatchError: another kind than the engine was compiled for, or one that is not there.
    """
    built = _device(engine, manifest.device, manifest)
    asked = built if device is None else _device(engine, device, manifest)
    if asked.type != built.type:
        raise EngineMismatchError(
            f"{engine}: compiled for {built.type}, asked to run on {asked.type}; leave device out, or compile it again "
            f"with specc compile TARGET DRAFTER -o {engine} --device {asked.type}"
        )
    target = _found(engine, asked, "--device cpu")
    if not manifest.draft_device:
        return Devices(target)
    drafter = _device(engine, manifest.draft_device, manifest)
    return Devices(target, _found(engine, drafter, "--draft-device cpu"))


def check_gpus(engine: Path, manifest: EngineManifest, devices: Devices) -> None:
    """Programs hold code for one compute capability.

    Raises:
        EngineMismatchError: a GPU has another than the one that the programs there were compiled on.
    """
    for device, name in zip(devices, (manifest.device, manifest.draft_device), strict=True):
        built = manifest.processor.get("gpus", {}).get(name)
        if device is None or device.type != "cuda" or built is None:
            continue
        here = "{}.{}".format(*torch.cuda.get_device_capability(device))
        if here != built["capability"]:
            raise EngineMismatchError(
                f"{engine}: compiled for GPUs of compute capability {built['capability']} ({built['name']}), {device} "
                f"is {torch.cuda.get_device_name(device)} of {here}; {AGAIN.format(engine)} here"
            )


def check_memory(engine: Path, manifest: EngineManifest, devices: Devices, meminfo: Path = MEMINFO) -> None:
    """There must be room for the state on each device, before any of it is allocated; on a GPU for the weights too.

    Raises:
        EngineError: there is not; says what is needed, and what is free.
    """
    for device in devices.distinct():
        state, weights = needed_bytes(engine, manifest, devices, device)
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory(meminfo)
        if free is not None and state + weights > free:
            parts = f"{_size(state)} for {manifest.batch} texts of {manifest.context} tokens"
            parts += f" and {_size(weights)} for its weights" if weights else ""
            raise EngineError(
                f"{engine}: needs {parts} on {device}, where {_size(free)} are free; end other programs, "
                f"or compile it again with a smaller --context or --batch"
            )


def needed_bytes(engine: Path, manifest: EngineManifest, devices: Devices, device: torch.device) -> tuple[int, int]:
    """Bytes of the state and of the weights that an engine takes on a device; on the CPU weights are mapped from their
    file, and take none. What recorded steps return, and their scratch, is not counted."""
    state, weights, stored = 0, 0, weight_bytes(engine)
    for drafts in (False, True)[: 1 + (devices.drafter is not None)]:
        if devices.of(drafts) != device:
            continue
        inputs, read = manifest.read_by(drafts), manifest.weights_of(drafts)
        state += sum(
            math.prod(spec.shape) * torch.empty((), dtype=dtype_of(spec)).element_size()
            for spec in manifest.tensors
            if spec.role != "call" and spec.name in inputs
        )
        if device.type == "cuda" and manifest.lends_weights:
            weights += sum(stored[name][1] for name in read if name in stored)
        elif device.type == "cuda":
            weights += sum((engine / spec.file).stat().st_size for spec in manifest.on(drafts))
    return state, weights


def _device(engine: Path, name: str | torch.device, manifest: EngineManifest) -> torch.device:
    try:
        return torch.device(name)
    except (RuntimeError, TypeError) as e:
        raise EngineMismatchError(
            f"{engine}: device {name!r} is not known to torch; use device={manifest.device!r}"
        ) from e


def _found(engine: Path, device: torch.device, instead: str) -> torch.device:
    """The device with its index: streams and graphs belong to one that is there."""
    if device.type != "cuda":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count <= (device.index or 0):
        seen = f"{count or 'no'} GPU{'s' * (count > 1)}"
        raise EngineMismatchError(
            f"{engine}: compiled for {device}, and torch {torch.__version__} sees {seen} here; run "
            f"it where torch.cuda.is_available(), or compile it again with {instead}"
        )
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
