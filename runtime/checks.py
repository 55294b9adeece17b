"""What is checked before an engine may run: its files, torch, the processor; `devices` checks the rest."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path, PurePosixPath

import torch

from ..errors import EngineFormatError, EngineMismatchError, EngineVersionError
from ..manifest import MANIFEST_NAME, WEIGHTS_NAME, EngineManifest
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


def available_memory(meminfo: Path) -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not say."""
    try:
        lines = meminfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)


def _minor(version: str) -> str:
    return ".".join(version.split("+")[0].split(".")[:2])


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as e:
        raise EngineFormatError(f"{path}: cannot be read ({e}); check its permissions and the disk") from e
