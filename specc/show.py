"""Show: what a text came to, as a line of statistics and a table of log-probabilities."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from .errors import LowAcceptanceWarning
from .runtime import Engine, Generation, Stats
from .runtime.text import BROKEN


def logprob_table(engine: Engine, result: Generation) -> str:
    """A line for each new token: id, spelling, log-probability, the likeliest; empty where none were asked for."""
    if result.logprobs is None:
        return ""
    rows = [("id", "token", "logprob", "likeliest")]
    for entry in result.logprobs:
        best = "  ".join(f"{_spell(engine, token)} {value:.3f}" for token, value in entry.top.items())
        rows.append((str(entry.token), _spell(engine, entry.token), f"{entry.logprob:.3f}", best))
    number, token, value = (max(len(row[i]) for row in rows) for i in range(3))
    lines = [f"{i:>{number}}  {spelled:<{token}}  {logprob:>{value}}  {best}" for i, spelled, logprob, best in rows]
    return "\n" + "".join(f"{line.rstrip()}\n" for line in lines)


def _spell(engine: Engine, token: int) -> str:
    """A token in quotes; one that is part of a character as the tokenizer names it."""
    assert engine.text is not None
    text = str(engine.text.tokenizer.decode([token], skip_special_tokens=False))
    return repr(engine.text.tokenizer.id_to_token(token) if BROKEN in text or not text else text)


def statistics(stats: Stats, reuse: bool = False) -> str:
    """One generation's counts in one line; `reuse` tells of the caches' part of the prompt even if that was none."""
    line = f"{stats.tokens} tokens, {stats.tokens_per_second:.1f} tokens/s after {stats.prefill_s:.2f} s of prefill"
    if stats.reused_tokens or reuse:
        new = stats.prompt_tokens - stats.reused_tokens
        line += f" ({stats.reused_tokens} of {stats.prompt_tokens} prompt tokens reused, {new} prefilled)"
    plain = f" ({stats.plain_steps} of them plain)" if 0 < stats.plain_steps < stats.steps else ""
    line += f", {stats.steps} steps{plain}, block efficiency {stats.block_efficiency:.2f}"
    if stats.drafted:
        line += f", acceptance {stats.acceptance_rate:.0%} ({stats.accepted} of {stats.drafted} drafted)"
    return line


def together(stats: Sequence[Stats]) -> Stats:
    """The counts of texts that ran side by side: they add up, but for the seconds in steps, which they share."""
    return Stats(
        prompt_tokens=sum(s.prompt_tokens for s in stats),
        tokens=sum(s.tokens for s in stats),
        steps=sum(s.steps for s in stats),
        plain_steps=sum(s.plain_steps for s in stats),
        drafted=sum(s.drafted for s in stats),
        accepted=sum(s.accepted for s in stats),
        prefill_s=sum(s.prefill_s for s in stats),
        decode_s=max((s.decode_s for s in stats), default=0.0),
        reused_tokens=sum(s.reused_tokens for s in stats),
    )


@contextmanager
def said_later() -> Iterator[None]:
    """Holds back the warning of refused drafts, which would stand in the middle of a text; `Watch.said` keeps it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LowAcceptanceWarning)
        yield
