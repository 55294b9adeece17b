"""`specc generate`: text to stdout as it comes, log-probabilities if asked for, one line of statistics to stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from .errors import ConfigError
from .runtime import Engine, Generation, load
from .show import logprob_table, said_later, statistics, together


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
    with said_later():
        results = _samples(loaded, ids, **params) if params.get("n", 1) > 1 else [_stream(loaded, ids, **params)]
    samples = f"{len(results)} samples, " if len(results) > 1 else ""
    ends = ", ".join(dict.fromkeys(result.finish_reason for result in results))
    seed = "" if results[0].seed is None else f", seed {results[0].seed}"
    line = statistics(together([result.stats for result in results]))
    lossy = f", LOSSY ({results[0].acceptance} acceptance)" if results[0].lossy else ""
    print(f"{samples}{line}, ended by {ends}{seed}{lossy}", file=sys.stderr)
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
