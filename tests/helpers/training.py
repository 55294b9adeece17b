"""Short training runs on a tiny target and its answers."""

from __future__ import annotations

from pathlib import Path

from specc.capture.load import load_model
from specc.progress import Report
from specc.train.ask import ask
from specc.train.config import AnswerConfig, TrainConfig
from specc.train.run import train

from .models import save_tiny

QUIET = Report(quiet=True)
SMALL = {"steps": 4, "batch_tokens": 200, "threads": 1}


def save_target(folder: Path) -> Path:
    """A tiny target with layers enough for three taps."""
    return save_tiny(folder, num_hidden_layers=7)


def write_some_answers(target: Path, folder: Path) -> Path:
    """40 of the target's answers, in `folder`."""
    what = AnswerConfig(answers=40, rows=20, new_tokens=24)
    loaded = load_model(str(target), role="target", dtype="float32")
    ask(loaded, folder, 40, lambda at, n: [("chat", f"the end {i}") for i in range(at, at + n)], what, QUIET)
    return folder


def run(family: str, target: Path, data: Path, out: Path, **changes: object) -> Path:
    """A few steps of a drafter of this family; `changes` are fields of `TrainConfig`."""
    what, options = AnswerConfig(data=str(data)), {**SMALL, **changes}
    return train(TrainConfig(family=family, target=str(target), output=str(out), what=what, **options), QUIET)
