"""A drafter on a device apart from its target's: two graphs, N ids each way, the same text. Here both devices are the
CPU, each with a state of its own; nothing was seen to cross between GPUs."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

import specc
from specc.config import CompileConfig
from specc.errors import ConfigError, EngineError, EngineMismatchError
from specc.inspect import inspect
from specc.manifest import MANIFEST_NAME, EngineManifest
from specc.runtime import Engine, Generation, load
from specc.runtime.placed import HANDED, Placed
from specc.runtime.state import State

PROMPTS = ([1, 2, 3], [9, 4] * 11, list(range(5, 40)))


@pytest.fixture(scope="module")
def placed(placed_engine: Path) -> Engine:
    return load(placed_engine)


@pytest.fixture(scope="module")
def whole(whole_engine: Path) -> Engine:
    return load(whole_engine)


def state_of(engine: Engine) -> Placed:
    assert isinstance(engine.machine.state, Placed)
    return engine.machine.state


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"draft_length": 0},
        {"draft_length": 1},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 1.1, "seed": 6, "top_k": 20, "repetition_penalty": 1.2},
        {"logit_bias": {7: 3.0}, "frequency_penalty": 0.5},
        {"regex": "[a-z ]{5,40}", "eos_token_id": (2,)},
    ],
    ids=lambda options: next(iter(options), "greedy"),
)
def test_the_text_is_that_of_one_device(placed: Engine, whole: Engine, options: dict[str, Any]) -> None:
    for prompt in PROMPTS:
        asked = {"max_new_tokens": 30, "eos_token_id": (), **options}
        found, expected = placed.generate(prompt, **asked), whole.generate(prompt, **asked)
        assert told(found) == told(expected)
        if options.get("draft_length") != 0 and "regex" not in options:
            assert sum(found.stats.accepted_per_position) > 0


def told(result: Generation) -> tuple[Any, ...]:
    """What two engines must agree on: with the counts, for a drafter that saw something else costs no text."""
    return result.token_ids, result.finish_reason, result.stats.accepted_per_position, result.stats.steps


def test_rows_side_by_side(placed: Engine, whole: Engine) -> None:
    asked: dict[str, Any] = {"max_new_tokens": 25, "eos_token_id": ()}
    together = placed.generate(list(PROMPTS), **asked)
    assert [told(one) for one in together] == [told(one) for one in whole.generate(list(PROMPTS), **asked)]


def test_rows_that_come_and_go(placed: Engine, whole: Engine) -> None:
    results = []
    for engine in (placed, whole):
        with engine.session() as session:
            first = session.add([3, 1, 4], max_new_tokens=30, eos_token_id=())
            session.step()
            second = session.add([1, 5, 9], max_new_tokens=30, eos_token_id=())
            for _ in range(3):
                session.step()
            session.cancel(first)
            third = session.add([2, 6, 5], max_new_tokens=20, eos_token_id=())
            for _ in session:
                pass
        results.append([told(job.result) for job in (first, second, third) if job.result])
    assert results[0] == results[1] and len(results[0]) == 3


def test_an_interrupt_between_the_two_calls(placed: Engine, whole: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter has caught up, and the target has not seen its draft: the step is made again."""
    asked: dict[str, Any] = {"max_new_tokens": 30, "eos_token_id": ()}
    expected, hand, interrupts = whole.generate([3, 1, 4], **asked), State.hand, 0

    def interrupted(state: State, name: str, row: int | None, value: torch.Tensor) -> None:
        nonlocal interrupts
        if len(job.token_ids) > 8 and not interrupts:
            interrupts += 1
            raise KeyboardInterrupt
        hand(state, name, row, value)

    monkeypatch.setattr(State, "hand", interrupted)
    with placed.session() as session:
        job = session.add([3, 1, 4], **asked)
        while job.result is None:
            try:
                session.step()
            except KeyboardInterrupt:
                assert interrupts == 1
    assert interrupts == 1 and told(job.result) == told(expected)


def test_a_text_that_is_cut_and_goes_on(placed: Engine, whole: Engine) -> None:
    texts = []
    for engine in (placed, whole):
        first = told(engine.generate([3, 1, 4], max_new_tokens=20, eos_token_id=()))
        engine.truncate(12)
        more = told(engine.resume([8, 8], max_new_tokens=20, eos_token_id=()))
        plain = told(engine.resume(max_new_tokens=9, draft_length=0, eos_token_id=()))
        texts.append((first, more, plain, told(engine.resume(max_new_tokens=9, eos_token_id=()))))
    assert texts[0] == texts[1]


def test_forced_drafts(placed: Engine, whole: Engine) -> None:
    placed.generate([3, 1, 4], max_new_tokens=4, eos_token_id=())
    known = whole.generate(placed.token_ids, max_new_tokens=4, eos_token_id=()).token_ids
    step = placed.step([known[0], -1, known[1]], max_new_tokens=10)
    assert step.token_ids == known[:3]
    wrong = (known[3] + 1) % 100
    assert placed.step([wrong, wrong], max_new_tokens=10).token_ids == known[3:]


