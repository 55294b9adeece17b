"""Prompts that the target writes itself."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
from helpers.models import save_tiny

from specc.capture.load import load_model
from specc.errors import ConfigError
from specc.progress import Report
from specc.train import own
from specc.train.answers import Row
from specc.train.config import AnswerConfig, TrainConfig
from specc.train.own import own_prompts
from specc.train.prompts import CODE, SUMMARY, templates
from specc.train.run import train

QUIET = Report(quiet=True)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("target"), num_hidden_layers=7)


@pytest.fixture(scope="module")
def loaded(target: Path) -> Any:
    return load_model(str(target), role="target", dtype="float32")


def test_the_same_ones_for_the_same_numbers(loaded: Any, tmp_path: Path) -> None:
    prompts = own_prompts(loaded, tmp_path)
    first, again, other = prompts(0, 12), prompts(0, 12), prompts(24, 12)
    assert first == again != other and 2 < len(first) <= 12
    assert len({text for _, text in first}) > 2
    for kind, text in first + other:
        assert kind == "chat" and text.strip() and "<|" not in text


def test_an_end_ends_a_prompt_and_is_no_part_of_it(loaded: Any, tmp_path: Path) -> None:
    """Each is what the model goes on with behind the opened turn, up to the first end."""
    begin = loaded.tokenizer("<|im_start|>user\n", add_special_tokens=False)["input_ids"]
    seen: list[list[int]] = []
    with pytest.MonkeyPatch.context() as patch:
        right = own.continuations

        def watched(model: Any, ids: list[list[int]], *rest: Any, **more: Any) -> list[Row]:
            rows = right(model, ids, *rest, **more)
            assert all(given == begin for given in ids)
            seen.extend(row.ids[row.skip :].tolist() for row in rows)
            return rows

        patch.setattr(own, "continuations", watched)
        made = [text for _, text in own_prompts(loaded, tmp_path)(0, 12)]
    ended = [loaded.tokenizer.decode(ids[:-1], skip_special_tokens=True) for ids in seen if ids[-1] == 2]
    assert made == [text for text in ended if text.strip()] and len(seen) == 12


def test_kinds_go_by_files(loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first words of a form for code; summaries of what was answered before, once there is any."""
    prompts = own_prompts(loaded, tmp_path)
    openings = [form.split("{")[0] for form in templates(CODE)]
    assert all(kind == "code" and any(text.startswith(o) for o in openings) for kind, text in prompts(36, 12))
    without = prompts(12, 12)
    texts = ["The rain is wet.", "The sand is hot."]
    monkeypatch.setattr(own, "passages", lambda folder, tokenizer, count: texts if folder == tmp_path else [])
    asked = prompts(12, 12)
    forms = [form.replace("{p}", text) for form in templates(SUMMARY) for text in texts]
    assert len(asked) == 12 and all(kind == "summary" and text in forms for kind, text in asked)
    assert len({text for _, text in asked}) > 4
    assert {kind for kind, _ in without} == {"chat"} and not any(text in forms for _, text in without)


def test_a_users_turn_has_its_own_end(loaded: Any) -> None:
    """Other than an answer's, in some templates: what stands behind the user's words ends a prompt too."""
    tokenizer = copy.copy(loaded.tokenizer)
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m['content'] }} <|endoftext|>{% endfor %}say:"
    assert own._turn(tokenizer) == ([1], 0)
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m['content'] }} [/INST]{% endfor %}"
    with pytest.raises(ConfigError, match="opens a user's turn and ends it by a token of its own"):
        own._turn(tokenizer)


def test_what_cannot_be_asked(loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = dataclasses.replace(loaded, tokenizer=type(loaded.tokenizer)(tokenizer_object=loaded.tokenizer._tokenizer))
    with pytest.raises(ConfigError, match=r"no chat template that opens a user's turn.*give --prompts FILE"):
        own_prompts(plain, tmp_path)
    tries: list[int] = []
    right = own.continuations
    monkeypatch.setattr(own, "LONGEST", 1)  # an end alone is no prompt
    monkeypatch.setattr(own, "continuations", lambda *a, **more: tries.append(1) or right(*a, **more))
    with pytest.raises(ConfigError, match="none of 3 prompts that the target wrote came to an end within 1 tokens"):
        own_prompts(loaded, tmp_path)(0, 3)
    assert len(tries) == own.TRIES


def test_one_source_of_prompts() -> None:
    for more, message in (
        ({"answers": 4}, "--own-prompts 3 and --answers 4 both say"),
        ({"prompts": "p.txt"}, "--own-prompts 3 is about answers.*leave it out with --prompts"),
        ({"data": "a.npz"}, "--own-prompts 3 is about answers.*leave it out with --data"),
    ):
        with pytest.raises(ConfigError, match=message):
            AnswerConfig(own_prompts=3, **more)
    with pytest.raises(ConfigError, match="--own-prompts 0 must be a whole number of at least 1"):
        AnswerConfig(own_prompts=0)


def test_a_run(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts, answers, steps, folder; answers to other prompts are not taken for these."""
    monkeypatch.setattr("specc.train.run.HELD_PROMPTS", 8)

    def go(**what: Any) -> Path:
        config = {"family": "eagle3", "target": str(target), "steps": 2, "batch_tokens": 200, "threads": 1}
        asked = AnswerConfig(rows=8, new_tokens=16, **what)
        return train(TrainConfig(output=str(tmp_path / "out"), draft_vocab=48, what=asked, **config), QUIET)

    assert (go(own_prompts=16) / "model.safetensors").exists()
    assert len(list((tmp_path / "out.work" / "answers").glob("*.npz"))) == 2
    with pytest.raises(ConfigError, match="belongs to a run with prompts own, and this one has none;"):
        go(answers=16)
