"""`specc generate`: text to stdout, one line of statistics to stderr, clean ends."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fake_engine import fake_engine, letters

import specc
import specc.generate
from specc.errors import ConfigError
from specc.generate import generate
from specc.runtime import Engine, Generation, Stats, Stream, TokenLogprob
from specc.show import logprob_table, statistics, together

PROMPT = "the end of the line"
ENDLESS = """
import sys
import specc.cli, specc.generate
from specc.runtime import Stats

class Endless:
    has_chat_template = False
    class watch:
        said = None
    def stream(self, prompt, **options):
        return self
    def __enter__(self):
        return self
    def __exit__(self, *error):
        pass
    def __iter__(self):
        while True:
            yield "word "

specc.generate.load = lambda path: Endless()
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
        monkeypatch.setattr(specc.generate, "load", lambda path: engine)


def test_streams_the_text_and_counts(loaded: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    generate("engine", PROMPT, raw=True, max_new_tokens=12)
    out, err = capsys.readouterr()
    expected = loaded.generate(PROMPT, max_new_tokens=12)
    assert out == expected.text + "\n"
    assert err.count("\n") == 1
    assert f"{expected.stats.tokens} tokens" in err and "block efficiency" in err and "seed" not in err
    assert err.strip().endswith(f"ended by {expected.finish_reason}")


def test_says_that_drafts_are_refused_once_and_behind_the_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    engine, _ = fake_engine(text=letters(), context=400)
    monkeypatch.setattr(specc.generate, "load", lambda path: engine)
    monkeypatch.setattr("helpers.fake_engine.draft", lambda *a: 0)
    for said in (True, False):
        generate("engine", "ABC", raw=True, max_new_tokens=200, draft_length=3)
        told = capsys.readouterr().err.splitlines()
        assert len(told) == 1 + said and "ended by length" in told[0]
        assert not said or (told[1].startswith("note: acceptance ") and "(1 - a^(K+1)) / (1 - a)" in told[1])


def test_plain_steps_among_others_are_counted() -> None:
    assert "9 steps (4 of them plain), block" in statistics(Stats(steps=9, plain_steps=4))
    assert "plain" not in statistics(Stats(steps=9, plain_steps=9)) + statistics(Stats(steps=9))


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
    reused = "of prefill (4 of 5 prompt tokens reused, 1 prefilled), "
    assert reused in statistics(Stats(prompt_tokens=5, reused_tokens=4))
    assert "(0 of 5 prompt tokens reused, 5 prefilled)" in statistics(Stats(prompt_tokens=5), reuse=True)


def test_samples_come_one_after_another(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    engine, _ = fake_engine(text=letters(), batch=3, context=100)
    monkeypatch.setattr(specc.generate, "load", lambda path: engine)
    options = {"n": 3, "temperature": 1.5, "seed": 5, "max_new_tokens": 6}
    generate("engine", "ABC", raw=True, **options)
    out, err = capsys.readouterr()
    texts = [result.text for result in engine.generate("ABC", **options)]
    assert len(set(texts)) == 3
    assert out == "".join(f"[{i} of 3]\n{text}\n" for i, text in enumerate(texts, 1))
    assert err.startswith("3 samples, 18 tokens, ") and err.strip().endswith("seed 5") and err.count("\n") == 1


def test_samples_side_by_side_share_the_seconds_of_their_steps() -> None:
    one = Stats(prompt_tokens=5, tokens=4, steps=2, drafted=6, accepted=2, prefill_s=1.0, decode_s=2.0)
    two = Stats(prompt_tokens=5, tokens=8, steps=4, drafted=9, accepted=4, decode_s=3.0, reused_tokens=4)
    both = together([one, two])
    assert (both.tokens_per_second, both.block_efficiency, both.acceptance_rate) == (4.0, 2.0, 0.4)
    assert (both.prompt_tokens, both.reused_tokens, both.prefill_s) == (10, 4, 1.0)


def test_log_probabilities_in_a_table(loaded: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    generate("engine", PROMPT, raw=True, max_new_tokens=12, logprobs=2)
    out, err = capsys.readouterr()
    result = loaded.generate(PROMPT, max_new_tokens=12, logprobs=2)
    assert result.logprobs is not None and out.startswith(result.text + "\n\n") and err.count("\n") == 1
    head, *lines = out.removeprefix(result.text + "\n\n").splitlines()
    assert head.split() == ["id", "token", "logprob", "likeliest"]
    assert len(lines) == len(result.logprobs)
    for line, entry in zip(lines, result.logprobs, strict=True):
        assert int(line.split()[0]) == entry.token
        assert f" {entry.logprob:.3f}" in line and all(f" {value:.3f}" in line for value in entry.top.values())


def test_tokens_of_a_table_are_spelled(loaded: Engine) -> None:
    text = loaded.text
    assert text is not None
    the, end, part = (text.tokenizer.token_to_id(name) for name in ("th", "<|im_end|>", "Ã"))
    entries = [TokenLogprob(token, -0.5, {}) for token in (the, end, part)]
    table = logprob_table(
        loaded, Generation(text="", token_ids=[], finish_reason="stop", stats=Stats(), logprobs=entries)
    )
    assert [line.split()[1] for line in table.splitlines()[2:]] == ["'th'", "'<|im_end|>'", "'Ã'"]
    assert all(not line.endswith(" ") for line in table.splitlines())
