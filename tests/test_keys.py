"""The engine's key: everything that decides what an engine holds is part of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from specc import keys
from specc.config import CompileConfig, DraftConfig

ROOT = Path(keys.__file__).parent


def key(*digests: str, without: tuple[str, ...] = (), **changes: object) -> str:
    config = CompileConfig(**{"target": "t", "drafter": "d", "output": "o", **changes})
    return keys.engine_key(config, list(digests or ("1", "2")), without)


def test_choices_and_contents_count_and_places_do_not() -> None:
    different = [
        key(),
        key("1", "3"),
        key("1", drafter="ngram"),
        key(without=("fuse_linears",)),
        key(draft=DraftConfig(draft_length=4)),
        key(draft=DraftConfig(draft_vocab="100")),
        key(draft=DraftConfig(draft_quant="int8")),
        key(draft=DraftConfig(draft_quant="int4")),
        key(context=100),
        key(dtype="bfloat16"),
        key(backend="eager"),
        key(acceptance="coupled,rejection"),
        key(chunk=16),
    ]
    assert len(set(different)) == len(different)
    assert key(target="elsewhere", drafter="there", output="here") == key()


def test_versions_count(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(keys, "version", lambda name: "0")
    assert key() != before


def test_source_that_decides_is_read() -> None:
    """Defaults stand in config.py, and what a processor can do in environment.py: a change makes another engine."""
    found = set(keys.deciding_files())
    for name in (
        "config",
        "environment",
        "program",
        "tree",
        "philox",
        "ops",
        "plan",
        "build",
        "driver",
        "engine_writer",
    ):
        assert ROOT / f"{name}.py" in found
    assert not {path for path in found if "bench" in path.parts or path.stem in ("cli", "show", "inspect")}
    assert all(path.is_file() for path in found)
