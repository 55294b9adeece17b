"""`specc generate`: text to stdout as it comes, then one line of statistics to stderr."""

from __future__ import annotations

import os
import sys
from typing import Any

from .errors import ConfigError
from .runtime import Stats, load


def generate(engine: str, prompt: str, *, raw: bool = False, **params: Any) -> None:
    """Stream the continuation of a prompt.

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
    stream = loaded.stream(ids, **params)
    try:
        with stream:
            for piece in stream:
                sys.stdout.write(piece)
                sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_stdout()
        return
    except KeyboardInterrupt:
        print(f"\n{statistics(stream.stats)}, interrupted", file=sys.stderr)
        raise SystemExit(130) from None
    assert stream.result is not None
    seed = "" if stream.result.seed is None else f", seed {stream.result.seed}"
    print(f"{statistics(stream.stats)}, ended by {stream.result.finish_reason}{seed}", file=sys.stderr)


def _stdin() -> str:
    try:
        return sys.stdin.read() if sys.stdin else ""
    except UnicodeDecodeError as e:
        raise ConfigError(f"stdin is not text in {e.encoding} ({e.reason}); give the prompt in that encoding") from e


def statistics(stats: Stats) -> str:
    """One generation's counts in one line."""
    line = f"{stats.tokens} tokens, {stats.tokens_per_second:.1f} tokens/s after {stats.prefill_s:.2f} s of prefill"
    if stats.reused_tokens:
        line += f" ({stats.reused_tokens} of {stats.prompt_tokens} tokens reused)"
    line += f", {stats.steps} steps, block efficiency {stats.block_efficiency:.2f}"
    if stats.drafted:
        line += f", acceptance {stats.acceptance_rate:.0%} ({stats.accepted} of {stats.drafted} drafted)"
    return line


def _forget_stdout() -> None:
    """The reader has gone: what Python flushes at exit goes nowhere, without an error."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):  # a stdout that is no file has nothing to flush
        pass
