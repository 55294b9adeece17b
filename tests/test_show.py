"""`specc generate`: text to stdout, one line of statistics to stderr, clean ends."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest

import specc
import specc.show
from specc.errors import ConfigError
from specc.runtime import Engine, Stats, Stream
from specc.show import generate, statistics

PROMPT = "the end of the line"
ENDLESS = """
import sys
import specc.cli, specc.show
from specc.runtime import Stats

class Endless:
    has_chat_template = False
    def stream(self, prompt, **options):
        return self
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass
    def __iter__(self):
        while True:
            yield "word "

specc.show.load = lambda path: Endless()
sys.exit(specc.cli.main(["generate", "engine", "prompt"]))
"""


@pytest.fixture(scope="module")
def loaded(tiny_engine: Path) -> Engine:
    """The engine, loaded once: graphs of the eager back end take seconds to open."""
    return specc.load(tiny_engine)


@pytest.fixture(autouse=True)
def _load_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "loaded" in request.fixturenames:
        engine = request.getfixturevalue("loaded")
        monkeypatch.setattr(specc.show, "load", lambda path: engine)


def test_streams_the_text_and_counts(loaded: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    generate("engine", PROMPT, raw=True, max_new_tokens=12)
    out, err = capsys.readouterr()
    expected = loaded.generate(PROMPT, max_new_tokens=12)
    assert out == expected.text + "\n"
    assert err.count("\n") == 1
    assert f"{expected.stats.tokens} tokens" in err and "block efficiency" in err and "seed" not in err
    assert err.strip().endswith(f"ended by {expected.finish_reason}")


def test_wraps_the_prompt_in_the_chat_template(loaded: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    generate("engine", PROMPT, max_new_tokens=12)
    wrapped = capsys.readouterr().out
    assert wrapped == loaded.generate(loaded.chat(PROMPT), max_new_tokens=12).text + "\n"
    assert wrapped != loaded.generate(PROMPT, max_new_tokens=12).text + "\n"


def test_reports_the_seed(loaded: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    generate("engine", PROMPT, max_new_tokens=4, temperature=0.9, seed=7)
    assert "seed 7" in capsys.readouterr().err


def test_reads_stdin(loaded: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    generate("engine", PROMPT, raw=True, max_new_tokens=8)
    given = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO(PROMPT))
    generate("engine", "-", raw=True, max_new_tokens=8)
    assert capsys.readouterr().out == given
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    with pytest.raises(ConfigError, match="prompt is empty"):
        generate("engine", "-")


def test_an_interrupt_ends_with_what_was_written(
    loaded: Engine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    after_two = iter([False, False, True])
    original = Stream.__next__

    def interrupted(stream: Stream) -> str:
        if next(after_two):
            raise KeyboardInterrupt
        return original(stream)

    monkeypatch.setattr(Stream, "__next__", interrupted)
    with pytest.raises(SystemExit) as ended:
        generate("engine", PROMPT, raw=True, max_new_tokens=64)
    assert ended.value.code == 130
    out, err = capsys.readouterr()
    assert out and err.strip().endswith("interrupted")


def test_a_reader_that_goes_away_ends_it_quietly() -> None:
    script = f"set -o pipefail; '{sys.executable}' -P -c '{ENDLESS}' | head -c 1"
    ended = subprocess.run(["bash", "-c", script], check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "w", "")


def test_statistics_in_one_line() -> None:
    stats = Stats(prompt_tokens=5, tokens=30, steps=12, drafted=36, accepted=18, prefill_s=0.25, decode_s=1.5)
    assert statistics(stats) == (
        "30 tokens, 20.0 tokens/s after 0.25 s of prefill, 12 steps, block efficiency 2.50, "
        "acceptance 50% (18 of 36 drafted)"
    )
    assert "acceptance" not in statistics(Stats(tokens=3, steps=3, decode_s=1.0))
    assert "of prefill (4 of 5 tokens reused), " in statistics(Stats(prompt_tokens=5, reused_tokens=4))
