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
from .finite import check_finite
from .source import TEXTS, digest_files, find_files

# The first that matches is read: what else lies in a folder is the same in other formats, or a trainer's state.
WEIGHTS = ("medusa_lm_head.safetensors", "medusa_lm_head.pt", "*.safetensors", "pytorch_model*.bin", "*.bin", "*.pt")


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
            raise CaptureError(
                f"drafter: {self.source} holds no tensor {name}{f' ({why})' if why else ''}; "
                f"it has {_some(self.tensors)}; fetch or export the drafter again"
            )
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
                f"drafter: {self.source} holds {_some(left)}, which this kind of drafter does not have, and leaving "
                "them out would draft something else; give a checkpoint of another layout, or report the variant"
            )


def read_checkpoint(source: str) -> Checkpoint:
    """Read a drafter's folder, hub id or weight file.

    Raises:
        CaptureError: nothing is there, or it cannot be read.
    """
    folder, files, weights = _files(source)
    tensors: dict[str, Tensor] = {}
    place: dict[str, str] = {}
    for path in weights:
        found = _read(path)
        if twice := sorted(found.keys() & place.keys()):
            raise CaptureError(
                f"drafter: {twice[0]} stands in {place[twice[0]]} and in {path.name} of {folder}; "
                "remove the file that does not belong there"
            )
        check_finite(found.items(), source, "drafter")
        place |= dict.fromkeys(found, path.name)
        tensors |= found
    config = _config(folder / "config.json")
    return Checkpoint(source, config, tensors, digest_files(files))


def tensor_names(source: str) -> list[str]:
    """Names of a drafter's tensors, of which none is read into memory; errors as in `read_checkpoint`."""
    return [name for path in _files(source)[2] for name in _read(path, names=True)]


def digest_drafter(source: str) -> str:
    """Digest of a drafter's files without reading them in; errors as in `read_checkpoint`."""
    return digest_files(find_files(source, (*TEXTS, *WEIGHTS))[1])


def _files(source: str) -> tuple[Path, list[Path], list[Path]]:
    """Folder, all files, and those of the weights."""
    folder, files = find_files(source, (*TEXTS, *WEIGHTS))
    weights = next((found for kind in WEIGHTS if (found := [f for f in files if f.match(kind)])), [])
    if not weights:
        raise CaptureError(f"drafter: {source} holds no weights ({', '.join(WEIGHTS)}); fetch the drafter again")
    return folder, files, weights


def _read(path: Path, names: bool = False) -> dict[str, Tensor]:
    """The tensors of one file; with `names` they are empty ones."""
    from safetensors import safe_open
    from safetensors.torch import load_file

    try:
        if path.suffix != ".safetensors":
            found = torch.load(path, "meta" if names else "cpu", weights_only=True)
        elif names:
            with safe_open(path, "pt") as file:
                found = dict.fromkeys(file.keys(), torch.empty(0))
        else:
            found = load_file(path)
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
