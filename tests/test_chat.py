"""`specc chat`: one line a turn, commands, what a turn cost, and ends that are clean."""

from __future__ import annotations

import builtins
import io
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_engine import fake_engine, letters

import specc
import specc.chat
from specc.chat import chat
from specc.cli import main
from specc.errors import ConfigError, LowAcceptanceWarning
from specc.runtime import Engine, Stream
from specc.runtime.text import Text

TEMPLATE = (
    "{% for m in messages %}{{ {'system': 'X', 'user': 'Y', 'assistant': 'Z'}[m['role']] }}{{ m['content'] }}"
    "{% endfor %}{% if add_generation_prompt %}Z{% endif %}"
)
REUSE = re.compile(r"(\d+) of (\d+) prompt tokens reused, (\d+) prefilled")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """An engine of one letter a token, with a chat template."""
    text = Text(letters().tokenizer, {"chat_template": TEMPLATE})
    made, _ = fake_engine(text=text, context=100)
    monkeypatch.setattr(specc.chat, "load", lambda path: made)
    return made


class Typed(io.StringIO):
    """Lines typed at a terminal."""

    def isatty(self) -> bool:
        return True


def say(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *lines: str,
    typed: bool = False,
    **options: Any,
) -> tuple[list[str], list[str]]:
    """Chat over a pipe or at a terminal; the lines of stdout and stderr."""
    monkeypatch.setattr(sys, "stdin", (Typed if typed else io.StringIO)("".join(f"{line}\n" for line in lines)))
    chat("engine", **{"max_new_tokens": 5, **options})
    out, err = capsys.readouterr()
    return out.splitlines(), err.splitlines()


def answers(engine: Engine, *turns: str, system: str = "", tokens: int = 5) -> list[str]:
    """What a whole conversation gives, each answer generated from its own prompt."""
    prompt, said = f"X{system}" if system else "", []
    for turn in turns:
        prompt += f"Y{turn}Z"
        said.append(engine.generate(prompt, max_new_tokens=tokens).text)
        prompt += said[-1]
    return said


def prompts(err: list[str]) -> list[int]:
    """Prompt tokens of each answer."""
    return [int(found.group(2)) for line in err if (found := REUSE.search(line))]


def test_a_line_of_a_pipe_is_a_turn(engine: Engine, monkeypatch: Any, capsys: Any) -> None:
    expected = answers(engine, "AB", "CDE", system="SS")
    out, err = say(monkeypatch, capsys, "AB", "", "CDE", system="SS")
    assert out == expected
    assert len(err) == 2 and all("block efficiency" in line and "ended by length" in line for line in err)


def test_only_what_is_new_is_prefilled(engine: Engine, monkeypatch: Any, capsys: Any) -> None:
    engine.generate("H", max_new_tokens=1)  # nothing of the conversation is known at its begin
    _, err = say(monkeypatch, capsys, "AB", "CDE")
    counts = [tuple(map(int, found.groups())) for line in err if (found := REUSE.search(line))]
    assert counts == [(0, 4, 4), (8, 14, 6)]  # the last token of an answer is in no cache yet


def test_edit_replaces_what_was_said_last(engine: Engine, monkeypatch: Any, capsys: Any) -> None:
    first, second = answers(engine, "AB", "CDE")
    other = answers(engine, "AB", "CF")[1]
    after = answers(engine, "AB", "CF", "G")[2]
    assert len({second, other, after}) == 3
    out, err = say(monkeypatch, capsys, "AB", "CDE", "/edit  CF ", "G")
    assert out == [first, second, other, after]
    assert prompts(err) == [4, 14, 13, 21]  # the toy reads three tokens: that the history is right shows in its length


def test_reset_keeps_the_system_prompt(engine: Engine, monkeypatch: Any, capsys: Any) -> None:
    (first,) = answers(engine, "AB", system="SS")
    out, err = say(monkeypatch, capsys, "CDE", "/reset", "AB", system="SS")
    assert out[1:] == [first]
    assert prompts(err) == [8, 7]


