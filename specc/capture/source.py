"""Where a model comes from: a folder, a GGUF file or a hub id, and the digest of what is read there."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path

from ..errors import CaptureError

HUB_ID = re.compile(r"^[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?$")
TEXTS = ("*.json", "*.jinja", "*.model", "*.txt")  # configuration and tokenizer


@dataclass(frozen=True)
class Source:
    """A model's files on this machine.

    Attributes:
        folder: the transformers folder, or the folder that holds the GGUF file.
        gguf: name of the GGUF file in it; None for a transformers folder.
    """

    folder: Path
    gguf: str | None = None

    @property
    def pickled(self) -> bool:
        """Whether the weights are `.bin` files, which are read with `weights_only` and nothing else."""
        return self.gguf is None and not any(self.folder.glob("*.safetensors"))

    def files(self) -> list[Path]:
        """Every file that decides what is loaded, sorted by name."""
        if self.gguf is not None:
            return [self.folder / self.gguf]
        weights = "*.bin" if self.pickled else "*.safetensors"
        found = {path for pattern in (*TEXTS, weights) for path in self.folder.glob(pattern) if path.is_file()}
        return sorted(found, key=lambda path: path.name)

    def digest(self) -> str:
        """SHA-256 over names, sizes and contents of `files()`."""
        return digest_files(self.files())


def digest_files(files: list[Path]) -> str:
    """SHA-256 over names, sizes and contents."""
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.name} {path.stat().st_size} {content}\n".encode())
    return total.hexdigest()


def digest_source(source: str, *, role: str) -> str:
    """Digest of a model's files without loading them: the part of an engine's key that a model gives.

    Args:
        source: what the user gave.
        role: `target` or `drafter`, for messages.

    Raises:
        CaptureError: there is no model at `source`.
    """
    return find_source(source, role=role).digest()


def find_source(source: str, *, role: str) -> Source:
    """The files of a model; those of a hub id are downloaded first.

    Raises:
        CaptureError: nothing is there, or it is not a model that transformers can read.
    """
    try:
        path = Path(source).expanduser()
        path.stat()
    except FileNotFoundError:
        pass
    except (OSError, RuntimeError, ValueError) as e:  # too long a name, say, or the home of nobody
        raise CaptureError(
            f"{role}: {source} is no place for a model ({getattr(e, 'strerror', None) or e}); "
            "give a folder with config.json, a .gguf file or a hub id"
        ) from e
    if path.is_file():
        if not _is_gguf(path):
            raise CaptureError(
                f"{role}: {source} is a file but not a GGUF file; give a .gguf file or the folder with config.json"
            )
        return Source(path.resolve().parent, path.name)
    if path.is_dir():
        return _folder(path.resolve(), source, role)
    if not HUB_ID.match(source) or source.lower().endswith((".gguf", ".safetensors", ".bin")):
        raise CaptureError(f"{role}: nothing at {source}; give a folder with config.json, a .gguf file or a hub id")
    return _folder(_download(source, role), source, role)


def find_files(source: str, patterns: tuple[str, ...]) -> tuple[Path, list[Path]]:
    """Folder and files of a drafter that is no whole model: a folder, one file of it, or a hub id.

    Args:
        patterns: of the files that matter; they are sorted by name.

    Raises:
        CaptureError: nothing is there.
    """
    path = Path(source).expanduser()
    if path.is_file():
        beside = [p for p in (path.parent / "config.json",) if p.is_file()]
        return path.parent, sorted({path, *beside})
    if not path.is_dir():
        if not HUB_ID.match(source):
            raise CaptureError(f"drafter: nothing at {source}; give a folder, a weight file or a hub id")
        path = _snapshot(source, "drafter", patterns)
    found = {file for pattern in patterns for file in path.glob(pattern) if file.is_file()}
    return path, sorted(found, key=lambda file: file.name)


def _is_gguf(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"GGUF"


def _folder(path: Path, source: str, role: str) -> Source:
    """A transformers folder, checked for what loading needs."""
    if not (path / "config.json").is_file():
        ggufs = sorted(file.name for file in path.glob("*.gguf"))
        hint = f"; give the file: {path / ggufs[0]}" if ggufs else "; expected a transformers folder or a .gguf file"
        raise CaptureError(f"{role}: no config.json in {path}{hint}")
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as e:
        raise CaptureError(f"{role}: {path / 'config.json'} is not JSON ({e}); fetch the model again") from e
    if not isinstance(config, dict):
        raise CaptureError(
            f"{role}: {path / 'config.json'} holds a {type(config).__name__} where a model has named settings "
            '({"model_type": ...}); fetch the model again'
        )
    found = Source(path)
    if found.pickled and not any(path.glob("*.bin")):
        raise CaptureError(f"{role}: {source} has no *.safetensors weights beside config.json; fetch the model again")
    return found


def _download(source: str, role: str) -> Path:
    """The snapshot folder of a hub id; `.bin` weights only where there are no safetensors."""
    folder = _snapshot(source, role, (*TEXTS, "*.safetensors"))
    return folder if any(folder.glob("*.safetensors")) else _snapshot(source, role, (*TEXTS, "*.bin"))


def _snapshot(source: str, role: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        return Path(snapshot_download(source, allow_patterns=list(patterns)))
    except (RepositoryNotFoundError, HFValidationError) as e:
        raise CaptureError(
            f"{role}: {source} is neither a path here nor a model on the hub (a gated one needs `hf auth login`)"
        ) from e
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError, ValueError) as e:
        raise CaptureError(
            f"{role}: nothing at {source} here, and the hub cannot be reached; give a local folder or a .gguf file"
        ) from e
