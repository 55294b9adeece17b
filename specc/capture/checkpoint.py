"""A published drafter's files: its configuration, and its tensors, each of which must be used."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CaptureError
from .source import TEXTS, digest_files, find_files

WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


@dataclass(eq=False)
class Checkpoint:
    """What stands in a drafter's folder.

    Attributes:
        source: what the user gave, for messages.
        config: `config.json`, empty where there is none.
        tensors: by name; those that nobody took are an error (`finish`).
    """

    source: str
    config: dict[str, Any]
    tensors: dict[str, Tensor]
    digest: str
    _taken: set[str] = field(default_factory=set)

    def take(self, name: str, shape: tuple[int, ...] | None = None, why: str = "") -> Tensor:
        """A tensor that must be there.

        Args:
            shape: what it must have; None for any.
            why: what the shape follows from, for the message.

        Raises:
            CaptureError: it is missing or has another shape.
        """
        if name not in self.tensors:
            raise CaptureError(f"drafter: {self.source} holds no tensor {name}; it has {_some(self.tensors)}")
        found = tuple(self.tensors[name].shape)
        if shape is not None and found != shape:
            raise CaptureError(
                f"drafter: {name} in {self.source} is {list(found)}, expected {list(shape)}"
                f"{f' ({why})' if why else ''}; was it made for another target?"
            )
        self._taken.add(name)
        return self.tensors[name]

    def take_if(self, name: str, shape: tuple[int, ...] | None = None, why: str = "") -> Tensor | None:
        """The same for a tensor that may be missing."""
        return self.take(name, shape, why) if name in self.tensors else None

    def finish(self) -> None:
        """Check that every tensor was used: one that was not means a variant that would be drafted with wrongly.

        Raises:
            CaptureError: names those that are left.
        """
        left = [name for name in self.tensors if name not in self._taken]
        if left:
            raise CaptureError(
                f"drafter: {self.source} holds {_some(left)}, which this kind of drafter does not have; "
                "give the kind that it is (eagle:, eagle3: or medusa:), or report the variant"
            )


def read_checkpoint(source: str) -> Checkpoint:
    """Read a drafter's folder, hub id or weight file.

    Raises:
        CaptureError: nothing is there, or it cannot be read.
    """
    folder, files = find_files(source, (*TEXTS, *WEIGHTS))
    weights = next((found for kind in WEIGHTS if (found := [f for f in files if f.match(kind)])), [])
    if not weights:
        raise CaptureError(f"drafter: {source} holds no weights ({', '.join(WEIGHTS)}); fetch the drafter again")
    tensors: dict[str, Tensor] = {}
    for path in weights:
        tensors |= _read(path)
    config = _config(folder / "config.json")
    return Checkpoint(source, config, tensors, digest_files(files))


def digest_drafter(source: str) -> str:
    """Digest of a drafter's files without reading them in; errors as in `read_checkpoint`."""
    return digest_files(find_files(source, (*TEXTS, *WEIGHTS))[1])


def _read(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    try:
        found = load_file(path) if path.suffix == ".safetensors" else torch.load(path, "cpu", weights_only=True)
    except Exception as e:  # noqa: BLE001  a damaged file makes the readers raise anything
        raise CaptureError(f"drafter: {path} cannot be read ({str(e).splitlines()[0][:120]}); fetch it again") from e
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise CaptureError(f"drafter: {path} holds a {type(found).__name__} and not tensors by name")
    return found


def _config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise CaptureError(f"drafter: {path} is not JSON ({e}); fetch the drafter again") from e
    if not isinstance(config, dict):
        raise CaptureError(f"drafter: {path} holds a {type(config).__name__} where named settings are expected")
    return config


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "") or "none"
