"""Captured models to lowered programs in a folder: rewrite, look up, lower."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from . import environment
from .config import CompileConfig
from .engine_writer import GRAPHS, program_spec
from .errors import ConfigError
from .lower.back_ends import back_end
from .lower.cache import ProgramCache, cache_folder, program_key
from .lower.forms import NAME, FormTable
from .lower.graphs import save_graph
from .lower.native import attends, objects
from .lower.workers import Workers
from .manifest import ProgramSpec
from .passes import Pass, run
from .plan import ProgramPlan, plan_programs
from .program import Model, Program, Sizes, WeightStore
from .progress import Report

WORKERS = 2
_BASE_SECONDS, _LAYER_SECONDS = 15.0, 2.0  # one program on one core: 17 s at 2 layers, 75 s at 30 (AVX-512, 2.3 GHz)


def build_programs(
    config: CompileConfig,
    models: dict[int, dict[str, Model]],
    sizes: Sizes,
    folder: Path,
    report: Report,
    *,
    dump: Path | None = None,
    without: tuple[str, ...] = (),
) -> tuple[list[Program], dict[str, ProgramSpec], WeightStore]:
    """Make every program of an engine and write it to `folder/programs`.

    Args:
        models: by rows that they were captured for (1, and B): `target`, and `drafter`, `drafter2`, ... where they are
            models.
        sizes: B, S and C of the engine.
        folder: the engine being written; `programs` in it exists.
        dump, without: as in `specc.compile`.

    Returns:
        The programs, how each is called (by name), and the weights they read.

    Raises:
        PassError, BackendError: a program could not be rewritten or lowered; the others are stopped.
    """
    weights = _store(models)
    drafter = config.drafting()
    plans = list(plan_programs(config))
    back = back_end(config.backend)
    quantise = back.quantise if config.quant else None
    on_cpu = back.portable or {torch.device(device).type for device in config.devices()} == {"cpu"}
    if back.native and on_cpu:
        seconds = estimate_seconds(plans, models[1])
        report.say(f"{len(plans)} programs; about {seconds / 60:.1f} minutes if none was compiled before")
    cache = ProgramCache(cache_folder() / "programs" if back.native else None, report.say)
    machines = {device: environment.machine(device) for device in config.devices()}
    native = {device: _native(config.backend, device, report) for device in config.devices()}
    programs: list[Program] = []
    specs: dict[str, ProgramSpec] = {}
    fresh: dict[str, tuple[str, Path]] = {}
    with report.bar("rewrite and lower the programs", len(plans)) as bar:

        def done(name: str) -> None:
            cache.keep(*fresh[name])  # at once: a compile that is killed later loses nothing that it finished
            bar.advance(bar.task_ids[0])

        rewritten: list[tuple[Program, str, Path]] = []
        workers = Workers(WORKERS if on_cpu and back.forks else 0, back.lower, done)
        try:
            for plan in plans:  # all of them before any is compiled: the forms of products are timed on the way
                device = config.devices()[-1] if plan.drafts else config.device
                program = plan.program(models[plan.batch], weights, sizes, "cpu" if back.portable else device)
                passes = plan.passes(
                    drafter=drafter, form=back.form, noise=back.noise, quantise=quantise, **native[device]
                )
                left_out = _left_out(passes, without)
                reports = run(program, passes, dump_dir=dump, without=left_out)
                key = program_key(program, back.options, machines[device])
                path = folder / "programs" / f"{plan.name}{back.suffix}"
                table = [dataclasses.asdict(r) for r in reports]
                specs[plan.name] = program_spec(program, plan, f"programs/{path.name}", key, table)
                programs.append(program)
                save_graph(program, folder / GRAPHS / f"{plan.name}.json")
                rewritten.append((program, key, path))
            for program, key, path in rewritten:
                if cache.fetch(key, path):
                    bar.advance(bar.task_ids[0])
                    continue
                fresh[program.name] = (key, path)
                workers.submit(program, path)
            workers.finish()
        except BaseException:
            workers.stop()
            raise
        finally:
            weights.forget_placed()
    return programs, specs, weights


def check_without(config: CompileConfig, without: tuple[str, ...]) -> None:
    """Check that every stem names a pass of some program of this engine.

    Raises:
        ConfigError: one does not; lists those that can be named.
    """
    drafter, quantise = config.drafting(), back_end(config.backend).quantise if config.quant else None
    lists = (plan.passes(drafter=drafter, quantise=quantise) for plan in plan_programs(config))
    stems = {one.stem(): None for passes in lists for one in passes}
    for stem in without:
        if stem not in stems:
            raise ConfigError(f"--without {stem}: no such pass; the passes are {', '.join(stems)}")


def estimate_seconds(plans: list[ProgramPlan], models: dict[str, Model]) -> float:
    """Seconds that lowering takes on two free cores, from the layers that each program runs."""
    layers = {
        n: len(m.graph.find_nodes(op="call_function", target=torch.ops.specc.attend.default)) for n, m in models.items()
    }
    total = 0.0
    for plan in plans:
        if plan.tree is None:
            run_layers = layers[plan.prefill]
        else:
            drafting = sum(count for role, count in layers.items() if role != "target")
            run_layers = layers["target"] + plan.tree.depth * drafting
        total += _BASE_SECONDS + _LAYER_SECONDS * run_layers
    return total / WORKERS


def _store(models: dict[int, dict[str, Model]]) -> WeightStore:
    weights = WeightStore()
    for captured in models.values():
        for model in captured.values():
            for name, tensor in model.weights.items():
                weights.add(name, tensor)
    return weights


def _native(backend: str, device: str, report: Report) -> dict[str, Any]:
    """What is native code of our own, as `ProgramPlan.passes` takes it: on this CPU products, by measurement, and
    attention; nothing elsewhere."""
    if backend == "inductor" and device == "cpu":
        objects()  # before any worker is forked: all of them link these
        table = FormTable(cache_folder() / NAME, environment.machine("cpu"), report.say)
        return {"skinny": table.skinny, "attends": attends}
    return {"skinny": None, "attends": None}


def _left_out(passes: list[Pass], without: tuple[str, ...]) -> tuple[str, ...]:
    """Stems to leave out of this program: a stem that only other programs have is none of its business."""
    stems = {one.stem() for one in passes}
    return tuple(stem for stem in without if stem in stems)
