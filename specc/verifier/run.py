"""`specc verify`: put an engine to every check."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from time import perf_counter
from typing import Any

import torch

from .. import __version__, environment
from ..errors import ConfigError, EngineFault
from ..manifest import EngineManifest
from ..runtime import Engine, load
from ..runtime.options import whole
from .forced import forced_drafts, penalties
from .lab import Lab
from .own_text import check_target, transformers_text
from .report import FAIL, Check, Report
from .rows import side_by_side
from .same_texts import acceptance, cold_rejection, coupled_text, greedy, self_check
from .sampled import FALSE_ALARM, plain_law, row_law, sampled_laws
from .unread import begun_ahead

NAMES: tuple[str, ...] = (
    "self-check",
    "greedy",
    "coupled",
    "cold rejection",
    "acceptance",
    "forced drafts",
    "penalties",
    "rows",
    "begun ahead",
    "laws",
    "transformers",
)
DRAWS, QUICK_DRAWS = 400, 150
LEAST_DRAWS, MOST_DRAWS = 100, 10**6

_EXACT = {"self-check", "begun ahead"}  # texts of one program: no rounding to know


def verify(
    engine: str | os.PathLike[str] | Engine,
    *,
    target: str | os.PathLike[str] | None = None,
    draws: int | None = None,
    quick: bool = False,
    only: Sequence[str] = (),
    tell: Callable[[Check], None] = lambda check: None,
) -> Report:
    """Check that an engine keeps its promises: its texts and laws are the target's, whatever is drafted.

    Args:
        engine: its folder, or a loaded one, whose text is lost.
        target: where the target model is, for the comparison with transformers; None looks where it was when the
            engine was compiled, and leaves that check out if it is not there.
        draws: for each sampled law, at least 100 (400, `quick` 150); a law that looks wrong is drawn four times as
            often again.
        quick: fewer prompts, shorter texts, and no draft lengths between the compiled ones.
        only: of `NAMES`; none is all.
        tell: called with every check that ended.

    Returns:
        What was found; `passed` says it in one word.

    Raises:
        ConfigError: an option is out of range, or `target` is not the model that was compiled.
        EngineError: the engine cannot be used.
    """
    if only and (unknown := sorted(set(only) - set(NAMES))):
        raise ConfigError(f"only: no check is called {unknown[0]!r}; they are {', '.join(NAMES)}")
    draws = (QUICK_DRAWS if quick else DRAWS) if draws is None else whole("draws", draws, LEAST_DRAWS, MOST_DRAWS)
    loaded = engine if isinstance(engine, Engine) else load(engine)
    path = None if target is None else os.fspath(target)
    if path is not None:
        check_target(loaded.manifest, path)
    lab = Lab.make(loaded, quick)
    checks = []
    for check in _run(_checks(lab, path, draws), only):
        checks.append(check)
        tell(check)
    return Report(
        engine={"path": None if isinstance(engine, Engine) else os.fspath(engine), **_engine(loaded.manifest)},
        machine={**environment.processor(), "threads": torch.get_num_threads(), "platform": platform.platform()},
        versions={"specc": __version__, "torch": torch.__version__, "python": platform.python_version()},
        options={"target": path, "draws": draws, "quick": quick, "only": list(only)},
        checks=tuple(checks),
        noise=lab.noise,
        allowed=lab.allowed,
        false_alarm=FALSE_ALARM * sum("looks" in check.figures for check in checks),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _checks(lab: Lab, target: str | None, draws: int) -> dict[str, Callable[[], Iterable[Check]]]:
    """All of them by name, in order: the first measure how far programs may differ, which the later ones need."""
    return {
        "self-check": lambda: [self_check(lab)],
        "greedy": lambda: [greedy(lab)],
        "coupled": lambda: [coupled_text(lab)],
        "cold rejection": lambda: [cold_rejection(lab)],
        "acceptance": lambda: [acceptance(lab)],
        "forced drafts": lambda: [forced_drafts(lab)],
        "penalties": lambda: [penalties(lab)],
        "rows": lambda: [side_by_side(lab)],
        "begun ahead": lambda: [begun_ahead(lab)],
        "laws": lambda: chain(plain_law(lab, draws), sampled_laws(lab, draws), row_law(lab, draws)),
        "transformers": lambda: [transformers_text(lab, target)],
    }


def _run(checks: dict[str, Callable[[], Iterable[Check]]], only: Sequence[str]) -> Iterator[Check]:
    if "greedy" not in only and not set(only) <= _EXACT:  # what it measures, the others go by
        with suppress(EngineFault):
            list(checks["greedy"]())
    for name, make in checks.items():
        if only and name not in only:
            continue
        start = perf_counter()
        try:
            for check in make():
                check.seconds = perf_counter() - start
                yield check
                start = perf_counter()
        except EngineFault as e:  # the engine itself says that something came that may not: the next check goes on
            yield Check(name, FAIL, "ended by the engine", [str(e)], seconds=perf_counter() - start)


def _engine(manifest: EngineManifest) -> dict[str, Any]:
    drafter = manifest.drafter
    names = ("engine_key", "specc_version", "torch_version", "backend", "device", "dtype", "batch", "context", "slots")
    return {
        **{name: getattr(manifest, name) for name in names},
        "target": {"source": manifest.target.source, "digest": manifest.target.digest},
        "drafter": {"source": drafter.source, "digest": drafter.digest} if drafter else manifest.drafter_kind,
        "programs": list(manifest.programs),
        "lossy": list(manifest.lossy),
        "tree_paths": [list(path) for path in manifest.tree_paths],
    }
