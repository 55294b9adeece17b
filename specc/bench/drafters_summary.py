"""From raw runs to the comparison of drafters: one row for every way that an engine drafts, and the baselines' rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..candidate_table import main_draft
from ..manifest import EngineManifest
from .formulas import over
from .summary import Record, as_run, by_kind, by_system, speculation
from .systems import EAGER

FIXED, AS_RUN = "fixed draft", "as run"


class Names(NamedTuple):
    """The systems of one engine.

    Attributes:
        plain: its plain step; engines that hold the same program share one.
        drafting: `FIXED`, and `AS_RUN` where the engine chooses what each step drafts.
    """

    plain: str
    drafting: dict[str, str]


def summarize(
    records: Sequence[Record], names: Mapping[str, Names], manifests: Mapping[str, EngineManifest]
) -> dict[str, Any]:
    """Figures of all systems and kinds, of every engine's speculation, and the comparison: its rows and its verdict.

    All gains are against the best plain step among the engines.
    """
    systems, kinds = by_system(records), by_kind(records)
    plain = max((own.plain for own in names.values()), key=lambda name: systems[name]["tokens_per_second"])
    eager = EAGER if EAGER in systems else None

    def row(system: str, engine: str, drafter: str, draft: str, found: Mapping[str, Any]) -> dict[str, Any]:
        speed = systems[system]["tokens_per_second"]
        return {
            "system": system,
            "engine": engine,
            "drafter": drafter,
            "draft": draft,
            "acceptance": found.get("acceptance_rate"),
            "step_over_plain": found.get("step_over_plain"),
            "tokens_per_step": systems[system]["tokens_per_step"],
            "tokens_per_second": speed,
            "against_plain": over(speed, systems[plain]["tokens_per_second"]),
            "against_eager": over(speed, systems[eager]["tokens_per_second"]) if eager else None,
            "kinds": {
                kind: over(by[system]["tokens_per_second"], by[plain]["tokens_per_second"])
                for kind, by in kinds.items()
            },
        }

    rows = [row(name, name, "-", "-", {}) for name in (eager, plain) if name]
    engines: dict[str, Any] = {}
    for name, own in names.items():
        what, shape = models(manifests[name]), main_draft(manifests[name])
        fixed = speculation(records, plain, own.drafting[FIXED])
        engines[name] = {"models": what, "draft": shape, "systems": own._asdict(), "speculation": fixed}
        rows.append(row(own.drafting[FIXED], name, what["drafter"], shape, fixed))
        if AS_RUN in own.drafting:
            engines[name]["as_run"] = as_run(records, plain, own.drafting[AS_RUN])
            rows.append(row(own.drafting[AS_RUN], name, what["drafter"], AS_RUN, {}))
    return {
        "systems": systems,
        "kinds": kinds,
        "engines": engines,
        "comparison": {"plain": plain, "eager": eager, "rows": rows, "verdict": verdict(rows)},
    }


def models(manifest: EngineManifest) -> dict[str, Any]:
    """What an engine was made of."""
    return {
        "target": manifest.target.source,
        "drafter": manifest.drafted_by,
        "dtype": manifest.dtype,
        "backend": manifest.backend,
        "rows": manifest.batch,
    }


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """One line: which engine is fastest, and what is no faster than the best plain step."""
    drafting = [row for row in rows if row["draft"] != "-"]
    best = max(drafting, key=lambda row: row["against_plain"])
    told = [f"{row['engine']} ({row['draft']}) {row['against_plain']:.2f}x" for row in drafting]
    slow = [said for said, row in zip(told, drafting, strict=True) if row["against_plain"] <= 1]
    if len(slow) == len(drafting):
        return f"speculation does not pay with any of these drafters, against the best plain step: {', '.join(slow)}"
    said = f"fastest: {told[drafting.index(best)]} the best plain step"
    return f"{said}; these do not pay: {', '.join(slow)}" if slow else said
