"""One engine: against transformers, by the number of rows, with and without processors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ..runtime import Engine
from . import batch, processors
from .bandwidth import memory_bandwidth, plain_bytes
from .config import BenchConfig
from .equality import compare_texts
from .measure import advance, measure, progress_bar
from .prompts import Prompt
from .sampling import DRAWS, sampling_cost
from .summary import as_run, by_kind, by_system, speculation, verdict
from .systems import AS_RUN, ASSISTED, EAGER, PLAIN, SPECULATIVE, System, chooses, compiled, main_length
from .transformers_models import Transformers, load_transformers

SAMPLED_PROMPTS = 2


def against_transformers(
    engine: Engine,
    folder: Path,
    prompts: Sequence[Prompt],
    ids: Sequence[Sequence[int]],
    config: BenchConfig,
    progress: Console,
) -> dict[str, Any]:
    """The default run: every system on every prompt."""
    bandwidth = memory_bandwidth(device=engine.device)
    progress.print(f"memory bandwidth {bandwidth / 1e9:.1f} GB/s; load the models into transformers")
    systems, models = load_systems(engine, progress.print)
    progress.print(
        f"{len(prompts)} prompts, {config.max_new_tokens} tokens each, {config.repeats} repeats: {', '.join(systems)}"
    )
    records = measure(systems, prompts, ids, config, progress)
    sampled = _sample(engine, ids[:SAMPLED_PROMPTS], config, progress)
    bandwidth = max(
        bandwidth, memory_bandwidth(device=engine.device)
    )  # before and after: other work on the machine only lowers it
    found = speculation(records)
    plain = by_system(records)[PLAIN]
    read = plain_bytes(folder, engine.manifest)
    floor = 1e3 * read / bandwidth
    pairs = [(PLAIN, name) for name in (SPECULATIVE, AS_RUN) if name in systems]
    whole = not engine.manifest.config.get("quant")  # else transformers' model is another
    pairs += [(EAGER, name) for name in systems if whole and EAGER in systems and name != EAGER]
    return {
        "systems": by_system(records),
        "kinds": by_kind(records),
        "speculation": found,
        **({"as_run": as_run(records)} if AS_RUN in systems else {}),
        "verdict": verdict(found),
        "bandwidth": {
            "bytes_per_second": bandwidth,
            "bytes_per_pass": read,
            "floor_ms": floor,
            "share_of_floor": floor / plain["ms_per_step"],
        },
        "sampling": sampled,
        "equality": compare_texts(records, pairs, ids, models.logits if models and whole else None),
        "raw": [record.to_json() for record in records],
    }


def load_systems(engine: Engine, say: Callable[[str], None]) -> tuple[dict[str, System], Transformers | None]:
    """Every system that can run here, baseline first; those that cannot are named with the reason."""
    models = load_transformers(engine.manifest, say)
    systems: dict[str, System] = {EAGER: models.eager} if models else {}
    if models and models.assists:
        systems[ASSISTED] = models.assisted
    systems |= {PLAIN: compiled(engine, 0), SPECULATIVE: compiled(engine, main_length(engine))}
    if chooses(engine):
        systems[AS_RUN] = compiled(engine, None)
    return systems, models


def batch_sizes(engine: Engine, ids: Sequence[Sequence[int]], config: BenchConfig, progress: Console) -> dict[str, Any]:
    """Speed by the number of rows side by side."""
    sizes = config.sizes()
    progress.print(f"{len(ids)} prompts, {config.repeats} repeats, rows: {', '.join(map(str, sizes))}")
    with progress_bar(progress, batch.count_runs(len(ids), sizes, config.repeats)) as bar:
        runs = batch.batch_speed(engine, ids, sizes, config.max_new_tokens, config.repeats, advance(bar))
    return {**batch.summarize(runs), "raw": [dataclasses.asdict(run) for run in runs]}


def logits_processors(
    engine: Engine, ids: Sequence[Sequence[int]], config: BenchConfig, progress: Console
) -> dict[str, Any]:
    """What a step costs with and without logits processors."""
    progress.print(f"{len(ids)} prompts, {config.repeats} repeats, with and without logits processors")
    with progress_bar(progress, processors.count_runs(engine, len(ids), config.repeats)) as bar:
        return processors.processor_cost(engine, ids, config.max_new_tokens, config.repeats, advance(bar))


def _sample(engine: Engine, ids: Sequence[Sequence[int]], config: BenchConfig, progress: Console) -> dict[str, Any]:
    with progress_bar(progress, config.repeats * len(ids) * DRAWS) as bar:
        return sampling_cost(engine, ids, config.max_new_tokens, config.repeats, advance(bar))
