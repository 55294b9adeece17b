"""A compile with --tune, --ladder and --prompts, and the engine that comes of it: costs, acceptance, choices, texts."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.models import save_tiny, tiny_drafter, tiny_model

import specc
from specc import driver
from specc.inspect import inspect
from specc.manifest import EngineManifest
from specc.prediction import predictions, verdict
from specc.runtime import Engine
from specc.runtime.pilot import Pilot

PROMPTS = ([1, 40, 50, 60, 70, 33, 90], [7], [100, 33, 34, 35, 36])
CHOICES: dict[str, Any] = {"backend": "eager", "context": 120, "chunk": 16, "tune": True, "ladder": "1,5"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    target = tiny_model(num_hidden_layers=1)
    save_tiny(folder / "t", model=target)
    save_tiny(folder / "d", model=tiny_drafter(target, 0.03))
    (folder / "prompts.txt").write_text("the end of the line\n\nin there\nor on the other\n")
    return folder


@pytest.fixture(scope="module")
def compiled(folders: Path) -> Path:
    prompts = str(folders / "prompts.txt")
    return specc.compile(folders / "t", folders / "d", folders / "e", prompts=prompts, **CHOICES)


@pytest.fixture(scope="module")
def engine(compiled: Path) -> Engine:
    return specc.load(compiled)


def test_every_program_was_timed(engine: Engine) -> None:
    cost, manifest = engine.manifest.cost, engine.manifest
    assert set(cost["seconds"]) == set(manifest.programs)
    assert all(len(row) == len(cost["tokens"]) == 1 and 0 < row[0] < 60 for row in cost["seconds"].values())
    assert cost["rounds"] >= 3 and cost["threads"] >= 1
    assert engine.pilot is not None and engine.pilot.serves("greedy") and engine.pilot.serves("coupled")


def test_drafts_were_tried_on_the_prompts(engine: Engine) -> None:
    cost, manifest = engine.manifest.cost, engine.manifest
    assert cost["prompts"] == 3
    trees = {name for name, s in manifest.programs.items() if s.rule == "greedy" and len(s.tree_paths) > 1}
    assert set(cost["acceptance"]) <= trees and len(cost["acceptance"]) in (1, 2)
    for name, trial in cost["acceptance"].items():
        depth = len(manifest.programs[name].tree_paths[-1])
        accepted = trial["accepted"]
        assert len(accepted) == depth and trial["drafts"] == trial["steps"] >= accepted[0] >= accepted[-1]
        assert trial["steps"] <= 3 * cost["new_tokens"] <= trial["steps"] + sum(accepted) + 3 * cost["new_tokens"]
    found = predictions(manifest)
    assert found.keys() == cost["acceptance"].keys()
    for name, one in found.items():
        trial = cost["acceptance"][name]
        assert one.tokens == pytest.approx(1 + sum(trial["accepted"]) / trial["steps"])
        assert one.cost == cost["seconds"][name][0] / cost["seconds"]["plain"][0]
    assert re.search(r"predicted: step\w* emits [\d.]+ tokens for [\d.]+ plain steps", verdict(manifest))


def test_the_choice_is_in_the_manifest(engine: Engine) -> None:
    config = engine.manifest.config
    assert config["draft"]["tune"] and (config["draft"]["tree"] or config["draft"]["draft_length"])
    tuned = config["tuned"]
    assert len(tuned["child_acceptance"]) == 8 and 0 < sum(tuned["child_acceptance"]) <= 1
    assert tuned["prompts"] == 3 and tuned["predicted_speedup"] > 0 and tuned["verify_cost"]["1"] == 1.0
    shape = config["draft"]["tree"] or [[0] * (i + 1) for i in range(config["draft"]["draft_length"])]
    assert [list(path) for path in engine.manifest.tree_paths[1:]] == [list(path) for path in shape]


def test_the_same_again_is_up_to_date_and_other_prompts_are_not(
    folders: Path, compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Compiled(Exception):
        pass

    def refuse(*args: Any, **more: Any) -> None:
        raise Compiled

    monkeypatch.setattr(driver, "choose_draft", refuse)
    monkeypatch.setattr(driver, "build_programs", refuse)
    pair, prompts = (folders / "t", folders / "d"), folders / "prompts.txt"
    specc.compile(*pair, compiled, prompts=str(prompts), **CHOICES)
    other = folders / "other.txt"
    other.write_text(prompts.read_text() + "he is\n")
    for change in ({"prompts": str(other)}, {"prompts": str(prompts), "tune": False}):
        with pytest.raises(Compiled):
            specc.compile(*pair, compiled, **{**CHOICES, **change})


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 4}], ids=["greedy", "coupled"])
def test_texts_are_equal_with_every_length(engine: Engine, options: dict[str, Any]) -> None:
    for prompt in PROMPTS:
        plain = engine.generate(prompt, max_new_tokens=30, eos_token_id=(), draft_length=0, **options)
        assert len(set(plain.token_ids)) > 5
        for length in (1, 2, 5, None):
            text = engine.generate(prompt, max_new_tokens=30, eos_token_id=(), draft_length=length, **options)
            assert text.token_ids == plain.token_ids, length
            stats = text.stats
            assert sum(stats.drafted_per_position) == stats.drafted and stats.steps <= 30
            assert len(stats.drafted_per_position) == (5 if length is None else length)
            if length:
                assert stats.plain_steps == 0 < stats.drafted
                assert stats.drafted_per_position[:length] == [stats.steps] * length


def test_the_shortest_program_serves_a_length(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    call = engine.machine.state.call
    monkeypatch.setattr(engine.machine.state, "call", lambda name, *a, **k: called.append(name) or call(name, *a, **k))
    main = engine.manifest.tree_paths
    for length in (1, 5):
        if len(main) == length + 1 and len(main[-1]) == length:
            continue
        engine.generate([1, 2], max_new_tokens=8, draft_length=length)
        if len(main[-1]) != length:
            assert f"step_k{length}" in called and "step" not in called
        called.clear()


@pytest.mark.parametrize("dear", ["step", "plain"])
def test_what_is_chosen_follows_the_table_and_never_the_text(
    engine: Engine, dear: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same texts where speculation is priced out, and where plain steps are."""
    cost = json.loads(json.dumps(engine.manifest.cost))
    for name in cost["seconds"]:
        cost["seconds"][name] = [100.0 if name.startswith(dear) else 0.1]
    changed = dataclasses.replace(engine.manifest, cost=cost)
    monkeypatch.setattr(engine, "pilot", Pilot.of(changed, engine.machine.programs))
    for options in ({}, {"temperature": 0.9, "seed": 4}):
        plain = engine.generate([1, 40, 50], max_new_tokens=40, eos_token_id=(), draft_length=0, **options)
        free = engine.generate([1, 40, 50], max_new_tokens=40, eos_token_id=(), **options)
        assert free.token_ids == plain.token_ids
        assert free.stats.plain_steps == (40 if dear == "step" else free.stats.plain_steps)
        assert dear == "step" or free.stats.plain_steps <= 1 < free.stats.accepted