def test_both_caches_are_as_after_a_fresh_prefill(placed: Engine) -> None:
    """What the steps left is what running the text anew leaves, on each device."""
    placed.generate([3, 1, 4], max_new_tokens=30, eos_token_id=())
    row, text = placed.machine.rows[0], placed.token_ids
    held = {
        (state, name): tensor[0].clone()
        for state in (state_of(placed).target, state_of(placed).drafter)
        for name, tensor in state.tensors.items()
        if tensor.ndim == 4
    }
    ends = {"target": row.target_length, "drafter": row.drafter_length}
    assert ends["drafter"] >= len(text) - 3
    placed.generate([*text, 0], max_new_tokens=1, draft_length=2, eos_token_id=())
    for (state, name), tensor in held.items():
        end = ends[name.split("_")[0]]
        assert torch.allclose(tensor[:, :end], state.tensors[name][0, :, :end], atol=1e-5), name


def test_what_crosses(placed: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """N ids and their flags to the target, the block back; nothing else is copied from one state to the other."""
    there: list[tuple[str, int]] = []
    back: list[int] = []
    hand, write = State.hand, State.write

    def handing(state: State, name: str, row: int | None, value: torch.Tensor) -> None:
        there.append((name, value.numel()))
        hand(state, name, row, value)

    def writing(state: State, row: int, start: int, tokens: list[int]) -> None:
        back.append(len(tokens))
        write(state, row, start, tokens)

    monkeypatch.setattr(State, "hand", handing)
    monkeypatch.setattr(State, "write", writing)
    result = placed.generate([3, 1, 4], max_new_tokens=12, eos_token_id=())
    steps = len(back)
    nodes = len(placed.manifest.tree_paths)
    assert sum(back) == len(result.token_ids) and there == [(name, nodes) for _ in range(steps) for name in HANDED]


def test_each_device_holds_its_own(placed: Engine, placed_engine: Path) -> None:
    state = state_of(placed)
    assert not [name for name in state.target.tensors if name.startswith("drafter")]
    assert not [name for name in state.drafter.tensors if name.startswith("target_k") or name == "drafted"]
    manifest = EngineManifest.read(placed_engine)
    for name, spec in manifest.programs.items():
        other = "target." if spec.drafts else "drafter."
        assert not [w for w in spec.weights if w.startswith(other) and "proj" in w], name  # equal ones have one name
        assert spec.drafts == name.startswith(("draft", "prefill_drafter"))
        assert spec.draft == (name.replace("step", "draft") if name.startswith("step") else "")


def test_it_is_timed_and_shown(
    tiny_folders: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Costs are those of both calls; a step is chosen by them."""
    folder = specc.compile(
        *tiny_folders, tmp_path / "e", backend="eager", draft_device="cpu", draft_length=2, context=120, chunk=16
    )
    cost = EngineManifest.read(folder).cost
    assert set(cost["seconds"]) == {
        "step",
        "plain",
        "step_coupled",
        "plain_sampled",
        "prefill_target",
        "prefill_drafter",
    }
    assert cost["acceptance"]["step"]["steps"] > 0
    inspect(str(folder))
    assert "(the drafter on cpu)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drafter": "ngram"}, "is for a drafter that is a model of its own, and ngram reads"),
        ({"drafter": "eagle3:somewhere"}, "is for a drafter that is a model of its own"),
        ({"drafter": "self:1"}, "is for a drafter that is a model of its own"),
        ({"backend": "onnx"}, "--backend onnx runs all on one device"),
        ({"acceptance": "coupled,rejection"}, "rejection needs the law they were drawn from"),
        ({"draft_device": 3}, "--draft-device must be a text"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    asked = {"target": "t", "drafter": "d", "output": "o", "draft_device": "cpu", **options}
    with pytest.raises(ConfigError, match=message):
        CompileConfig(**asked)


def test_trees_that_are_refused() -> None:
    from specc.config import DraftConfig

    for draft in (DraftConfig(tree="dynamic:8,3,2"), DraftConfig(tune=True)):
        with pytest.raises(ConfigError, match="takes a chain or a tree of fixed shape"):
            CompileConfig(target="t", drafter="d", output="o", draft_device="cpu", draft=draft)


def test_a_device_that_is_not_there(tiny_folders: tuple[Path, Path], placed_engine: Path, tmp_path: Path) -> None:
    with pytest.raises(specc.errors.BackendError, match="--device cuda:7: torch .* sees no CUDA device"):
        specc.compile(*tiny_folders, tmp_path / "e", draft_device="cuda:7")
    folder = tmp_path / "moved"
    folder.mkdir()
    moved = dataclasses.replace(EngineManifest.read(placed_engine), draft_device="cuda:7")
    (folder / MANIFEST_NAME).write_text(moved.to_json())
    with pytest.raises(
        EngineMismatchError, match=r"compiled for cuda:7, and torch .* sees no GPU here.*--draft-device cpu"
    ):
        load(folder)


@pytest.mark.parametrize("change", [{"draft_device": ""}, {"without": "draft"}])
def test_a_manifest_that_does_not_fit(placed_engine: Path, tmp_path: Path, change: dict[str, str]) -> None:
    raw = json.loads((placed_engine / MANIFEST_NAME).read_text())
    if name := change.pop("without", ""):
        del raw["programs"][name]
    (tmp_path / MANIFEST_NAME).write_text(json.dumps({**raw, **change}))
    with pytest.raises(EngineError, match="programs.step.*: its draft .* is missing, or no draft_device is named"):
        load(tmp_path)