def test_quit_help_and_a_text_with_a_slash(engine: Engine, monkeypatch: Any, capsys: Any) -> None:
    told: list[str] = []
    monkeypatch.setattr(specc.runtime.Chat, "say", lambda self, text: told.append(text))
    monkeypatch.setattr(specc.chat, "_answer", lambda stream: None)
    _, err = say(monkeypatch, capsys, "/help", "//A", "B", "/quit", "C")
    assert told == ["/A", "B"]
    assert all(any(word in line for line in err) for word in ("/edit", "/reset", "/quit", "Ctrl-C"))


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/edit", "needs the new text behind it"),
        ("/edit A", "nothing was said yet"),
        ("/fly", "/fly is no command.*//fly says it"),
        ("/reset all", "takes nothing behind it"),
        ("A" * 120, "context of 100"),
    ],
)
def test_what_goes_wrong_in_a_turn(engine: Engine, monkeypatch: Any, capsys: Any, line: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        say(monkeypatch, capsys, line, "AB")
    assert not capsys.readouterr().out
    _type(monkeypatch, line, "AB")
    out, err = say(monkeypatch, capsys, typed=True)
    assert out == answers(engine, "AB")
    assert any(re.search(told, line) for line in err)


def test_what_is_wrong_from_the_start_is_refused_before_a_turn(engine: Engine, monkeypatch: Any, capsys: Any) -> None:
    with pytest.raises(ConfigError, match="top_p"):
        say(monkeypatch, capsys, "AB", top_p=2.0)
    assert engine.text is not None
    engine.text.special.clear()
    with pytest.raises(ConfigError, match="no chat template; type specc generate engine --raw"):
        say(monkeypatch, capsys, "AB")


def test_refused_drafts_are_told_behind_the_answer(engine: Engine, monkeypatch: Any, capsys: Any) -> None:
    def see(outcomes: Any, pilot: Any) -> None:
        if not engine.watch.said:
            engine.watch.said = "acceptance 1%"
            warnings.warn(engine.watch.said, LowAcceptanceWarning, stacklevel=2)

    monkeypatch.setattr(engine.watch, "see", see)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, err = say(monkeypatch, capsys, "AB", "CD")
    assert err.count("(acceptance 1%)") == 1 and err[1] == "(acceptance 1%)"


def test_options_that_can_be_read_once_serve_every_turn(engine: Engine) -> None:
    (once,) = answers(engine, "AB", tokens=30)
    stop = once[5:7]
    chat = engine.conversation(max_new_tokens=30, stop=(s for s in [stop]))
    assert "".join(chat.say("AB")) == once[: once.index(stop)]


def test_an_interrupt_stops_the_answer_only(engine: Engine, monkeypatch: Any, capsys: Any) -> None:
    whole = answers(engine, "AB", tokens=30)[0]
    pieces = iter([False, False, True])
    original = Stream.__next__

    def interrupted(stream: Stream) -> str:
        if next(pieces, False):
            raise KeyboardInterrupt
        return original(stream)

    monkeypatch.setattr(Stream, "__next__", interrupted)
    out, err = say(monkeypatch, capsys, "AB", "CDE", max_new_tokens=30)
    assert len(out) == 2 and 0 < len(out[0]) < len(whole) and whole.startswith(out[0])
    assert err[0].endswith("stopped)") and "ended by length" in err[1]
    assert out[1] == engine.generate(f"YABZ{out[0]}YCDEZ", max_new_tokens=30).text


def test_interrupts_while_typing_drop_the_line(engine: Engine, monkeypatch: Any, capsys: Any) -> None:
    _type(monkeypatch, KeyboardInterrupt(), "AB")
    out, err = say(monkeypatch, capsys, typed=True)
    assert out == answers(engine, "AB")
    assert any("Ctrl-D" in line for line in err)


def test_stdin_that_is_no_text(engine: Engine, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8"))
    with pytest.raises(ConfigError, match="stdin is not text in utf-8"):
        chat("engine")


def test_on_a_compiled_engine(tiny_engine: Path, monkeypatch: Any, capsys: Any) -> None:
    lines = "the end of the line\nand in there\n/edit and here\n"
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    words = ["--system", "be", "--max-new-tokens", "8", "--temperature", "0.8", "--seed", "3"]
    assert main(["chat", str(tiny_engine), *words]) == 0
    out, err = capsys.readouterr()
    engine = specc.load(tiny_engine)
    options: dict[str, Any] = {"max_new_tokens": 8, "temperature": 0.8, "seed": 3}
    first = engine.generate(engine.chat(_messages("be", "the end of the line")), **options).text
    last = engine.generate(engine.chat(_messages("be", "the end of the line", first, "and here")), **options).text
    assert out.startswith(first + "\n") and out.endswith(last + "\n")
    reused = [int(found.group(1)) for found in REUSE.finditer(err)]
    assert len(reused) == 3 and reused[0] == 0 and reused[1] > 20 and reused[2] > 20
    assert main(["chat", str(tiny_engine), "--n", "2"]) == 2
    assert "--n 2" in capsys.readouterr().err


def _messages(system: str, *said: str) -> list[dict[str, str]]:
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    return [{"role": "system", "content": system}, *turns]


def _type(monkeypatch: pytest.MonkeyPatch, *lines: str | BaseException) -> None:
    """What `input` gives, line by line, and Ctrl-D behind it."""
    typed: Iterator[str | BaseException] = iter([*lines, EOFError()])

    def type_line(prompt: str = "") -> str:
        line = next(typed)
        if isinstance(line, BaseException):
            raise line
        return line

    monkeypatch.setattr(builtins, "input", type_line)
