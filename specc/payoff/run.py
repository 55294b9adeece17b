"""`specc plan`: what speculation would gain, before anything is compiled or from what an engine measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from ..manifest import EngineManifest
from ..outputs import check_outputs, publish
from .config import NUMBERS, PlanConfig
from .given import from_numbers
from .measured import from_engine
from .picture import draw
from .show import show
from .verdict import verdicts


def plan(engine: str | None, config: PlanConfig) -> dict[str, Any]:
    """Compute, print, and write what `config` asks for; returns every figure. No program is loaded or run.

    Args:
        engine: folder whose measurements are used; None takes the numbers of `config`.

    Raises:
        ConfigError: numbers are missing, or are given beside an engine; a file cannot be written.
        BackendError: a picture is asked for and matplotlib is not installed.
        EngineError: the engine cannot be read, or was not measured.
    """
    check_outputs(config)
    given = [f"--{name.replace('_', '-')}" for name in NUMBERS if getattr(config, name) is not None]
    if engine is not None and given:
        raise ConfigError(
            f"{', '.join(given)} and the engine {engine} both say what speculation costs or gains; leave out one"
        )
    if engine is None:
        result = from_numbers(config)
    else:
        result = from_engine(engine, EngineManifest.read(Path(engine)), config.lengths())
    result = {"config": dataclasses.asdict(config), **result}
    result["recommended"] = result["best"] if result["best"]["speedup"] > 1 else None
    result["verdicts"] = verdicts(result)
    return publish(result, config, show, draw)
