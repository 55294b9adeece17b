"""`specc bench E1 E2`: one interleaved run, one target, one baseline, every text compared, one table and picture."""

from __future__ import annotations

import dataclasses
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_engine import toy_manifest
from rich.console import Console

import specc
from specc.bench.config import BenchConfig
from specc.bench.drafters_plot import POINTS, formula_curve
from specc.bench.drafters_summary import AS_RUN, FIXED, Names, summarize, verdict
from specc.bench.drafters_table import show
from specc.bench.formulas import full
from specc.bench.one_target import check_one_target, short_names
from specc.bench.run import bench
from specc.bench.summary import Record
from specc.bench.systems import AS_RUN as ONE_AS_RUN
from specc.bench.systems import EAGER, PLAIN, SPECULATIVE, Run
from specc.errors import ConfigError
from specc.runtime import Engine

TOKENS = 10


@pytest.fixture(scope="module")
def lookup_engine(tmp_path_factory: pytest.TempPathFactory, tiny_folders: tuple[Path, Path]) -> Path:
    """n-gram lookup before the same target; measured, so that what a step drafts is chosen."""
    folder = tmp_path_factory.mktemp("engines")
    (folder / "prompts.txt").write_text("the end of the end of the end\n")
    prompts = str(folder / "prompts.txt")
    return specc.compile(
        tiny_folders[0], "ngram", folder / "lookup", backend="eager", context=120, chunk=16, prompts=prompts
    )


@pytest.fixture(scope="module")
def folders(tiny_engine: Path, lookup_engine: Path) -> list[str]:
    return [str(tiny_engine), str(lookup_engine)]


@pytest.fixture(scope="module")
def loaded(folders: list[str]) -> Iterator[dict[str, Engine]]:
    """Loaded once for all runs."""
    engines = {folder: specc.load(folder) for folder in folders}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specc.bench.run.load", engines.__getitem__)
        yield engines


def run(folders: list[str], folder: Path, **options: Any) -> dict[str, Any]:
    (folder / "prompts.txt").write_text("the end of the line\nin there\n")
    config = {"prompts": str(folder / "prompts.txt"), "max_new_tokens": TOKENS, "repeats": 2, **options}
    return bench(folders, BenchConfig(**config))


