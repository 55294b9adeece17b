"""`specc generate`: text to stdout as it comes, log-probabilities if asked for, one line of statistics to stderr."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from typing import Any

from .errors import ConfigError, LowAcceptanceWarning
from .runtime import Engine, Generation, Stats, load
from .runtime.text import BROKEN


def generate(engine: str, prompt: str, *, raw: bool = False, **params: Any) -> None:
    """Stream the continuation of a prompt; several samples of it (`n`) come one after another.

    Args:
        engine: folder of the engine.
        prompt: the text; `-` reads it from stdin. It is the user's turn in the model's chat template, if there is one.
        raw: give the prompt to the model as it is.
        params: as `Engine.generate` takes them.

    Raises:
        ConfigError: the prompt is empty, or a parameter cannot be honoured.
        EngineError: the engine cannot be used.
    """
    text = _stdin() if prompt == "-" else prompt
    loaded = load(engine)
    if not text:
        raise ConfigError("the prompt is empty; give a text, or - to read it from stdin")
    ids: str | list[int] = loaded.chat(text) if loaded.has_chat_template and not raw else text
    before = loaded.watch.said
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LowAcceptanceWarning)  # said below, not between pieces of text
        results = _samples(loaded, ids, **params) if params.get("n", 1) > 1 else [_stream(loaded, ids, **params)]
    samples = f"{len(results)} samples, " if len(results) > 1 else ""
    ends = ", ".join(dict.fromkeys(result.finish_reason for result in results))
    seed = "" if results[0].seed is None else f", seed {results[0].seed}"
    line = statistics(together([result.stats for result in results]))
    print(f"{samples}{line}, ended by {ends}{seed}", file=sys.stderr)
    if loaded.watch.said != before:
        print(f"note: {loaded.watch.said}", file=sys.stderr)


def _stream(engine: Engine, ids: str | list[int], **params: Any) -> Generation:
    stream = engine.stream(ids, **params)
    try:
        with stream:
            for piece in stream:
                sys.stdout.write(piece)
                sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"\n{statistics(stream.stats)}, interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    assert stream.result is not None
    sys.stdout.write("\n" + logprob_table(engine, stream.result))
    sys.stdout.flush()
    return stream.result


def _samples(engine: Engine, ids: str | list[int], **params: Any) -> Sequence[Generation]:
    results = engine.generate(ids, **params)
    assert isinstance(results, list)  # since n is above 1
    for result in results:
        head = f"[{result.sample + 1} of {len(results)}]"
        sys.stdout.write(f"{head}\n{result.text}\n{logprob_table(engine, result)}")
    sys.stdout.flush()
    return results


def _stdin() -> str:
    try:
        return sys.stdin.read() if sys.stdin else ""
    except UnicodeDecodeError as e:
        raise ConfigError(f"stdin is not text in {e.encoding} ({e.reason}); give the prompt in that encoding") from e


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
