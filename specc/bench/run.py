"""`specc bench`: what is to be measured, on which prompts; then the figures are shown and written."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from ..console import SteadyConsole
from ..errors import ConfigError
from ..outputs import check_outputs, publish
from ..progress import Report
from ..runtime import Engine, load
from . import drafters_plot, drafters_table, host, table
from .config import BenchConfig
from .drafters import compare_drafters, load_engines
from .drafters_summary import models
from .one_engine import against_transformers, batch_sizes, logits_processors
from .one_target import check_request
from .plot import plot
from .prompts import Prompt, read_prompts
from .synthetic import synthetic_engine


def bench(engines: str | Sequence[str], config: BenchConfig) -> dict[str, Any]:
    """Measure an engine, or compare several; prints tables, writes what `config` asks for, returns every figure.

    By default against transformers; batch sizes and processors of one engine are measured instead where `config` names
    them. Without engines a synthetic one is made, if `config` describes one.

    Raises:
        ConfigError: there is no engine, or one beside a synthetic one; no prompt fits the engines' context, an engine
            has fewer rows than asked for, several have not one target, a file cannot be written, or the picture has no
            known format.
        BackendError: a picture is asked for and matplotlib is not installed.
        EngineError: an engine cannot be used.
    """
    folders = [engines] if isinstance(engines, str) else list(engines)
    check_outputs(config)
    progress = SteadyConsole(stderr=True)
    if bool(folders) == bool(config.pair.synthetic):
        raise ConfigError(
            "give the folder of an engine, or --synthetic SHAPE for one with random weights; one of the two"
        )
    if config.pair.synthetic:
        with synthetic_engine(config.pair, max(config.sizes(), default=1), Report()) as folder:
            return publish(_one(str(folder), config, progress), config, table.show, plot)
    if len(folders) == 1:
        return publish(_one(folders[0], config, progress), config, table.show, plot)
    return publish(_several(folders, config, progress), config, drafters_table.show, drafters_plot.plot)


def _one(folder: str, config: BenchConfig, progress: Console) -> dict[str, Any]:
    progress.print(f"load {folder}")
    engine = load(folder)
    _check_rows(config, engine)
    prompts, ids = _fitting(engine, engine.manifest.context, config, progress)
    result = {"engine": folder, **_circumstances(config), "models": models(engine.manifest)}
    result["prompts"] = _prompts(prompts, ids)
    if config.batch:
        result["batch"] = batch_sizes(engine, ids, config, progress)
    if config.processors:
        result["processors"] = logits_processors(engine, ids, config, progress)
    if not (config.batch or config.processors):
        result |= against_transformers(engine, Path(folder), prompts, ids, config, progress)
    return result


def _several(folders: Sequence[str], config: BenchConfig, progress: Console) -> dict[str, Any]:
    check_request(folders, config)
    engines = load_engines(folders, lambda folder: load(folder), progress)
    first = next(iter(engines.values()))
    context = min(engine.manifest.context for engine in engines.values())
    prompts, ids = _fitting(first, context, config, progress)
    result = {**_circumstances(config), "prompts": _prompts(prompts, ids)}
    return result | compare_drafters(engines, prompts, ids, config, progress)


def _circumstances(config: BenchConfig) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": host.machine(),
        "versions": host.versions(),
        "config": dataclasses.asdict(config),
    }


def _prompts(prompts: Sequence[Prompt], ids: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    return [{"kind": p.kind, "text": p.text, "tokens": len(i)} for p, i in zip(prompts, ids, strict=True)]


def _check_rows(config: BenchConfig, engine: Engine) -> None:
    rows = engine.manifest.batch
    if config.sizes() and config.sizes()[-1] > rows:
        raise ConfigError(
            f"--batch {config.batch}: this engine has {rows} row{'s' * (rows > 1)}; leave larger sizes out, or compile "
            f"it with --batch {config.sizes()[-1]}"
        )


def _fitting(
    engine: Engine, context: int, config: BenchConfig, progress: Console
) -> tuple[list[Prompt], list[list[int]]]:
    """Prompts that leave room for the text in a context, and their ids in the chat template."""
    prompts, tokens, chosen, ids = read_prompts(config.prompts), config.max_new_tokens, [], []
    for prompt in prompts:
        encoded = engine.chat(prompt.text) if engine.has_chat_template else engine.encode(prompt.text)
        if 0 < len(encoded) <= context - tokens:
            chosen.append(prompt)
            ids.append(encoded)
    if not chosen:
        raise ConfigError(
            f"no prompt and {tokens} more tokens fit the engine's context of {context}; "
            "lower --max-new-tokens, give shorter --prompts, or compile with a larger --context"
        )
    if len(chosen) < len(prompts):
        progress.print(f"{len(prompts) - len(chosen)} prompts do not fit the engine's context and are left out")
    return chosen, ids
