"""What sampling costs: a step at temperature 0.8 against a greedy one, on the same prompts in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from ..runtime import Engine
from .systems import System, compiled, main_length

TEMPERATURE = 0.8
SEED = 11
DRAWS = 2


def sampling_cost(
    engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, repeats: int, advance: Callable[[str], None]
) -> dict[str, Any]:
    """Milliseconds per speculative step, greedy and by each sampled rule that the engine has, and acceptance.

    Args:
        prompts: ids; each is run with `DRAWS` seeds.
        advance: called after each pair of runs.

    Returns:
        By rule: `ms_per_step` (median), `share_of_step` (what of it a greedy step does not cost),
        `accepted_share_of_drafted` and all times.
    """
    rules, length = engine.machine.programs.rules(), main_length(engine)
    modes: dict[str, Callable[[int], System]] = {"greedy": lambda seed: compiled(engine, length)}
    for rule in rules:
        modes[rule] = lambda seed, rule=rule: compiled(  # type: ignore[misc]  # bound early on purpose
            engine, length, temperature=TEMPERATURE, seed=seed, acceptance=rule
        )
    times: dict[str, list[float]] = {mode: [] for mode in modes}
    counts = {mode: [0, 0] for mode in modes}
    for mode in modes.values():
        mode(SEED)(prompts[0], 2)  # the first call touches the program
    for _ in range(repeats):
        for prompt in prompts:
            for draw in range(DRAWS):
                for name, mode in modes.items():
                    run = mode(SEED + draw)(prompt, tokens)
                    times[name].append(1e3 * run.decode_s / max(1, run.steps))
                    counts[name][0] += sum(run.accepted)
                    counts[name][1] += run.drafted
                advance("sampling")
    greedy = median(times["greedy"])
    return {
        name: {
            "ms_per_step": median(times[name]),
            "share_of_step": 1 - greedy / median(times[name]),
            "accepted_share_of_drafted": counts[name][0] / max(1, counts[name][1]),
            "ms_per_step_raw": times[name],
        }
        for name in modes
    }
