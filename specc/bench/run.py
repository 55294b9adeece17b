"""`specc bench`: every system on every prompt in turn, several times over; then the figures."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .. import __version__, environment
from ..console import SteadyConsole
from ..errors import ConfigError
from ..runtime import Engine, load
from . import batch, processors
from .bandwidth import memory_bandwidth, plain_bytes
from .config import BenchConfig
from .equality import Comparison, compare
from .plot import check_plot, plot
from .prompts import Prompt, read_prompts
from .sampling import DRAWS, sampling_cost
from .summary import Record, by_kind, by_system, speculation, verdict
from .systems import EAGER, PLAIN, SPECULATIVE, System, Transformers, load_systems
from .table import show

SAMPLED_PROMPTS = 2
WARM_UP_TOKENS = 4


def bench(engine: str, config: BenchConfig) -> dict[str, Any]:
    """Measure an engine; prints tables, writes what `config` asks for, returns every figure.

    By default against transformers; batch sizes and processors are measured instead where `config` names them.

    Raises:
        ConfigError: no prompt fits the engine's context, it has fewer rows than asked for, a file cannot be written, or
            the picture has no known format.
        BackendError: a picture is asked for and matplotlib is not installed.
        EngineError: the engine cannot be used.
    """
    if config.plot:
        check_plot(Path(config.plot))
    for option, path in (("--json", config.json), ("--plot", config.plot)):
        if path:
            _check_writable(option, Path(path))
    progress = SteadyConsole(stderr=True)
    progress.print(f"load {engine}")
    loaded = load(engine)
    _check_rows(config, loaded)
    prompts, ids = _fitting(loaded, read_prompts(config.prompts), config.max_new_tokens, progress)
    result = {
        "engine": engine,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": _machine(),
        "versions": _versions(),
        "config": dataclasses.asdict(config),
        "models": {
            "target": loaded.manifest.target.source,
            "drafter": loaded.manifest.drafter.source if loaded.manifest.drafter else loaded.manifest.drafter_kind,
            "dtype": loaded.manifest.dtype,
            "backend": loaded.manifest.backend,
            "rows": loaded.manifest.batch,
        },
        "prompts": [{"kind": p.kind, "text": p.text, "tokens": len(i)} for p, i in zip(prompts, ids, strict=True)],
    }
    if config.batch:
        result["batch"] = _batch(loaded, ids, config, progress)
    if config.processors:
        result["processors"] = _processors(loaded, ids, config, progress)
    if not (config.batch or config.processors):
        result |= _comparison(loaded, Path(engine), prompts, ids, config, progress)
    show(result)
    if config.json:
        Path(config.json).write_text(json.dumps(result, indent=1), encoding="utf-8")
    if config.plot:
        plot(result, Path(config.plot))
    return result


def _check_rows(config: BenchConfig, engine: Engine) -> None:
    rows = engine.manifest.batch
    if config.sizes() and config.sizes()[-1] > rows:
        raise ConfigError(
            f"--batch {config.batch}: this engine has {rows} row{'s' * (rows > 1)}; leave larger sizes out, or compile "
            f"it with --batch {config.sizes()[-1]}"
        )


def _fitting(
    engine: Engine, prompts: Sequence[Prompt], tokens: int, progress: Console
) -> tuple[list[Prompt], list[list[int]]]:
    """Prompts that leave room for the text in the engine's context, and their ids in the chat template."""
    chosen, ids = [], []
    for prompt in prompts:
        encoded = engine.chat(prompt.text) if engine.has_chat_template else engine.encode(prompt.text)
        if 0 < len(encoded) <= engine.manifest.context - tokens:
            chosen.append(prompt)
            ids.append(encoded)
    if not chosen:
        raise ConfigError(
            f"no prompt and {tokens} more tokens fit the engine's context of {engine.manifest.context}; "
            "lower --max-new-tokens, give shorter --prompts, or compile with a larger --context"
        )
    if len(chosen) < len(prompts):
        progress.print(f"{len(prompts) - len(chosen)} prompts do not fit the engine's context and are left out")
    return chosen, ids


def _comparison(
    engine: Engine,
    folder: Path,
    prompts: Sequence[Prompt],
    ids: Sequence[Sequence[int]],
    config: BenchConfig,
    progress: Console,
) -> dict[str, Any]:
    """The default run: every system on every prompt."""
    bandwidth = memory_bandwidth()
    progress.print(f"memory bandwidth {bandwidth / 1e9:.1f} GB/s; load the models into transformers")
    systems, models = load_systems(engine, progress.print)
    progress.print(
        f"{len(prompts)} prompts, {config.max_new_tokens} tokens each, {config.repeats} repeats: {', '.join(systems)}"
    )
    records = _measure(systems, prompts, ids, config, progress)
    sampled = _sample(engine, ids[:SAMPLED_PROMPTS], config, progress)
    bandwidth = max(bandwidth, memory_bandwidth())  # before and after: other work on the machine only lowers it
    found = speculation(records)
    plain = by_system(records)[PLAIN]
    read = plain_bytes(folder, engine.manifest)
    floor = 1e3 * read / bandwidth
    return {
        "systems": by_system(records),
        "kinds": by_kind(records),
        "speculation": found,
        "verdict": verdict(found),
        "bandwidth": {
            "bytes_per_second": bandwidth,
            "bytes_per_pass": read,
            "floor_ms": floor,
            "share_of_floor": floor / plain["ms_per_step"],
        },
        "sampling": sampled,
        "equality": {name: _equality_json(c) for name, c in _compare(records, ids, models).items()},
        "raw": [{**dataclasses.asdict(r), "run": r.run.to_json()} for r in records],
    }