def test_calibrate(compiled: Path) -> None:
    engine = specc.load(compiled)
    text = engine.generate(PROMPTS[0], max_new_tokens=20, eos_token_id=()).token_ids
    before, pilot = engine.manifest.cost, engine.pilot
    engine.calibrate()
    after = engine.manifest.cost
    assert after["seconds"].keys() == before["seconds"].keys() and after["seconds"] != before["seconds"]
    assert after["acceptance"] == before["acceptance"] and engine.pilot is not pilot
    assert EngineManifest.read(compiled).cost == before and engine.token_ids == []
    assert engine.generate(PROMPTS[0], max_new_tokens=20, eos_token_id=()).token_ids == text


def test_inspect_shows_costs_and_acceptance(compiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inspect(str(compiled))
    shown = capsys.readouterr().out
    manifest = EngineManifest.read(compiled)
    for name, row in manifest.cost["seconds"].items():
        assert re.search(rf"^ {name} +{1e3 * row[0]:.2f} ", shown, re.MULTILINE), name
    assert "ms at 64 tokens" in shown and "on 3 prompts" in shown
    for name, one in predictions(manifest).items():
        assert f"acceptance of {name}" in shown
        assert f"{one.tokens:.2f} tokens a step for {one.cost:.2f} plain steps: {one.speedup:.2f}x" in shown
