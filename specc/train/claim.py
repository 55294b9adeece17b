"""Whose a work folder is: what it holds is of use to a run of the same choices only."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

from ..errors import ConfigError
from .config import MEDUSA, NEW_TOKENS, ROWS, UNROLL, TrainConfig
from .go_on import WEIGHTS
from .precision import usual


def claim(config: TrainConfig, digest: str, work: Path) -> None:
    """Write down what the work folder is for; one that was for something else is not gone on with.

    Args:
        digest: of the target.

    Raises:
        ConfigError: the folder belongs to another run.
    """
    mine = {"target": digest, **{name: getattr(config, name) for name in ("family", "draft_vocab", "hidden", "layers")}}
    mine["precision"] = config.precision or usual()
    mine["init"] = _digest(f"{config.init}/{WEIGHTS}") if config.init else ""
    if config.family == MEDUSA:
        mine["unroll"] = config.unroll or UNROLL
    if config.what.data is None:
        asked = "own" if config.what.own_prompts else _digest(config.what.prompts)
        mine |= {"rows": config.what.rows or ROWS, "new_tokens": config.what.new_tokens or NEW_TOKENS, "prompts": asked}
    file = work / "run.json"
    there = _read(file) if file.exists() else mine
    if not any(path.name not in (file.name, "vocabulary.pt") for path in work.iterdir()):
        there = mine  # nothing was made for whom it belonged to
        (work / "vocabulary.pt").unlink(missing_ok=True)
    for name in mine:
        if (theirs := there.get(name, "")) != mine[name]:
            raise ConfigError(
                f"{work} belongs to a run with {name} {theirs or 'none'}, and this one has {mine[name] or 'none'}; "
                "give another folder with --work, or remove it"
            )
    write_whole(file, lambda aside: aside.write_text(json.dumps(mine, indent=1) + "\n"))


def _read(file: Path) -> dict[str, object]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError(f"expected an object, found {type(found).__name__}")
    except (OSError, ValueError) as e:
        raise ConfigError(
            f"{file}: does not say whose folder this is ({e}); remove {file.parent}, or give --work"
        ) from e
    return found


def write_whole(file: Path, make: Callable[[Path], object]) -> None:
    """Let `make` write a file that is whole or not there."""
    aside = file.with_suffix(".part")
    make(aside)
    os.replace(aside, file)


def _digest(path: str | None) -> str:
    """Of a file; empty where none was given."""
    file = Path(path or "").expanduser()
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
