"""Checks that hold texts against texts: the manifest's own, and every speculative text against the plain one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..drafter import NGRAM, SELF
from .lab import Lab, same_text
from .modes import GREEDY, Mode, cold, coupled
from .report import FAIL, PASS, Check
from .texts import Comparison

SEEDS = (1, 2**40 + 3, 17)
FEW_TIES = 2  # that chance may bring to any run
TIES = {"float32": 0.005, "float16": 0.03, "bfloat16": 0.1}  # share of tokens that may be near-ties beside these
SPECULATES_AS_PLAIN = "speculative texts against the plain step's"


def self_check(lab: Lab) -> Check:
    """The greedy text that was seen at compile time is written again."""
    stored = lab.engine.manifest.self_check
    if not stored or not stored.get("tokens"):
        return Check.skipped("self-check", "the manifest holds no text")
    prompt, tokens = list(stored["prompt"]), list(stored["tokens"])
    plain = lab.plain(prompt, GREEDY, len(tokens))
    found = Comparison(len(tokens))
    at = next((i for i, (a, b) in enumerate(zip(tokens, plain.ids, strict=True)) if a != b), None)
    if at is not None:
        other = lab.write(prompt, GREEDY, lab.steps("greedy")[-1][0], len(tokens))
        lab.compare(found, plain, other, GREEDY, len(prompt), "self-check, with speculation")
        top = plain.tokens[at].top
        gap = top[plain.ids[at]] - top.get(tokens[at], -float("inf"))
        told = f"new token {at + 1}: {plain.ids[at]} instead of {tokens[at]}; gap {gap:.3g}, programs differ by "
        (found.ties if gap <= lab.noise else found.faults).append(f"{told}{lab.noise:.3g}")
    return conclude("self-check", found, f"{len(tokens)} greedy tokens with those stored at compile time", lab.dtype)


def greedy(lab: Lab) -> Check:
    """Every draft length and tree gives the plain step's text, with its scores."""
    found, programs = _all_lengths(lab, [GREEDY], lab.prompts)
    return conclude("greedy", found, f"{found.tokens} tokens by {programs}, {SPECULATES_AS_PLAIN}", lab.dtype)


def coupled_text(lab: Lab) -> Check:
    """With a seed, coupled sampling gives the plain text of that seed whatever is drafted."""
    if not lab.steps("coupled"):
        return Check.skipped("coupled", "not compiled: --acceptance coupled")
    modes = [coupled(seed) for seed in SEEDS[: 2 if lab.quick else 3]]
    found, programs = _all_lengths(lab, modes, lab.prompts[:2])
    compared = f"{found.tokens} tokens of {len(modes)} seeds by {programs}, {SPECULATES_AS_PLAIN}"
    return conclude("coupled", found, compared, lab.dtype)


def cold_rejection(lab: Lab) -> Check:
    """Next to temperature 0 rejection has one text, the plain one: its probabilistic half is checked elsewhere."""
    if not lab.steps("rejection"):
        return Check.skipped("cold rejection", "not compiled: --acceptance rejection")
    found, programs = _all_lengths(lab, [cold("rejection")], lab.prompts[:2])
    compared = f"{found.tokens} tokens near temperature 0 by {programs}, {SPECULATES_AS_PLAIN}"
    return conclude("cold rejection", found, compared, lab.dtype)


def acceptance(lab: Lab) -> Check:
    """A drafter that is the target itself is always right; only float ties may make it wrong."""
    drafter = lab.engine.manifest.drafter
    rates = {rule: lab.accepted[rule] / offered for rule, offered in lab.offered.items() if offered}
    told = ", ".join(f"{rule} {rate:.1%}" for rule, rate in rates.items())
    chosen = lab.engine.manifest.config.get("draft", {})
    less = [f"--{name.replace('_', '-')}" for name in ("draft_vocab", "draft_quant") if chosen.get(name) is not None]
    kind, given = lab.engine.manifest.drafter_kind, str(lab.engine.manifest.config.get("drafter", ""))
    less += [f"drafter {given}"] if kind == SELF or given.startswith(f"{NGRAM},") else []
    if not rates:
        check = Check.skipped("acceptance", "nothing was drafted")
    elif drafter is None or less or drafter.digest != lab.engine.manifest.target.digest:
        why = f"is not the whole target ({', '.join(less)})" if less else "is not the target"
        check = Check.skipped("acceptance", f"the drafter {why}; accepted of what was drafted: {told}")
    else:
        least = 0.99 if lab.engine.manifest.dtype == "float32" else 0.9
        faults = [
            f"{rule}: {rate:.1%} of what was drafted was accepted, expected all (least {least:.0%})"
            for rule, rate in rates.items()
            if rate < least and rule != "rejection"  # whose trees compare one sample with the best children
        ]
        compared = f"drafter and target are one model: accepted of what was drafted {told}"
        check = Check("acceptance", FAIL if faults else PASS, compared, faults)
    check.figures = {"accepted": dict(lab.accepted), "offered": dict(lab.offered)}
    return check


def modes_of(lab: Lab) -> list[Mode]:
    """One mode in which texts are certain for every rule that is compiled."""
    makers: dict[str, Callable[[], Mode]] = {
        "coupled": lambda: coupled(SEEDS[0]),
        "rejection": lambda: cold("rejection"),
    }
    return [GREEDY, *(make() for rule, make in makers.items() if lab.steps(rule))]


def conclude(name: str, found: Comparison, compared: str, dtype: str) -> Check:
    """A check of what a comparison came to. Ties are rare even in few bits: where many differences look like such, a
    program that computes something else excuses itself by what it got wrong."""
    figures = {"tokens": found.tokens, "noise": found.noise, "ties": len(found.ties)}
    most, faults = FEW_TIES + TIES[dtype] * found.tokens, list(found.faults)
    if len(found.ties) > most:
        faults.append(f"{len(found.ties)} near-ties among {found.tokens} tokens, where at most {most:.0f} are believed")
    return Check(name, FAIL if faults else PASS, compared, faults, found.ties, figures)


def _all_lengths(lab: Lab, modes: Sequence[Mode], prompts: Sequence[Sequence[int]]) -> tuple[Comparison, str]:
    """Every draft length that is tried, and but for rejection, whose text hangs on it, the choice step by step."""
    found, steps = Comparison(), lab.steps(modes[0].rule)
    lengths: list[tuple[int | None, str]] = [(length, f"{length} ({program.name})") for length, program in steps]
    if modes[0].rule != "rejection":
        lengths.append((None, "chosen step by step"))
    for mode in modes:
        for number, prompt in enumerate(prompts):
            for length, told in lengths:
                where = f"{mode.name}, prompt {number + 1}, draft length {told}"
                found.merge(same_text(lab, prompt, mode, length, where))
    names = ", ".join(dict.fromkeys(program.name for _, program in steps))
    return found, f"{names} at {len(lengths)} draft lengths"
