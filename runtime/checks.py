"""What is checked before an engine may run: its files, torch, the processor, the device."""

from __future__ import annotations

import hashlib
import math
import platform
from pathlib import Path, PurePosixPath

import torch

from ..errors import EngineError, EngineFormatError, EngineMismatchError, EngineVersionError
from ..manifest import MANIFEST_NAME, WEIGHTS_NAME, EngineManifest
from .state import dtype_of
from .text import TEXT_NAME, TOKENIZER_NAME

AGAIN = "compile it again with specc compile TARGET DRAFTER -o {}"
CPUINFO, MEMINFO = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def check_versions(engine: Path, manifest: EngineManifest) -> None:
    """Programs hold code that one minor release of torch runs.

    Raises:
        EngineVersionError: another torch made them.
    """
    built, here = _minor(manifest.torch_version), _minor(str(torch.__version__))
    if built != here:
        raise EngineVersionError(
            f"{engine}: compiled with torch {manifest.torch_version}, this is torch {torch.__version__}; "
            f"install that one with pip install 'torch=={built}.*', or {AGAIN.format(engine)}"
        )


def read_cpuinfo(path: Path = CPUINFO) -> dict[str, str]:
    """What Linux says about the first processor, by name; `flags` are its instruction sets, on ARM too."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # no such list on this system
        lines = []
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    return {"flags": found.get("Features", ""), **found}


def check_processor(engine: Path, manifest: EngineManifest, cpuinfo: Path = CPUINFO) -> None:
    """Native code uses the instructions of the processor it was compiled on; without them it would crash.

    Raises:
        EngineMismatchError: this processor is of another kind, or lacks some.
    """
    needed = manifest.processor
    machine = needed.get("machine", platform.machine())
    if machine != platform.machine():
        raise EngineMismatchError(
            f"{engine}: compiled for {machine} processors, this is {platform.machine()}; {AGAIN.format(engine)} here"
        )
    if not cpuinfo.is_file():
        return  # no such list on this system
    missing = sorted(set(needed.get("flags", ())) - set(read_cpuinfo(cpuinfo)["flags"].split()))
    if missing:
        raise EngineMismatchError(
            f"{engine}: compiled for a processor with {needed.get('isa', 'other instructions')}, "
            f"this one lacks {', '.join(missing)}; {AGAIN.format(engine)} here"
        )


def check_device(engine: Path, manifest: EngineManifest, device: str | torch.device | None) -> torch.device:
    """The device to run on.

    Raises:
        EngineMismatchError: another kind than the engine was compiled for, or one that is not there.
    """
    try:
        built, asked = torch.device(manifest.device), torch.device(device if device is not None else manifest.device)
    except (RuntimeError, TypeError) as e:
        raise EngineMismatchError(
            f"{engine}: device {device!r} is not known to torch; use device={manifest.device!r}"
        ) from e
    if asked.type != built.type:
        raise EngineMismatchError(
            f"{engine}: compiled for {built.type}, asked to run on {asked.type}; leave device out, or compile it again "
            f"with specc compile TARGET DRAFTER -o {engine} --device {asked.type}"
        )
    return _found(engine, asked, "--device cpu")


def check_draft_device(engine: Path, manifest: EngineManifest) -> torch.device | None:
    """The device that drafts, if it is apart from the target's.

    Raises:
        EngineMismatchError: it is not there.
    """
    if not manifest.draft_device:
        return None
    try:
        device = torch.device(manifest.draft_device)
    except (RuntimeError, TypeError) as e:
        raise EngineMismatchError(f"{engine}: device {manifest.draft_device!r} is not known to torch") from e
    return _found(engine, device, "--draft-device cpu")


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


def check_gpu(engine: Path, manifest: EngineManifest, device: torch.device) -> None:
    """Programs hold code for one compute capability.

    Raises:
        EngineMismatchError: this GPU has another.
    """
    built = manifest.processor.get("capability")
    if device.type != "cuda" or built is None:
        return
    here = "{}.{}".format(*torch.cuda.get_device_capability(device))
    if here != built:
        raise EngineMismatchError(
            f"{engine}: compiled for GPUs of compute capability {built} ({manifest.processor.get('gpu')}), {device} is "
            f"{torch.cuda.get_device_name(device)} of {here}; {AGAIN.format(engine)} here"
        )


def check_files(engine: Path, manifest: EngineManifest) -> None:
    """Every file that the manifest lists is there, unchanged; files that it does not list are not touched.

    Raises:
        EngineFormatError: a file is missing or changed, or one that would be read is not listed.
    """
    read = {WEIGHTS_NAME, *(program.file for program in manifest.programs.values())}
    read |= {name for name in (TOKENIZER_NAME, TEXT_NAME) if (engine / name).exists()}
    for name in sorted(read - set(manifest.files)):
        raise EngineFormatError(f"{engine}: {MANIFEST_NAME} lists no checksum of {name}; {AGAIN.format(engine)}")
    for name, digest in manifest.files.items():
        relative = PurePosixPath(name)
        path = engine / relative
        if relative.is_absolute() or ".." in relative.parts:
            raise EngineFormatError(
                f"{engine}: {MANIFEST_NAME} lists {name!r}, outside the engine; do not use this engine"
            )
        if not path.is_file():
            raise EngineFormatError(f"{engine}: {name} is missing; copy the whole folder, or {AGAIN.format(engine)}")
        found = _sha256(path)
        if found != digest:
            raise EngineFormatError(
                f"{engine}: {name} is damaged or was changed "
                f"(SHA-256 {found[:12]}..., the manifest says {digest[:12]}...); "
                f"copy the engine again, or {AGAIN.format(engine)}"
            )


def check_memory(
    engine: Path, manifest: EngineManifest, device: torch.device, meminfo: Path = MEMINFO, drafts: bool = False
) -> None:
    """There must be room for the state, before any of it is allocated; on a GPU for the weights too.

    Args:
        drafts: of the device that drafts apart from the target.

    Raises:
        EngineError: there is not; says what is needed, and what is free.
    """
    here = manifest.read_by(drafts)
    state = sum(
        math.prod(spec.shape) * torch.empty((), dtype=dtype_of(spec)).element_size()
        for spec in manifest.tensors
        if spec.role != "call" and spec.name in here
    )
    weights = (engine / WEIGHTS_NAME).stat().st_size if device.type == "cuda" else 0  # on the CPU mapped from the file
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else _available(meminfo)
    if free is not None and state + weights > free:
        parts = f"{_size(state)} for {manifest.batch} texts of {manifest.context} tokens"
        parts += f" and {_size(weights)} for its weights" if weights else ""
        raise EngineError(
            f"{engine}: needs {parts} on {device}, where {_size(free)} are free; end other programs, "
            f"or compile it again with a smaller --context or --batch"
        )


def _available(meminfo: Path) -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not say."""
    try:
        lines = meminfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _size(count: float) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as e:
        raise EngineFormatError(f"{path}: cannot be read ({e}); check its permissions and the disk") from e
