"""The flags of a request: one for every option, made from its type; what is mistyped is refused by name."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import pytest

from specc.cli import main
from specc.errors import ConfigError
from specc.flags import add_options, read_options
from specc.runtime.options import Options

GIVEN: list[tuple[list[str], dict[str, Any]]] = [
    ([], {}),
    (["--max-new-tokens", "5", "--min-new-tokens", "2"], {"max_new_tokens": 5, "min_new_tokens": 2}),
    (["--presence-penalty", "-0.5", "--min-p", "0.1"], {"presence_penalty": -0.5, "min_p": 0.1}),
    (["--logit-bias", "5=-inf", "--logit-bias", "6=2"], {"logit_bias": {5: -math.inf, 6: 2.0}}),
    (["--bad-token-ids", "3,4", "--allowed-token-ids", "9"], {"bad_token_ids": (3, 4), "allowed_token_ids": (9,)}),
    (["--eos-token-id", ""], {"eos_token_id": ()}),
    (["--stop", "a, b", "--stop", "\n"], {"stop": ["a, b", "\n"]}),
    (["--json-schema", ' {"type": "null"}'], {"json_schema": ' {"type": "null"}'}),
    (["--regex", "[0-9]+", "--logprobs", "0", "--n", "2"], {"regex": "[0-9]+", "logprobs": 0, "n": 2}),
]


def read(*words: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_options(parser, without)
    return read_options(parser.parse_args(words))


@pytest.mark.parametrize(("words", "expected"), GIVEN)
def test_words_become_options(words: list[str], expected: dict[str, Any]) -> None:
    assert read(*words) == expected


def test_every_option_that_can_be_typed_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    told = capsys.readouterr().out
    flags = {name for name in Options.__annotations__ if f"--{name.replace('_', '-')} " in told}
    assert set(Options.__annotations__) - flags == {"grammar", "reuse"}  # an object; the chat's own


def test_a_schema_may_be_a_file(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "integer"}')
    assert read("--json-schema", str(tmp_path / "schema.json")) == {"json_schema": '{"type": "integer"}'}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--logit-bias", "5"], "'5' is not ID=VALUE"),
        (["--logit-bias", "a=1"], "'a=1' is not ID=VALUE"),
        (["--bad-token-ids", "3,,4"], "'3,,4' is not a list of token ids"),
        (["--json-schema", "no/file"], "'no/file' is neither JSON nor a file"),
        (["--temperature", "hot"], "--temperature.*'hot'"),
        (["--n", "1.5"], "--n.*'1.5'"),
    ],
)
def test_mistyped_values_are_refused(words: list[str], told: str) -> None:
    with pytest.raises(argparse.ArgumentError, match=told):
        read(*words)


def test_one_id_has_one_bias() -> None:
    with pytest.raises(ConfigError, match="--logit-bias gives token id 5 more than once"):
        read("--logit-bias", "5=1", "--logit-bias", "6=1", "--logit-bias", "05=2")


def test_options_can_be_left_out() -> None:
    assert read("--seed", "1", without=("n",)) == {"seed": 1}
    parser = argparse.ArgumentParser()
    add_options(parser, without=("n",))
    assert parser.parse_known_args(["--n=2"])[1] == ["--n=2"]
