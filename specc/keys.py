"""The engine's key: equal keys mean that compiling again would change nothing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from importlib.metadata import version
from pathlib import Path

from . import environment, passes
from .config import CompileConfig
from .engine_writer import checksums
from .errors import EngineError
from .manifest import EngineManifest
from .runtime.backends.tensorrt import release

_PLACES = ("output", "target", "drafter")  # where things lie does not matter, their digests do
_SHOWING: tuple[str, ...] = ("__init__", "__main__", "candidate_table", "chat", "cli", "console", "errors", "export")
_SHOWING += ("flags", "generate", "inspect", "keys", "measure", "outputs", "prediction", "progress", "show", "streams")


def engine_key(config: CompileConfig, digests: list[str], without: tuple[str, ...] = ()) -> str:
    """SHA-256 over the inputs and everything that decides what is made of them.

    Args:
        digests: of the models' files (`capture.digest_source`), the target's first.
        without: passes left out.
    """
    choices = {k: v for k, v in config.to_json().items() if k not in _PLACES}
    drafter = repr(dataclasses.replace(config.drafting(), sources=()))
    machines = " and ".join(environment.machine(device) for device in config.devices())
    made_by = [machines, f"transformers {version('transformers')}", _our_code()]
    made_by += [release()] if config.backend == "tensorrt" else []
    parts = [json.dumps(choices, sort_keys=True), drafter, *digests, *made_by, *without]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def is_current(output: Path, key: str) -> bool:
    """Whether `output` is a whole engine of that key."""
    try:
        manifest = EngineManifest.read(output)
        return manifest.engine_key == key and checksums(output) == manifest.files
    except (EngineError, OSError):
        return False


def _our_code() -> str:
    """Digest of the source that decides what an engine holds (showing and measuring one do not)."""
    code = hashlib.sha256()
    for path in deciding_files():
        code.update(path.read_bytes())
    return code.hexdigest()


def deciding_files() -> list[Path]:
    """Every file of captures, passes and lowering, and those beside them but for what only shows or measures."""
    here = Path(__file__).parent
    folders = (Path(str(passes.__file__)).parent, here / "capture", here / "lower")
    files = [path for folder in folders for path in sorted(folder.rglob("*")) if path.suffix in (".py", ".cpp")]
    return files + [path for path in sorted(here.glob("*.py")) if path.stem not in _SHOWING]
