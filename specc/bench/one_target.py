"""One target: engines that are compared must have it, and nothing may be asked for that is measured on one engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..errors import ConfigError
from ..manifest import EngineManifest
from .config import BenchConfig


def check_request(folders: Sequence[str], config: BenchConfig) -> None:
    """Before any manifest is read.

    Raises:
        ConfigError: something is asked for that is measured on one engine, or an engine is given twice.
    """
    for name in ("batch", "processors"):
        if getattr(config, name):
            value = f" {config.batch}" if name == "batch" else ""
            raise ConfigError(
                f"--{name} is measured on one engine and {len(folders)} are given ({', '.join(folders)}); type "
                f"specc bench {folders[0]} --{name}{value}"
            )
    places = [Path(folder).resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(f"{folder} is given more than once; give every engine once")


def check_one_target(manifests: Mapping[str, EngineManifest]) -> None:
    """Texts and speeds can be compared only where the target is the same, to the bit.

    Args:
        manifests: by folder.

    Raises:
        ConfigError: names the engines and their targets.
    """
    (first, one), *others = manifests.items()
    for folder, other in others:
        if (one.target.digest, one.dtype) != (other.target.digest, other.dtype):
            raise ConfigError(
                f"drafters are compared on one target: {first} has {_target(one)}, {folder} has {_target(other)}; "
                f"type specc bench {first} and specc bench {folder}"
            )


def short_names(folders: Sequence[str]) -> list[str]:
    """The last part of every folder, where no two have it; else the folders as they were given."""
    short = [Path(folder).resolve().name for folder in folders]
    return short if len(set(short)) == len(short) else list(folders)


def _target(manifest: EngineManifest) -> str:
    return f"{manifest.target.source} in {manifest.dtype} (digest {manifest.target.digest[:12]})"
