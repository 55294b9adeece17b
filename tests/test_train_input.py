"""What `specc train` is given: files of answers, places to write; what is wrong is named before any work is lost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.heard import Heard
from helpers.models import save_tiny
from transformers import Gemma2Config, Gemma2ForCausalLM

from specc.capture.load import load_model
from specc.cli import main
from specc.errors import CaptureError, ConfigError
from specc.progress import Report
from specc.train.answers import Row, read_answers, write_answers
from specc.train.ask import ask
from specc.train.claim import claim
from specc.train.config import AnswerConfig, TrainConfig
from specc.train.data import Data
from specc.train.draft import Draft
from specc.train.features import Reader
from specc.train.generate import continuations
from specc.train.kinds import check_target
from specc.train.read_data import read_chats
from specc.train.run import train
from specc.train.save import check_folder

QUIET = Report(quiet=True)
ROW = {"ids": np.arange(3, 13, dtype=np.int32), "size": np.array([10]), "skip": np.array([4])}
TOP = {"top": np.full((6, 2), 5, np.int32), "logp": np.full((6, 2), -1.0, np.float16)}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("input"), num_hidden_layers=7)


def asked(target: Path, out: Path, data: str, **changes: Any) -> TrainConfig:
    held = changes.pop("held", None)
    what = AnswerConfig(data=data, held=held)
    small = {"steps": 1, "threads": 1, "batch_tokens": 100, "precision": "float32"}
    return TrainConfig(family="eagle", target=str(target), output=str(out), what=what, **{**small, **changes})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"ids": np.arange(8, dtype=np.int32)}, "a row of 8 ids is said to have 10"),
        ({"skip": np.array([0])}, "row 0 has 10 ids, 0 of them a prompt"),
        ({"skip": np.array([11])}, "row 0 has 10 ids, 11 of them a prompt"),
        ({"ids": np.arange(10) / 3}, "row 0 holds float64"),
        ({"ids": np.array(["a"] * 10)}, "row 0 holds <U1"),
        ({"size": np.array([[10]])}, "do not fit each other"),
        ({**TOP, "top": TOP["top"][:4]}, "row 0 says 6 tokens and holds top"),
        ({"top": TOP["top"]}, "'logp'"),
        ({**TOP, "logp": np.full((6, 2), np.nan, np.float16)}, "not finite"),
    ],
    ids=str,
)
def test_arrays_that_do_not_fit(tmp_path: Path, changes: dict[str, Any], reason: str) -> None:
    np.savez(tmp_path / "a.npz", **{**ROW, **changes})
    with pytest.raises(ConfigError, match=f"--data .*a.npz: .*{reason}"):
        read_answers(tmp_path / "a.npz", lambda ids: 1)


def test_arrays_that_fit(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **ROW, **TOP)
    (row,) = read_answers(tmp_path / "a.npz", lambda ids: 1)
    assert row.outside(13) is None and row.outside(12) == 12 and row.outside(5) == 12


@pytest.mark.parametrize("kept", [30, -30])
def test_files_that_are_half_there(tmp_path: Path, kept: int) -> None:
    np.savez(tmp_path / "a.npz", **ROW)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:kept])
    with pytest.raises(ConfigError, match="is not an .npz file that can be read .* copy it again"):
        read_answers(tmp_path / "a.npz", lambda ids: 1)


@pytest.mark.parametrize("ids", [[3, 99999], [3, -5]], ids=str)
def test_ids_of_another_tokenizer(target: Path, tmp_path: Path, ids: list[int]) -> None:
    np.savez(tmp_path / "a.npz", ids=np.array([ids * 6] * 40, np.int32))
    with pytest.raises(ConfigError, match=rf"a.npz: row 0 has id {ids[1]}, and the target's are 0\.\.127"):
        train(asked(target, tmp_path / "out", str(tmp_path / "a.npz")), Heard())


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ([{"type": "text", "text": "he"}, {"type": "text", "text": "llo"}], "hello"),
        ("the\u2028end\u0085", "the\u2028end\u0085"),
    ],
)
def test_texts_of_chats(tmp_path: Path, content: Any, text: str) -> None:
    from specc.train import read_data

    assert read_data._text(content) == text
    line = json.dumps({"prompt": content, "answer": content}, ensure_ascii=False)
    (tmp_path / "a.jsonl").write_text(f"\ufeff{line}\n{line}\n", encoding="utf-8")

    class Words:
        chat_template, eos_token_id = None, 2

        def __call__(self, words: str, **_: Any) -> dict[str, list[int]]:
            return {"input_ids": [min(ord(letter), 127) for letter in words]}

    assert len(read_chats(tmp_path / "a.jsonl", Words())) == 2


@pytest.mark.parametrize("content", [None, 3, [{"type": "image_url", "image_url": "x"}], ["a"]], ids=str)
def test_content_that_is_no_text(tmp_path: Path, content: Any) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"prompt": "a", "answer": content}))
    with pytest.raises(ConfigError, match="a.jsonl:1: expected"):
        read_chats(tmp_path / "a.jsonl", None)


@pytest.mark.parametrize("value", ["", ",,", " , "])
def test_lists_that_name_nothing(value: str) -> None:
    with pytest.raises(ConfigError, match="--data '.*' names no file"):
        AnswerConfig(data=value)
    with pytest.raises(ConfigError, match="--held '.*' names no file"):
        AnswerConfig(data="a", held=value)


def test_widths_of_heads() -> None:
    for width in (7, 8, 33):
        with pytest.raises(ConfigError, match=f"--hidden {width} must be an even number of at least 16"):
            TrainConfig(family="draft", target="t", output="o", hidden=width)


def test_rows_that_are_held_out_are_not_learnt(target: Path, tmp_path: Path) -> None:
    rows = [
        Row(np.arange(3 + i, 23 + i, dtype=np.int32), 4, "chat", np.full((16, 2), 5), np.zeros((16, 2)))
        for i in range(9)
    ]
    write_answers(tmp_path / "data.npz", rows)
    write_answers(tmp_path / "held.npz", rows[:2])
    heard = Heard()
    train(asked(target, tmp_path / "out", str(tmp_path / "data.npz"), held=str(tmp_path / "held.npz")), heard)
    assert "2 rows of --data are held out as well" in heard.text and "7 rows, 112 tokens" in heard.text


def test_places_that_cannot_be_written(target: Path, tmp_path: Path) -> None:
    """The target's own folder above all: its files have the names of a drafter's."""
    (tmp_path / "file").write_text("x")
    other = save_tiny(tmp_path / "other")
    for out, reason in ((tmp_path / "file", "is a file"), (target, "is the target itself"), (other, "holds a model")):
        with pytest.raises(ConfigError, match=f"-o .*{reason}"):
            check_folder(out, str(target))
    (other / "training.json").write_text("[]")
    check_folder(other, str(target))
    before = (target / "config.json").read_bytes()
    assert main(["train", "eagle", str(target), "-o", str(target), "--data", "a.npz"]) == 2
    assert (target / "config.json").read_bytes() == before


def test_a_claim(tmp_path: Path) -> None:
    """A folder in which nothing was made is nobody's; a claim that cannot be read is named."""

    def of(family: str) -> TrainConfig:
        return TrainConfig(family=family, target="t", output="o", what=AnswerConfig(data="a"))

    claim(of("eagle"), "d", tmp_path)
    claim(of("medusa"), "d", tmp_path)
    (tmp_path / "features-of-7").mkdir()
    with pytest.raises(ConfigError, match="belongs to a run with family medusa, and this one has eagle"):
        claim(of("eagle"), "d", tmp_path)
    for text in ("{bro", "[1]"):
        (tmp_path / "run.json").write_text(text)
        with pytest.raises(ConfigError, match=r"run.json: does not say whose folder this is .* remove"):
            claim(of("medusa"), "d", tmp_path)


