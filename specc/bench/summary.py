"""From raw runs to figures: medians over repeats, sums over prompts, acceptance, predictions, verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from .formulas import break_even, conditional, full, over, rate, textbook
from .systems import AS_RUN, PLAIN, SPECULATIVE, Run


@dataclass(frozen=True, slots=True)
class Record:
    """One run with where it belongs: repeat, prompt index, kind of the prompt, system."""

    repeat: int
    prompt: int
    kind: str
    system: str
    run: Run

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**dataclasses.asdict(self), "run": self.run.to_json()}


def figures(records: Sequence[Record]) -> dict[str, float]:
    """Speed of one system: medians over the repeats of each prompt, then summed over prompts.

    Returns:
        `tokens_per_second` and `ms_per_token` after prefill, `ms_per_step`, `tokens_per_step`, and
        `seconds_per_text` with prefill.
    """
    decode = whole = 0.0
    tokens = steps = 0
    prompts = sorted({r.prompt for r in records})
    for prompt in prompts:
        runs = [r.run for r in records if r.prompt == prompt]
        decode += median(run.decode_s for run in runs)
        whole += median(run.seconds for run in runs)
        tokens += runs[0].decoded
        steps += runs[0].steps
    return {
        "tokens_per_second": over(tokens, decode),
        "ms_per_token": 1e3 * over(decode, tokens),
        "ms_per_step": 1e3 * over(decode, steps),
        "tokens_per_step": over(tokens, steps),
        "seconds_per_text": over(whole, len(prompts)),
    }


def by_system(records: Iterable[Record]) -> dict[str, dict[str, float]]:
    """`figures` of each system."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(record.system, []).append(record)
    return {system: figures(group) for system, group in groups.items()}


def by_kind(records: Sequence[Record]) -> dict[str, dict[str, dict[str, float]]]:
    """`by_system` of each kind of prompt."""
    kinds = dict.fromkeys(r.kind for r in records)
    return {kind: by_system(r for r in records if r.kind == kind) for kind in kinds}


def speculation(records: Sequence[Record], plain_name: str = PLAIN, step_name: str = SPECULATIVE) -> dict[str, Any]:
    """Acceptance, the two predictions, and what was measured, from the runs of two compiled systems.

    A speculative step is timed as a whole: there is no program that only verifies. So the full formula gets its
    denominator v + cK as measured, and the textbook one a c that bears all that a step costs beyond one plain pass.
    """
    systems = by_system(records)
    plain, step = systems[plain_name], systems[step_name]
    first = {r.prompt: r.run for r in records if r.system == step_name and r.repeat == 0}
    steps = sum(run.steps - run.plain_steps for run in first.values())
    plain_steps = sum(run.plain_steps for run in first.values())
    accepted = [sum(column) for column in zip(*(run.accepted for run in first.values()), strict=True)]
    drafted, length = sum(run.drafted for run in first.values()), len(accepted)
    seconds = step["ms_per_step"] * (steps + plain_steps) - plain["ms_per_step"] * plain_steps
    cost = over(over(seconds, steps), plain["ms_per_step"])
    alpha, alphas = rate(accepted, steps), conditional(accepted, steps)
    threshold = break_even(length, cost) if steps else None
    per_token = over(cost - 1, length)
    return {
        "steps": steps,
        "plain_steps": plain_steps,
        "draft_length": length,
        "drafted": drafted,
        "accepted": sum(accepted),
        "accepted_share_of_drafted": over(sum(accepted), drafted),
        "acceptance_rate": alpha,
        "acceptance_per_position": alphas,
        "block_efficiency": step["tokens_per_step"],
        "step_over_plain": cost,
        "cost_per_drafted_token": per_token,
        "predicted_textbook": textbook(alpha, length, per_token) if cost else 0.0,
        "predicted_full": full(alphas, cost) if cost else 0.0,
        "measured": over(step["tokens_per_second"], plain["tokens_per_second"]),
        "break_even": threshold,
    }


def as_run(records: Sequence[Record], plain_name: str = PLAIN, name: str = AS_RUN) -> dict[str, Any]:
    """The engine as users run it, which chooses what each step drafts: steps, plain ones among them, and the gain."""
    systems = by_system(records)
    first = [r.run for r in records if r.system == name and r.repeat == 0]
    steps, plain_steps = sum(run.steps for run in first), sum(run.plain_steps for run in first)
    gain = over(systems[name]["tokens_per_second"], systems[plain_name]["tokens_per_second"])
    return {
        "steps": steps,
        "plain_steps": plain_steps,
        "block_efficiency": systems[name]["tokens_per_step"],
        "accepted_share_of_drafted": over(sum(sum(run.accepted) for run in first), sum(run.drafted for run in first)),
        "measured": gain,
        "verdict": f"as run, each step chosen by its promise: {gain:.2f}x the plain step, {plain_steps} of {steps} "
        "steps plain",
    }


def verdict(found: dict[str, Any]) -> str:
    """One line: does speculation pay on these prompts?"""
    gain, alpha, threshold = found["measured"], found["acceptance_rate"], found["break_even"]
    if gain > 1:
        return f"speculation pays: {gain:.2f}x the plain step"
    if not found["steps"]:
        return f"speculation did not run: every step was plain ({gain:.2f}x the plain step)"
    if threshold is None:
        return (
            f"speculation does not pay: {gain:.2f}x the plain step; a step costs {found['step_over_plain']:.2f} plain "
            f"passes and emits at most {found['draft_length'] + 1} tokens"
        )
    below = "below" if alpha < threshold else "near"
    return (
        f"speculation does not pay: {gain:.2f}x the plain step; acceptance {alpha:.0%} is {below} the {threshold:.0%} "
        "at which a step pays for itself"
    )
