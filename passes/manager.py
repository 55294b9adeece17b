"""Run a list of passes over a program: order checked first, then run, verify, dump, time, count."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import ConfigError, PassError
from ..program import Level, Program
from . import levels
from .contract import Pass
from .dump import dump


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did: `rewrites` made, `seconds` taken, `nodes` left, sites `declined`."""

    name: str
    rewrites: int
    seconds: float
    nodes: int
    declined: int


def run(
    program: Program, passes: Sequence[Pass], *, dump_dir: Path | None = None, without: Iterable[str] = ()
) -> list[PassReport]:
    """Rewrite `program` by every pass in order.

    Args:
        dump_dir: folder for `NN-stem.before.txt` and `NN-stem.after.txt`, in a subfolder of the program's name.
        without: stems of passes to leave out, for bisection.

    Raises:
        ConfigError: `without` names no pass of the list, or one that another needs.
        PassError: the order breaks a constraint (all are reported at once), or a pass broke its contract.
    """
    passes = _leave_out(passes, list(without))
    check_order(passes, program.level)
    reports: list[PassReport] = []
    for index, pass_ in enumerate(passes):
        stem = pass_.stem()
        _write(dump_dir, program, f"{index:02}-{stem}.before.txt")
        start, declined = time.perf_counter(), len(program.declined)
        try:
            rewrites = _run_one(program, pass_)
        except Exception as e:
            _write(dump_dir, program, f"{index:02}-{stem}.failed.txt")
            done = ", ".join(r.name for r in reports) or "none"
            raise PassError(f"pass {stem} on program {program.name} failed: {e} (passes before it: {done})") from e
        seconds = time.perf_counter() - start
        nodes = len(program.graph.nodes)
        reports.append(PassReport(stem, rewrites, seconds, nodes, len(program.declined) - declined))
        _write(dump_dir, program, f"{index:02}-{stem}.after.txt")
    return reports


def _run_one(program: Program, pass_: Pass) -> int:
    pass_.requires(program)
    before = _signature(program)
    rewrites = pass_.run(program)
    program.level = pass_.leaves
    levels.check(program, pass_.leaves, program.kept)
    if pass_.preserves_outputs and _signature(program) != before:
        raise PassError(f"inputs or outputs changed from {before} to {_signature(program)}")
    pass_.ensures(program)
    return rewrites


def check_order(passes: Sequence[Pass], level: Level) -> None:
    """Check `after`, `needs`, `reads` and `leaves` of the whole list; report every violation at once."""
    problems, names = [], [type(p) for p in passes]
    for index, pass_ in enumerate(passes):
        if names.count(type(pass_)) > 1 and names.index(type(pass_)) == index:
            problems.append(f"{pass_.stem()} stands twice")
        for other in pass_.after:
            if other in names[index + 1 :]:
                problems.append(f"{pass_.stem()} must come after {other.stem()}")
        for other in pass_.needs:
            if other not in names[:index]:
                problems.append(f"{pass_.stem()} needs {other.stem()} before it")
        if pass_.reads != level:
            problems.append(f"{pass_.stem()} reads {pass_.reads.name} but finds {level.name}")
        level = pass_.leaves
    if problems:
        raise PassError("the list of passes is out of order: " + "; ".join(problems))


def _leave_out(passes: Sequence[Pass], without: list[str]) -> list[Pass]:
    stems = [p.stem() for p in passes]
    for stem in without:
        if stem not in stems:
            raise ConfigError(f"--without {stem}: no such pass here; the passes are {', '.join(stems)}")
        out = passes[stems.index(stem)]
        needed = [p.stem() for p in passes if type(out) in p.needs]
        if out.reads != out.leaves or out.required or needed:
            why = f"{', '.join(needed)} needs it" if needed else f"nothing else brings the graph to {out.leaves.name}"
            if out.required:
                why = "back ends cannot run what it replaces"
            raise ConfigError(f"--without {stem}: cannot be left out, {why}")
    return [p for p in passes if p.stem() not in without]


def _signature(program: Program) -> tuple[tuple[str, ...], tuple[str, ...]]:
    inputs = tuple(str(n.target) for n in program.graph.find_nodes(op="placeholder"))
    return inputs, tuple(program.values)


def _write(dump_dir: Path | None, program: Program, name: str) -> None:
    if dump_dir is None:
        return
    folder = dump_dir / program.name
    folder.mkdir(parents=True, exist_ok=True)
    parts = [f"# program {program.name}, level {program.level.name}", dump(program.graph)]
    if program.level == Level.CAPTURED:
        parts += [f"\n# model {model.name}\n{dump(model.graph)}" for model in program.models.values()]
    (folder / name).write_text("\n".join(parts) + "\n", encoding="utf-8")
