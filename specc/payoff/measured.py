"""From an engine: the costs and the acceptance that its manifest holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..bench.formulas import conditional, full, rate
from ..candidate_table import best_few, main_draft
from ..errors import ConfigError, EngineError
from ..manifest import EngineManifest
from ..prediction import Paths, step_costs
from ..runtime.cost import CostTable, Trial, interpolate
from ..tree import DraftTree
from ..tune import Candidate, candidates
from .draft import Draft, best, chain, grid, least_break_even

MEASURED, BETWEEN, BEYOND, TUNED = "measured", "interpolated", "extrapolated", "dynamic programme"


class Chains(NamedTuple):
    """What is known of the chains of an engine.

    Attributes:
        trial: of the longest that was tried.
        costs: a step in plain steps, by length; 0 is the plain step.
    """

    trial: Trial
    costs: Mapping[int, float]

    def draft(self, length: int) -> Draft:
        """A chain of this length; one that was not compiled lies between those that were, or beyond them."""
        source = MEASURED if length in self.costs else BETWEEN if length < max(self.costs) else BEYOND
        levels = conditional(self.trial.accepted, self.trial.steps)
        more = [rate(self.trial.accepted, self.trial.steps)] * (length - len(levels))
        return chain(length, full([*levels, *more][:length], 1.0), self.cost(length), source)

    def cost(self, length: int) -> float:
        """A step in plain steps."""
        lengths = sorted(self.costs)
        return interpolate(lengths, [self.costs[n] for n in lengths], length)


def from_engine(engine: str, manifest: EngineManifest, lengths: Sequence[int]) -> dict[str, Any]:
    """Every draft of an engine, chains of other lengths, and where it was tuned the trees of the dynamic programme.

    Args:
        lengths: of chains; empty takes all up to the longest that was compiled.

    Raises:
        ConfigError: lengths are given, and nothing is known of chains.
        EngineError: the engine was not measured.
        EngineFormatError: the manifest's cost is damaged.
    """
    table = CostTable.read(manifest.cost)
    trials = _trials(manifest, table) if table else {}
    costs = step_costs(manifest, table) if table else {}
    chains, tuned = _chains(trials, costs.get(1, {})), _tuned(manifest, lengths)
    rows = {n: _drafts(trials, _chains(trials, found), found, lengths) for n, found in sorted(costs.items())}
    drafts = rows.get(1, [])
    if not drafts and not tuned:
        raise EngineError(
            f"{engine}: holds no measurements of its drafts (it was compiled with --fixed); compile without, "
            "or give numbers: specc plan --acceptance A --cost C"
        )
    if lengths and not chains and not tuned:
        raise ConfigError(f"--draft-lengths: {engine} drafts trees alone; leave it out, or compile --ladder 1,3")
    for draft in drafts:
        if draft["paths"] == [list(path) for path in manifest.tree_paths[1:]]:
            draft["draft"] = main_draft(manifest)
    trial = chains.trial if chains else next(iter(trials.values()), None)
    known = (lengths or range(1, max(chains.costs) + 1)) if chains else ()
    return {
        "engine": engine,
        "models": {
            "target": manifest.target.source,
            "drafter": manifest.drafted_by,
        },
        "acceptance": rate(trial.accepted, trial.steps) if trial else None,
        "acceptance_per_level": conditional(trial.accepted, trial.steps) if trial else [],
        "drafts": drafts,
        "tuned": tuned,
        "best": best([*drafts, *_unmeasured(tuned, drafts)]),
        "break_even": least_break_even(drafts or tuned),
        "grid": grid({"this engine": chains.cost}, known) if chains else {},
        "batch": {str(size): best(found) for size, found in rows.items() if found} if len(rows) > 1 else {},
    }


def _unmeasured(tuned: list[dict[str, Any]], drafts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Predictions for trees that nothing was measured of: a measurement is the better word on the same tree."""
    known = [draft["paths"] for draft in drafts]
    return [draft for draft in tuned if draft["paths"] not in known]


def _trials(manifest: EngineManifest, table: CostTable) -> dict[Paths, Trial]:
    """By tree, those with steps."""
    known = {name: spec.tree_paths for name, spec in manifest.programs.items()}
    return {known[name]: trial for name, trial in table.trials.items() if trial.steps and name in known}


def _chains(trials: Mapping[Paths, Trial], costs: Mapping[Paths, float]) -> Chains | None:
    tried = [paths for paths in trials if DraftTree(paths).is_chain]
    by_length = {len(paths) - 1: cost for paths, cost in costs.items() if DraftTree(paths).is_chain}
    return Chains(trials[max(tried, key=len)], by_length) if tried and len(by_length) > 1 else None


def _drafts(
    trials: Mapping[Paths, Trial], chains: Chains | None, costs: Mapping[Paths, float], lengths: Sequence[int]
) -> list[dict[str, Any]]:
    """Chains by length, then the trees that were tried and timed."""
    found = [chains.draft(n) for n in lengths or range(1, max(chains.costs) + 1)] if chains else []
    for paths, trial in trials.items():
        tree = DraftTree(paths)
        if paths in costs and not tree.is_chain:
            tokens = full(conditional(trial.accepted, trial.steps), 1.0)
            found.append(Draft(Candidate(tree, tokens, costs[paths]), MEASURED))
    return [draft.to_json() for draft in found]


def _tuned(manifest: EngineManifest, lengths: Sequence[int]) -> list[dict[str, Any]]:
    """The best few of the dynamic programme, from what `--tune` measured; empty without."""
    tuned = manifest.config.get("tuned") or {}
    if not tuned.get("child_acceptance"):
        return []
    verify = {int(rows): cost for rows, cost in tuned["verify_cost"].items()}
    places = sorted(verify)
    found = candidates(
        tuned["child_acceptance"],
        tuned["draft_cost"],
        lambda rows: interpolate(places, [verify[n] for n in places], rows),
    )
    kept = [one for one in found if not one.tree.is_chain or not lengths or one.tree.depth in lengths]
    return [Draft(one, TUNED).to_json() for one in best_few(kept)]
