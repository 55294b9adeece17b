"""`specc chat`: a conversation in a terminal or over a pipe, one line a turn; answers to stdout, all else to stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from .errors import ConfigError
from .runtime import Chat, Stream, load
from .show import said_later, statistics

COMMANDS = """\
/edit TEXT   say TEXT in place of what you said last, and have it answered again
/reset       forget the conversation; the system prompt stays
/help        this list
/quit        end, as Ctrl-D does
//TEXT       say /TEXT
Ctrl-C       stop the answer that is running; what it said so far stays said"""


def chat(engine: str, *, system: str | None = None, **params: Any) -> None:
    """Read turns from stdin and answer them, until it ends.

    What goes wrong in a turn (a conversation that no longer fits, an unknown command) is told on a terminal, and ends
    the chat where stdin is a pipe or a file.

    Args:
        engine: folder of the engine.
        system: the system prompt.
        params: of every answer, as `Engine.generate` takes them.

    Raises:
        ConfigError: the model has no chat template, a parameter cannot be honoured, or a turn went wrong.
        EngineError: the engine cannot be used.
    """
    loaded = load(engine)
    if not loaded.has_chat_template:
        raise ConfigError(f'{engine}: its model has no chat template; type specc generate {engine} --raw "PROMPT"')
    conversation = loaded.conversation(system, **params)
    typed, said = sys.stdin is not None and sys.stdin.isatty(), loaded.watch.said
    if typed:
        _tell("one line is one turn; /help lists what else can be typed")
    for line in _lines(typed):
        try:
            if not _turn(conversation, line):
                break
            if loaded.watch.said != said:
                said = loaded.watch.said
                _tell(said)
        except ConfigError as e:
            if not typed:
                raise
            _tell(str(e))
        except KeyboardInterrupt:  # between an answer and the next line
            _tell("stopped")


def _lines(typed: bool) -> Iterator[str]:
    """What is typed, line by line, without empty lines; Ctrl-C drops a line, Ctrl-D ends."""
    while True:
        try:
            line = _read(typed).strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            if not typed:
                raise
            _tell("Ctrl-D or /quit ends the chat")
            continue
        if line:
            yield line


def _read(typed: bool) -> str:
    try:
        if typed:
            with suppress(ImportError):
                import readline  # noqa: F401  # gives `input` a history and arrow keys
            if sys.stdout.isatty():
                return input("> ")
            print("> ", end="", file=sys.stderr, flush=True)  # answers go into a file, the prompt does not
            return input()
        line = sys.stdin.readline() if sys.stdin else ""
    except UnicodeDecodeError as e:
        raise ConfigError(f"stdin is not text in {e.encoding} ({e.reason}); give the turns in that encoding") from e
    if not line:
        raise EOFError
    return line


def _turn(conversation: Chat, line: str) -> bool:
    """Do what a line says; returns whether the chat goes on."""
    command, _, rest = line.partition(" ")
    if line.startswith("//") or not line.startswith("/"):
        _answer(conversation.say(line.removeprefix("/") if line.startswith("//") else line))
    elif command == "/edit" and rest.strip():
        _answer(conversation.edit(rest.strip()))
    elif command == "/edit":
        raise ConfigError("/edit needs the new text behind it, as /edit And in winter?")
    elif line == "/reset":
        conversation.reset()
        _tell("the conversation is empty again")
    elif line == "/help":
        print(COMMANDS, file=sys.stderr)
    elif line == "/quit":
        return False
    else:
        raise ConfigError(f"{command} is no command, or takes nothing behind it; /help lists them, /{line} says it")
    return True


def _answer(stream: Stream) -> None:
    """Print an answer as it comes, then what it cost; Ctrl-C ends the answer only."""
    end = "stopped"
    try:
        with stream, said_later():
            for piece in stream:
                sys.stdout.write(piece)
                sys.stdout.flush()
        if stream.result:
            lossy = f", LOSSY ({stream.result.acceptance} acceptance)" if stream.result.lossy else ""
            end = f"ended by {stream.result.finish_reason}{lossy}"
    except KeyboardInterrupt:
        pass
    sys.stdout.write("\n")
    sys.stdout.flush()
    _tell(f"{statistics(stream.stats, reuse=True)}, {end}")


def _tell(line: str) -> None:
    print(f"({line})", file=sys.stderr, flush=True)