def test_answers_are_written_of_plain_attention_only(tmp_path: Path) -> None:
    """transformers hands a cap, a window or sinks to the attention function, which must not swallow them."""
    config = Gemma2Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, attn_logit_softcapping=20.0, final_logit_softcapping=None, sliding_window=64,
    )  # fmt: skip
    with pytest.raises(CaptureError, match="caps its scores.*give them with --data"):
        continuations(Gemma2ForCausalLM(config), [[3, 4]], ["chat"], longest=4, ends=(), keep=2, tick=lambda n: None)
    config.attn_logit_softcapping, config.sliding_window = None, 3
    with pytest.raises(CaptureError, match="sees less than the text"):
        continuations(Gemma2ForCausalLM(config), [[3, 4]], ["chat"], longest=4, ends=(), keep=2, tick=lambda n: None)


def test_targets_that_a_kind_cannot_read(tmp_path: Path) -> None:
    """Before any answer is asked for."""
    capped = Gemma2Config(
        vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, head_dim=8, final_logit_softcapping=0.01,
    )  # fmt: skip
    loaded = load_model(str(save_tiny(tmp_path / "t", num_hidden_layers=8)), role="target", dtype="float32")
    with pytest.raises(CaptureError, match="scales or caps what its LM head gives"):
        check_target("draft", dataclasses.replace(loaded, model=Gemma2ForCausalLM(capped), config=capped))
    capped.final_logit_softcapping = None
    gemma = dataclasses.replace(loaded, model=Gemma2ForCausalLM(capped), config=capped)
    with pytest.raises(CaptureError, match=r"not x / rms\(x\) \* weight.*specc train draft"):
        check_target("eagle3", gemma)
    assert check_target("draft", gemma) == Draft.taps(8) and check_target("eagle3", loaded) == (2, 4, 5)


def test_answers_survive_a_kill(target: Path, tmp_path: Path) -> None:
    loaded = load_model(str(target), role="target", dtype="float32")
    what = AnswerConfig(rows=2, new_tokens=6)

    def prompts(first: int, count: int) -> list[tuple[str, str]]:
        if first <= 3 < first + count and dies:
            raise KeyboardInterrupt
        return [("chat", f"the {i}") for i in range(first, first + count)]

    dies = True
    with pytest.raises(KeyboardInterrupt):
        ask(loaded, tmp_path, 6, prompts, what, QUIET)
    (first,) = tmp_path.iterdir()
    when = first.stat().st_mtime_ns
    dies = False
    ask(loaded, tmp_path, 6, prompts, what, QUIET)
    assert len(list(tmp_path.glob("*.npz"))) == 3 and first.stat().st_mtime_ns == when


def test_files_of_one_name_and_size_are_two(target: Path, tmp_path: Path) -> None:
    loaded, paths = load_model(str(target), role="target", dtype="float32"), []
    for day in (1, 2):
        paths.append(tmp_path / f"day{day}" / "ids" / "a.npz")
        paths[-1].parent.mkdir(parents=True)
        np.savez(paths[-1], ids=np.full((3, 12), day, np.int32))
    assert paths[0].stat().st_size == paths[1].stat().st_size
    rows = Data(paths, tmp_path / "features", loaded.tokenizer, Reader(loaded.model, (7,)), 512, QUIET)
    assert {int(row.ids[0]) for row in rows.refresh()} == {1, 2}