@pytest.fixture(scope="module")
def measured(
    loaded: dict[str, Engine], folders: list[str], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("drafters")
    files = {"json": str(folder / "out.json"), "plot": str(folder / "out.png")}
    return run(folders, folder, **files), folder


def test_systems_are_interleaved_prompt_by_prompt(measured: tuple[dict[str, Any], Path]) -> None:
    result = measured[0]
    assert list(result["engines"]) == ["eager", "lookup"]
    shared = result["engines"]["eager"]["systems"]["plain"] == result["engines"]["lookup"]["systems"]["plain"]
    own = [] if shared else ["lookup: plain"]
    systems = [EAGER, "eager: plain", "eager: fixed draft", *own, "lookup: fixed draft", "lookup: as run"]
    order = [(r["repeat"], r["prompt"], r["system"]) for r in result["raw"]]
    assert order == [(n, p, system) for n in range(2) for p in range(2) for system in systems]
    assert all(len(r["run"]["tokens"]) == TOKENS for r in result["raw"])


def test_every_engine_is_compared_with_its_plain_step_and_with_transformers(
    measured: tuple[dict[str, Any], Path],
) -> None:
    result = measured[0]
    for name, engine in result["engines"].items():
        for system in engine["systems"]["drafting"].values():
            assert {f"{system} = {engine['systems']['plain']}", f"{system} = {EAGER}"} <= set(result["equality"]), name
    for found in result["equality"].values():
        assert (found["tokens"], found["differences"]) == (2 * TOKENS, [])


def test_there_is_one_baseline(measured: tuple[dict[str, Any], Path]) -> None:
    result = measured[0]
    systems, comparison = result["systems"], result["comparison"]
    plains = {engine["systems"]["plain"] for engine in result["engines"].values()}
    best = max(plains, key=lambda name: systems[name]["tokens_per_second"])
    assert (comparison["plain"], comparison["eager"]) == (best, EAGER)
    assert [row["system"] for row in comparison["rows"][:2]] == [EAGER, best]
    for row in comparison["rows"]:
        speed = systems[row["system"]]["tokens_per_second"]
        assert row["tokens_per_second"] == speed
        assert row["against_plain"] == speed / systems[best]["tokens_per_second"]
        assert row["against_eager"] == speed / systems[EAGER]["tokens_per_second"]
    assert result["engines"]["lookup"]["as_run"]["steps"] >= result["engines"]["lookup"]["as_run"]["plain_steps"]


def test_the_table_and_the_json_hold_the_same(measured: tuple[dict[str, Any], Path]) -> None:
    result, folder = measured
    assert json.loads((folder / "out.json").read_text()) == json.loads(json.dumps(result))
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")
    out = io.StringIO()
    show(result, Console(file=out, width=250))
    lines = out.getvalue().splitlines()
    for row in result["comparison"]["rows"]:
        figures = [
            f"{row['tokens_per_step']:.2f}",
            f"{row['tokens_per_second']:.1f}",
            f"{row['against_plain']:.2f}x",
            f"{row['against_eager']:.2f}x",
            *(f"{gain:.2f}x" for gain in row["kinds"].values()),
        ]
        pattern = rf" *{row['engine']} .*{re.escape(row['draft'])} .* {' +'.join(map(re.escape, figures))}"
        assert any(re.match(pattern, line) for line in lines), row
    assert lines[-1] == result["comparison"]["verdict"]


def test_an_engine_that_is_slow_shows_as_slow(
    loaded: dict[str, Engine], folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = loaded[folders[0]].machine.state
    call = state.call

    def slow(name: str, *arguments: Any, **more: Any) -> Any:
        time.sleep(0.1 if name.startswith("step") else 0)
        return call(name, *arguments, **more)

    monkeypatch.setattr(state, "call", slow)
    result = run(folders, tmp_path, repeats=1)
    rows = {row["system"]: row for row in result["comparison"]["rows"]}
    assert rows["eager: fixed draft"]["against_plain"] < rows["lookup: fixed draft"]["against_plain"]
    assert rows["eager: fixed draft"]["against_plain"] < 1
    assert "eager (chain of 3) 0." in result["comparison"]["verdict"].partition("not pay")[2]


def test_an_engine_that_writes_another_text_is_named(
    loaded: dict[str, Engine], folders: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = loaded[folders[1]]
    generate = engine.generate

    def wrong(prompt: Any, *, draft_length: int | None, **options: Any) -> Any:
        result = generate(prompt, draft_length=draft_length, **options)
        if draft_length:
            result.token_ids[-1] ^= 1
        return result

    monkeypatch.setattr(engine, "generate", wrong)
    equality = run(folders, tmp_path, repeats=1)["equality"]
    parted = {name for name, found in equality.items() if found["differences"]}
    assert {name.partition(" = ")[0] for name in parted} == {"lookup: fixed draft"} and len(parted) == 2


def test_one_engine_alone_shows_how_users_run_it(
    loaded: dict[str, Engine],
    folders: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # headers on one line
    result = run(folders[1:], tmp_path)
    assert result["engine"] == folders[1] and list(result["systems"])[-3:] == [PLAIN, SPECULATIVE, ONE_AS_RUN]
    assert result["equality"][f"{ONE_AS_RUN} = {PLAIN}"]["differences"] == []
    speeds = [result["systems"][name]["tokens_per_second"] for name in (ONE_AS_RUN, PLAIN)]
    found = result["as_run"]
    assert found["measured"] == speeds[0] / speeds[1]
    runs = [r["run"] for r in result["raw"] if r["system"] == ONE_AS_RUN and r["repeat"] == 0]
    assert found["plain_steps"] == sum(r["plain_steps"] for r in runs) <= found["steps"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [found["verdict"], result["verdict"]]
    assert any("as run against plain" in line for line in lines)


def test_one_target_is_enforced(folders: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    one = toy_manifest()
    other = dataclasses.replace(one.target, digest="fedcba9876543210", source="toy2")
    check_one_target({"a": one, "b": one})
    told = r"one target: a has toy in float32 \(digest 0\), c has toy2 in float32 \(digest fedcba987654\); type specc b"
    with pytest.raises(ConfigError, match=told):
        check_one_target({"a": one, "b": one, "c": dataclasses.replace(one, target=other)})
    with pytest.raises(ConfigError, match="b has toy in bfloat16"):
        check_one_target({"a": one, "b": dataclasses.replace(one, dtype="bfloat16")})
    (tmp_path / "manifest.json").write_text(dataclasses.replace(one, target=other).to_json())
    monkeypatch.setattr("specc.bench.run.load", lambda path: pytest.fail("an engine was loaded"))
    with pytest.raises(ConfigError, match="has toy2"):
        run([folders[0], str(tmp_path)], tmp_path)


@pytest.mark.parametrize(
    ("engines", "options", "told"),
    [
        (["a", "./a"], {}, "./a is given more than once|a is given more than once"),
        (["a", "b"], {"batch": "1,2"}, "--batch is measured on one engine .*a, b.* type specc bench a --batch 1,2"),
        (["a", "b"], {"processors": True}, "type specc bench a --processors"),
        (["a", "b"], {}, "a: no such engine folder"),
    ],
    ids=str,
)
def test_refusals(engines: list[str], options: dict[str, Any], told: str) -> None:
    with pytest.raises(specc.errors.SpeccError, match=told):
        bench(engines, BenchConfig(**options))


def test_names_are_short_where_they_can_be() -> None:
    assert short_names(["x/a", "y/b/"]) == ["a", "b"]
    assert short_names(["x/a", "y/a"]) == ["x/a", "y/a"]


def test_the_comparison_by_hand() -> None:
    """Plain 5 and 10 tokens a second; drafts of 2 that accept 8 and 4 of 10, in steps of 0.15 and 0.4 seconds."""

    def steps(accepted: list[int], seconds: float) -> Run:
        return Run([0] * (10 + sum(accepted)), 9.0, 10 * seconds, 10 + sum(accepted), 10, 0, 20, accepted)

    def chosen() -> Run:
        return Run([0] * 22, 9.0, 2.0, 22, 20, 18, 4, [1, 1])

    runs = {
        "a: plain": Run([0] * 20, 4.0, 4.0, 20, 20),
        "b: plain": Run([0] * 20, 2.0, 2.0, 20, 20),
        "a: fixed": steps([8, 4], 0.15),
        "b: fixed": steps([1, 0], 0.4),
        "b: run": chosen(),
    }
    records = [Record(0, 0, "chat", name, made) for name, made in runs.items()]
    names = {
        "a": Names("a: plain", {FIXED: "a: fixed"}),
        "b": Names("b: plain", {FIXED: "b: fixed", AS_RUN: "b: run"}),
    }
    manifest = toy_manifest(depth=2)
    result = summarize(records, names, {"a": manifest, "b": manifest})
    assert (result["comparison"]["plain"], result["comparison"]["eager"]) == ("b: plain", None)
    rows = {row["system"]: row for row in result["comparison"]["rows"]}
    assert list(rows) == ["b: plain", "a: fixed", "b: fixed", "b: run"]
    gains = [row["against_plain"] for row in rows.values()]
    assert gains == pytest.approx([1, (22 / 1.5) / 10, (11 / 4) / 10, 11 / 10])
    a = result["engines"]["a"]["speculation"]
    assert (rows["a: fixed"]["acceptance"], a["step_over_plain"]) == (12 / 18, pytest.approx(1.5))
    assert rows["a: fixed"]["kinds"] == {"chat": rows["a: fixed"]["against_plain"]}
    assert formula_curve(a)[POINTS.index(0.5)] == pytest.approx(full([0.5, 0.5], 1.5))
    assert (result["engines"]["b"]["as_run"]["plain_steps"], rows["b: run"]["acceptance"]) == (18, None)
    told = "fastest: a (chain of 2) 1.47x the best plain step; these do not pay: b (chain of 2) 0.28x"
    assert result["comparison"]["verdict"] == told
    assert verdict([rows["b: plain"], rows["b: fixed"]]).startswith("speculation does not pay with any of these")
