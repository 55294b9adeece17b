"""The tables of a bench run, and its verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from ..console import SteadyConsole, new_table
from .equality_table import equality_table
from .formulas import over
from .processors import OFF
from .sampling import TEMPERATURE
from .systems import AS_RUN, EAGER, PLAIN, SPECULATIVE


def show(result: dict[str, Any], console: Console | None = None) -> None:
    """Print a result of `bench`: a table for each thing that was measured, verdicts last."""
    console = console or SteadyConsole()
    models = result["models"]
    console.print(f"{models['target']} with {models['drafter']}, {models['dtype']}, back end {models['backend']}")
    console.print(conditions(result, "greedy, batch 1, " if "systems" in result else ""))
    parts: dict[str, tuple[Callable[[dict[str, Any]], Table], ...]] = {
        "batch": (_batch,),
        "processors": (_processors,),
        "systems": (_systems, _kinds, _speculation, _sampling, equality_table),
    }
    for part in (draw for name, draws in parts.items() if name in result for draw in draws):
        console.print(part(result))
    for found in (*(result[name] for name in ("as_run", "batch", "processors") if name in result), result):
        if "verdict" in found:
            console.print(found["verdict"])


def conditions(result: dict[str, Any], what: str) -> str:
    """Two lines: machine and versions; `what` was measured on which prompts, how often."""
    machine, config = result["machine"], result["config"]
    versions = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    return (
        f"{machine['processor']}, {machine['isa']}, {machine['threads']} threads, {versions}\n"
        f"{what}{len(result['prompts'])} prompts of {config['max_new_tokens']} new tokens, "
        f"median of {config['repeats']} interleaved repeats\n"
    )


def _systems(result: dict[str, Any]) -> Table:
    systems = result["systems"]
    table = new_table("speed after prefill", "system", "tokens/s", "ms/step", "tokens/step", "s/text with prefill")
    baselines = [name for name in (EAGER, PLAIN) if name in systems]
    for name in baselines:
        table.add_column(f"against {name.replace('transformers ', '').replace('compiled ', '')}", justify="right")
    for name, found in systems.items():
        speed = found["tokens_per_second"]
        against = [f"{over(speed, systems[base]['tokens_per_second']):.2f}x" for base in baselines]
        table.add_row(
            name,
            f"{speed:.1f}",
            f"{found['ms_per_step']:.1f}",
            f"{found['tokens_per_step']:.2f}",
            f"{found['seconds_per_text']:.2f}",
            *against,
        )
    return table


def _kinds(result: dict[str, Any]) -> Table:
    """Tokens per second by kind of prompt."""
    kinds = result["kinds"]
    drafting = [name for name in (SPECULATIVE, AS_RUN) if name in result["systems"]]
    against = (f"{name.replace('compiled ', '')} against plain" for name in drafting)
    table = new_table("tokens/s by kind of prompt", "kind", *result["systems"], *against)
    for kind, systems in kinds.items():
        speeds = {name: systems[name]["tokens_per_second"] for name in result["systems"]}
        gains = (f"{over(speeds[name], speeds[PLAIN]):.2f}x" for name in drafting)
        table.add_row(kind, *(f"{speed:.1f}" for speed in speeds.values()), *gains)
    return table


def _speculation(result: dict[str, Any]) -> Table:
    found, memory = result["speculation"], result["bandwidth"]
    table = new_table("speculation", "figure", "value")
    positions = ", ".join(f"{alpha:.2f}" for alpha in found["acceptance_per_position"])
    table.add_row("draft length K", str(found["draft_length"]))
    table.add_row("acceptance per position, given those before it", positions or "-")
    table.add_row("acceptance rate a (accepted of tried)", f"{found['acceptance_rate']:.3f}")
    table.add_row("accepted of drafted", f"{found['accepted_share_of_drafted']:.3f}")
    table.add_row("block efficiency (tokens per target pass)", f"{found['block_efficiency']:.2f}")
    table.add_row("a speculative step in plain steps, v + cK, measured as a whole", f"{found['step_over_plain']:.2f}")
    table.add_row("c, if a verification cost no more than a plain step", f"{found['cost_per_drafted_token']:.3f}")
    table.add_row("predicted, textbook (1-a^(K+1)) / ((1-a)(1+cK)) with that c", f"{found['predicted_textbook']:.2f}x")
    table.add_row("predicted, (1 + sum of products of a_j) / (v + cK)", f"{found['predicted_full']:.2f}x")
    table.add_row("measured, tokens/s speculative over plain", f"{found['measured']:.2f}x")
    table.add_row("memory bandwidth, measured by reading", f"{memory['bytes_per_second'] / 1e9:.1f} GB/s")
    table.add_row(
        f"floor of one pass ({memory['bytes_per_pass'] / 1e6:,.1f} MB of weights)", f"{memory['floor_ms']:.2f} ms"
    )
    table.add_row("share of that bandwidth that the plain step reaches", f"{memory['share_of_floor']:.0%}")
    return table


def _sampling(result: dict[str, Any]) -> Table:
    title = f"sampling at temperature {TEMPERATURE}, speculative step"
    table = new_table(title, "rule", "ms/step", "share of a step beyond greedy", "accepted of drafted")
    for rule, found in result["sampling"].items():
        share = "-" if rule == "greedy" else f"{found['share_of_step']:.1%}"
        table.add_row(rule, f"{found['ms_per_step']:.2f}", share, f"{found['accepted_share_of_drafted']:.3f}")
    return table


def _batch(result: dict[str, Any]) -> Table:
    """Speed of both systems while all rows run, by the number of rows."""
    sizes = result["batch"]["sizes"]
    title = f"greedy, rows side by side in an engine of {result['models']['rows']}: speed while all of them run"
    speeds = (f"tokens/s {name.removeprefix('compiled ')}" for name in (PLAIN, SPECULATIVE))
    steps = (f"ms/step {name.removeprefix('compiled ')}" for name in (PLAIN, SPECULATIVE))
    against = ("speculative against plain", f"plain against {min(sizes, key=int)}")
    table = new_table(title, "rows", *speeds, *against, *steps, "tokens a row and step")
    for size, found in sizes.items():
        table.add_row(
            size,
            *(f"{found[name]['tokens_per_second']:.1f}" for name in (PLAIN, SPECULATIVE)),
            f"{found['speculative_over_plain']:.2f}x",
            f"{found['plain_over_first']:.2f}x",
            *(f"{found[name]['ms_per_step']:.1f}" for name in (PLAIN, SPECULATIVE)),
            f"{found[SPECULATIVE]['tokens_per_row_and_step']:.2f}",
        )
    return table


def _processors(result: dict[str, Any]) -> Table:
    title = "logits processors, speculative step"
    table = new_table(title, "rule", "switched on", "ms/step", "share of the step")
    table.columns[1].justify = "left"
    for rule, cases in result["processors"]["rules"].items():
        for case, found in cases.items():
            share = "-" if case == OFF else f"{found['share_of_step']:.1%}"
            table.add_row(rule, case, f"{found['ms_per_step']:.2f}", share)
    return table
