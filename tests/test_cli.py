"""The command line: help, errors in one line with the right exit code, and the way from compile to text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from specc.cli import main
from specc.config import CompileConfig, DraftConfig


def test_every_field_has_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as e:
        main(["compile", "--help"])
    assert e.value.code == 0
    told = capsys.readouterr().out
    for config in (CompileConfig, DraftConfig):
        for name in config.__dataclass_fields__:
            if name not in ("draft", "target", "drafter"):
                assert f"--{name.replace('_', '-')}" in told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["compile", "nowhere/at-all/x", "ngram", "-o", "E"], "nowhere/at-all/x"),
        (["compile", "a"], "required"),
        (["compile", "a", "b", "-o", "E", "--beam", "3"], "--beam"),
        (["compile", "a", "b", "-o", "E", "--draft-length", "99"], "1..16"),
        (["compile", "a", "b", "-o", "E", "--draft-length", "x"], "--draft-length"),
        (["generate", "nowhere", "hi"], "specc compile"),
        (["generate", "nowhere", "hi", "--logit-bias", "5"], "--logit-bias: '5' is not ID=VALUE"),
        (["generate", "nowhere", "hi", "--bad-token-ids", "5,a"], "--bad-token-ids: '5,a' is not a list"),
        (["chat", "nowhere"], "specc compile"),
        (["chat", "nowhere", "--logprobs", "2"], "--logprobs"),
        (["bench", "nowhere", "--batch", "2,9"], "9 is outside 1..8 rows"),
        (["inspect", "nowhere"], "specc compile"),
        (["bench", "nowhere"], "specc compile"),
        (["fly"], "fly"),
        ([], "required"),
    ],
)
def test_errors_are_one_line_and_exit_2(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("specc: ") and told in lines[-1]
    assert not any("Traceback" in line for line in lines)


def test_traceback_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", "nowhere", "--traceback"]) == 2
    assert "Traceback" in capsys.readouterr().err


def test_our_own_faults_exit_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("specc.inspect.inspect", lambda *a, **k: 1 / 0)
    assert main(["inspect", "x"]) == 1
    assert "fault of specc" in capsys.readouterr().err


def test_compile_generate_inspect(
    tmp_path: Path, tiny_folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target, _ = tiny_folders
    engine = tmp_path / "engine"
    flags = [
        "--backend",
        "eager",
        "--context",
        "120",
        "--chunk",
        "16",
        "--draft-length",
        "2",
        "--dump",
        str(tmp_path / "d"),
    ]
    assert main(["compile", str(target), "ngram", "-o", str(engine), *flags]) == 0
    dumps = sorted(p.name for p in (tmp_path / "d" / "step").iterdir())
    assert dumps[0] == "00-normalize.after.txt" and any(d.endswith("-lower_attention.before.txt") for d in dumps)
    capsys.readouterr()
    assert (
        main(
            [
                "generate",
                str(engine),
                "hello the cat",
                "--max-new-tokens",
                "12",
                "--raw",
                "--temperature",
                "2",
                "--seed",
                "1",
            ]
        )
        == 0
    )
    told = capsys.readouterr()
    assert told.out.strip() and "tokens" in told.err
    assert main(["generate", str(engine), "the theory", "--draft-length", "3"]) == 2
    assert "above 2" in capsys.readouterr().err
    assert main(["inspect", str(engine), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["drafter_kind"] == "ngram"


def test_constrained_output(batch_engine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}}}
    (tmp_path / "schema.json").write_text(json.dumps({**schema, "required": ["a"]}))
    sampled = ["--n", "3", "--temperature", "1.2", "--seed", "4"]
    assert (
        main(["generate", str(batch_engine), "the end", *sampled, "--json-schema", str(tmp_path / "schema.json")]) == 0
    )
    found = [json.loads(line)["a"] for line in capsys.readouterr().out.splitlines() if line[0] != "["]
    assert len(found) == 3 and all(0 <= number <= 99 for number in found)
    assert main(["generate", str(batch_engine), "the end", "--regex", "[0-9]{4}-(one|two)"]) == 0
    assert re.fullmatch("[0-9]{4}-(one|two)\n", capsys.readouterr().out)


def test_a_pass_can_be_left_out_and_the_needed_ones_not(
    tmp_path: Path, tiny_folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    target, _ = tiny_folders
    base = ["compile", str(target), "ngram", "--backend", "eager", "--context", "64", "--chunk", "16", "--quiet"]
    assert main([*base, "-o", str(tmp_path / "a"), "--without", "fuse_linears"]) == 0
    assert main([*base, "-o", str(tmp_path / "b"), "--without", "lower_attention"]) == 2
    assert "cannot be left out" in capsys.readouterr().err
    assert main([*base, "-o", str(tmp_path / "b"), "--without", "loop_fusion"]) == 2
    assert "no such pass" in capsys.readouterr().err


PROMPTS = ["-hello", "-hello world", "--hello", "-x", "-", "--seed", "--seed=5", "-- -x", "-5", "--", "prompt"]


@pytest.mark.parametrize("prompt", ["-hello", "-hello world", "--hello", "-x", "---"])
def test_a_prompt_like_a_flag_is_told_how_to_be_typed(prompt: str, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["E", prompt], ["E", "--seed", "5", prompt, "--top-k=3"]):
        assert main(["generate", *arguments]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{prompt} is no option" in line and f'type specc generate ENGINE -- "{prompt}"' in line


@pytest.mark.parametrize("prompt", PROMPTS)
@pytest.mark.parametrize("flags", [[], ["--seed", "-7", "--raw"]], ids=["", "flags"])
def test_whatever_stands_behind_two_dashes_is_the_prompt(
    prompt: str, flags: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[object] = []
    monkeypatch.setattr(
        "specc.generate.generate", lambda engine, prompt, **more: given.extend([engine, prompt, more.get("seed")])
    )
    assert main(["generate", "E", *flags, "--", prompt]) == 0
    assert given == ["E", prompt, -7 if flags else None]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["E"], "required: PROMPT"),
        (["E", "--seed", "-5"], "required: PROMPT"),
        (["E", "--seed=5"], "required: PROMPT"),
        (["E", "hi", "--temprature", "1"], "unrecognized arguments: --temprature 1"),
        (["E", "hi", "--top-k", "x"], "--top-k"),
    ],
)
def test_other_mistakes_keep_their_words(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", *arguments]) == 2
    line = capsys.readouterr().err
    assert told in line and " -- " not in line