def _batch(engine: Engine, ids: Sequence[Sequence[int]], config: BenchConfig, progress: Console) -> dict[str, Any]:
    sizes = config.sizes()
    progress.print(f"{len(ids)} prompts, {config.repeats} repeats, rows: {', '.join(map(str, sizes))}")
    with _bar(progress, batch.count_runs(len(ids), sizes, config.repeats)) as bar:
        runs = batch.batch_speed(engine, ids, sizes, config.max_new_tokens, config.repeats, _advance(bar))
    return {**batch.summarize(runs), "raw": [dataclasses.asdict(run) for run in runs]}


def _processors(engine: Engine, ids: Sequence[Sequence[int]], config: BenchConfig, progress: Console) -> dict[str, Any]:
    progress.print(f"{len(ids)} prompts, {config.repeats} repeats, with and without logits processors")
    with _bar(progress, processors.count_runs(engine, len(ids), config.repeats)) as bar:
        return processors.processor_cost(engine, ids, config.max_new_tokens, config.repeats, _advance(bar))


def _measure(
    systems: dict[str, System],
    prompts: Sequence[Prompt],
    ids: Sequence[Sequence[int]],
    config: BenchConfig,
    progress: Console,
) -> list[Record]:
    records = []
    with _bar(progress, config.repeats * len(prompts) * len(systems) + len(systems)) as bar:
        task = bar.task_ids[0]
        for name, system in systems.items():
            bar.update(task, advance=1, description=f"warm up {name}")
            system(ids[0], min(WARM_UP_TOKENS, config.max_new_tokens))
        for repeat in range(config.repeats):
            for index, prompt in enumerate(prompts):
                if not progress.is_terminal:  # a bar is drawn on terminals only
                    progress.print(f"repeat {repeat + 1}, prompt {index + 1} of {len(prompts)} ({prompt.kind})")
                for name, system in systems.items():
                    bar.update(task, description=f"{name}, {prompt.kind}")
                    run = system(ids[index], config.max_new_tokens)
                    records.append(Record(repeat, index, prompt.kind, name, run))
                    bar.update(task, advance=1)
    return records


def _sample(engine: Engine, ids: Sequence[Sequence[int]], config: BenchConfig, progress: Console) -> dict[str, Any]:
    with _bar(progress, config.repeats * len(ids) * DRAWS) as bar:
        return sampling_cost(engine, ids, config.max_new_tokens, config.repeats, _advance(bar))


def _compare(
    records: Sequence[Record], ids: Sequence[Sequence[int]], models: Transformers | None
) -> dict[str, Comparison]:
    """Speculative against plain, and everything against transformers eager, by the texts of the first repeat."""
    texts: dict[str, list[list[int]]] = {}
    for record in records:
        if record.repeat == 0:
            texts.setdefault(record.system, []).append(record.run.tokens)
    logits = models.logits if models else None
    pairs = {f"{SPECULATIVE} = {PLAIN}": (PLAIN, SPECULATIVE)}
    if EAGER in texts:
        pairs |= {f"{name} = {EAGER}": (EAGER, name) for name in texts if name != EAGER}
    return {name: compare(a, ids, texts[a], texts[b], logits) for name, (a, b) in pairs.items()}


def _equality_json(comparison: Comparison) -> dict[str, Any]:
    differences = [{**dataclasses.asdict(d), "near_tie": d.near_tie} for d in comparison.differences]
    return {"reference": comparison.reference, "tokens": comparison.tokens, "differences": differences}


def _machine() -> dict[str, Any]:
    processor = environment.processor()
    return {"processor": processor["name"], "isa": processor["isa"], "threads": torch.get_num_threads()}


def _versions() -> dict[str, str]:
    versions = {"specc": __version__, "torch": torch.__version__}
    try:
        from importlib.metadata import version

        versions["transformers"] = version("transformers")
    except ImportError:  # PackageNotFoundError is one
        pass
    return versions


def _check_writable(option: str, path: Path) -> None:
    """Before minutes of measuring, not after them; leaves the place as it was."""
    try:
        new = not path.exists()
        with path.open("ab"):
            pass
        if new:
            path.unlink()
    except (OSError, ValueError) as e:
        hint = "give a file in a folder that is writable"
        if isinstance(e, FileNotFoundError):
            hint = f"make its folder first: mkdir -p {shlex.quote(str(path.parent))}"
        raise ConfigError(f"{option} {path}: cannot be written ({getattr(e, 'strerror', None) or e}); {hint}") from e


def _advance(bar: Progress) -> Callable[[str], None]:
    return lambda name: bar.update(bar.task_ids[0], advance=1, description=name)


@contextmanager
def _bar(console: Console, total: int) -> Iterator[Progress]:
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        bar.add_task("", total=total)
        yield bar
