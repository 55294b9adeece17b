"""Drafters compared: several engines of one target in one interleaved run, against one baseline."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..manifest import EngineManifest
from ..runtime import Engine
from .config import BenchConfig
from .drafters_summary import AS_RUN, FIXED, Names, summarize
from .equality import compare_texts
from .measure import measure
from .one_target import check_one_target, short_names
from .prompts import Prompt
from .systems import EAGER, System, chooses, compiled, main_length
from .transformers_models import load_transformers


def load_engines(folders: Sequence[str], load: Callable[[str], Engine], progress: Console) -> dict[str, Engine]:
    """The engines, by a short name.

    Raises:
        ConfigError: they have not one target; found before any of them is loaded.
        EngineError: an engine cannot be used.
    """
    check_one_target({folder: EngineManifest.read(Path(folder)) for folder in folders})
    engines = {}
    for name, folder in zip(short_names(folders), folders, strict=True):
        progress.print(f"load {folder}")
        engines[name] = load(folder)
    return engines


def compare_drafters(
    engines: Mapping[str, Engine],
    prompts: Sequence[Prompt],
    ids: Sequence[Sequence[int]],
    config: BenchConfig,
    progress: Console,
) -> dict[str, Any]:
    """All engines, and transformers eager once, prompt by prompt and repeat by repeat.

    Every draft is compared with its engine's own plain step, and everything with transformers, where that is at hand.
    """
    manifests = {name: engine.manifest for name, engine in engines.items()}
    one = next(iter(manifests.values()))
    models = load_transformers(one, progress.print, assistant=False)
    names = name_systems(engines)
    systems = {**({EAGER: models.eager} if models else {}), **make_systems(engines, names)}
    progress.print(
        f"{len(prompts)} prompts, {config.max_new_tokens} tokens each, {config.repeats} repeats: {', '.join(systems)}"
    )
    records = measure(systems, prompts, ids, config, progress)
    pairs = [(own.plain, system) for own in names.values() for system in own.drafting.values()]
    pairs += [(EAGER, system) for system in systems if models and system != EAGER]
    return {
        "target": {"source": one.target.source, "digest": one.target.digest, "dtype": one.dtype},
        **summarize(records, names, manifests),
        "equality": compare_texts(records, pairs, ids, models.logits if models else None),
        "raw": [record.to_json() for record in records],
    }


def name_systems(engines: Mapping[str, Engine]) -> dict[str, Names]:
    """What is measured of every engine; those that hold the same plain program share the first one's."""
    plain: dict[str, str] = {}  # by the program's key
    names = {}
    for name, engine in engines.items():
        own = plain.setdefault(_plain_key(engine.manifest) or name, f"{name}: plain")
        ways = [FIXED, AS_RUN] if chooses(engine) else [FIXED]
        names[name] = Names(own, {how: f"{name}: {how}" for how in ways})
    return names


def make_systems(engines: Mapping[str, Engine], names: Mapping[str, Names]) -> dict[str, System]:
    """How each system is run: an engine's plain step, then its drafts, engine by engine."""
    systems: dict[str, System] = {}
    for name, engine in engines.items():
        if names[name].plain not in systems:
            systems[names[name].plain] = compiled(engine, 0)
        for how, system in names[name].drafting.items():
            systems[system] = compiled(engine, main_length(engine) if how == FIXED else None)
    return systems


def _plain_key(manifest: EngineManifest) -> str:
    """Of the greedy plain program of one row: equal keys are equal programs, and the weights are the target's."""
    specs = manifest.programs.values()
    return next((s.key for s in specs if (s.rule, len(s.tree_paths), s.batch) == ("greedy", 1, 1)), "")
