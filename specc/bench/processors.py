"""Processors: what a step costs with every logits processor switched on, against the same request without."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import Any

from ..runtime import Engine
from ..runtime.grammar import compile_regex
from .formulas import over
from .sampling import SEED, TEMPERATURE
from .systems import compiled, main_length

OFF, ON, GRAMMAR = "without", "all processors", "all processors and a grammar"
ANY_TEXT = r"(.|\n)*"
_NEVER = -1e4  # added to a logit: such a token does not come, but a grammar may still ask for it


def processor_cost(
    engine: Engine, prompts: Sequence[Sequence[int]], tokens: int, repeats: int, advance: Callable[[str], None]
) -> dict[str, Any]:
    """Milliseconds of a speculative step, by rule and by what is switched on.

    Programs always contain their processors, neutral values included: so this is what switching them on adds.

    Args:
        prompts: ids.
        advance: called before each run with what it is; `count_runs` says how often.

    Returns:
        `options`, and by rule and case `ms_per_step` (median), `share_of_step` (what of it the case without processors
        does not cost) and all times; and the verdict.
    """
    cases = {rule: _cases(engine, rule, tokens) for rule in ("greedy", *engine.machine.programs.rules())}
    times: dict[tuple[str, str], list[float]] = {(rule, case): [] for rule in cases for case in cases[rule]}
    length = main_length(engine)
    for rule, case in times:
        compiled(engine, length, **cases[rule][case])(prompts[0], tokens)  # the first call touches the program
    for _ in range(repeats):
        for prompt in prompts:
            for rule, case in times:
                advance(f"{rule}, {case}")
                run = compiled(engine, length, **cases[rule][case])(prompt, tokens)
                times[rule, case].append(1e3 * over(run.decode_s, run.steps))
    least = {key: median(found) for key, found in times.items()}
    rules = {
        rule: {
            case: {
                "ms_per_step": least[rule, case],
                "share_of_step": 1 - over(least[rule, OFF], least[rule, case]),
                "ms_per_step_raw": times[rule, case],
            }
            for case in cases[rule]
        }
        for rule in cases
    }
    options = {rule: {case: _plain(given) for case, given in cases[rule].items()} for rule in cases}
    return {"rules": rules, "options": options, "verdict": verdict(rules)}


def count_runs(engine: Engine, prompts: int, repeats: int) -> int:
    """How many runs `processor_cost` makes."""
    return repeats * prompts * (1 + len(engine.machine.programs.rules())) * (3 if _has_grammar(engine) else 2)


def verdict(rules: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> str:
    """One line: what share of a step is that?"""
    shares = [f"{cases[ON]['share_of_step']:.1%} of a {rule} step" for rule, cases in rules.items()]
    return f"all processors cost {', '.join(shares)}"


def _cases(engine: Engine, rule: str, tokens: int) -> dict[str, dict[str, Any]]:
    """Options by case; every text is of the same length."""
    ends = engine.manifest.eos_token_ids or (0,)
    penalties = {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1}
    drawn = {"temperature": TEMPERATURE, "seed": SEED, "acceptance": rule} if rule != "greedy" else {}
    cut = {"top_k": 50, "top_p": 0.95, "min_p": 0.02} if rule != "greedy" else {}
    on = {**drawn, **cut, **penalties, "eos_token_id": ends}
    cases: dict[str, dict[str, Any]] = {
        OFF: drawn,
        ON: {**on, "logit_bias": {ends[0]: -1.0}, "min_new_tokens": tokens},
    }
    if _has_grammar(engine):
        assert engine.text is not None
        grammar = compile_regex(ANY_TEXT, engine.text, engine.manifest.vocab_size, ends)
        cases[GRAMMAR] = {**on, "logit_bias": dict.fromkeys(ends, _NEVER), "grammar": grammar}
    return cases


def _has_grammar(engine: Engine) -> bool:
    return engine.text is not None and engine.machine.programs.all_read("grammar_state")


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as JSON has them."""
    return {name: ANY_TEXT if name == "grammar" else value for name, value in options.items()}
