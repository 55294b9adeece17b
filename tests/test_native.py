"""Every family of drafters in native code, judged by `specc verify`: greedy texts and the law of each rule.

The suite proves the families on the eager back end and some of them natively; this takes half an hour of C++ compilers,
so it runs when asked for: `make test-native`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from helpers import checkpoints
from helpers.models import save_tiny, tiny_drafter, tiny_model, tiny_tokenizer
from helpers.vocabularies import renamed, reordered
from torch import randperm

import specc
from specc.config import CompileConfig, DraftConfig
from specc.drafter import KINDS

pytestmark = pytest.mark.skipif("SPECC_NATIVE" not in os.environ, reason="takes half an hour: make test-native")

RULES = "coupled,rejection"
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "model": ("{}/model", {"draft_length": 2}),
    "several": ("{}/model+{}/model", {"draft_length": 2}),
    "sampled": ("{}/model", {"tree": "2,2", "children": "sampled"}),
    "medusa": ("medusa:{}/medusa", {"tree": "2,1"}),
    "eagle": ("eagle:{}/eagle", {"tree": "2,1"}),
    "eagle2": ("eagle:{}/eagle", {"tree": "dynamic:6,2,3"}),
    "eagle3": ("eagle3:{}/eagle3", {"tree": "dynamic:6,2,3"}),
    "speculators": ("eagle3:{}/speculators", {"draft_length": 2}),
    "lookahead": ("lookahead:2,3,3", {}),
    "ngram": ("ngram:2,3", {}),
    "self": ("self:1", {"draft_length": 2}),
    "tokenizer": ("{}/tokenizer", {"draft_length": 2}),
    "pruned": ("{}/model", {"draft_length": 2, "draft_vocab": 96}),
    "int8": ("{}/model", {"draft_length": 2, "draft_quant": "int8"}),
    "int4": ("{}/model", {"draft_length": 2, "draft_quant": "int4"}),
    "combined": ("ngram,eagle3:{}/eagle3", {"tree": "2,1"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`target` and a drafter of each kind."""
    folder, target = tmp_path_factory.mktemp("native"), tiny_model(num_hidden_layers=3)
    save_tiny(folder / "target", model=target)
    drafter, order = tiny_drafter(target, 0.03), randperm(128)
    save_tiny(folder / "model", model=drafter)
    save_tiny(folder / "tokenizer", model=renamed(drafter, order, 144))
    reordered(tiny_tokenizer(), order.tolist()).save_pretrained(folder / "tokenizer")
    checkpoints.save(folder / "eagle", *checkpoints.eagle(target))
    eagle3 = checkpoints.eagle3(target, draft_vocab=80)
    checkpoints.save(folder / "eagle3", *eagle3)
    checkpoints.save(folder / "speculators", *checkpoints.speculators(*eagle3))
    checkpoints.save(folder / "medusa", *checkpoints.medusa(target))
    return folder


@pytest.mark.parametrize("name", FAMILIES)
def test_verify_passes(name: str, folder: Path, tmp_path: Path) -> None:
    drafter, options = FAMILIES[name]
    engine = specc.compile(
        folder / "target", drafter.format(*[folder] * 2), tmp_path / "engine", context=64, chunk=16, fixed=True,
        acceptance=RULES, **options,
    )  # fmt: skip
    report = specc.verify(engine)
    assert report.passed, report.failed
    assert {"plain law", "coupled law", "rejection law", "transformers"} <= {check.name for check in report.checks}


def test_no_family_is_forgotten() -> None:
    kinds = set()
    for drafter, options in FAMILIES.values():
        draft = DraftConfig(**options)
        config = CompileConfig(target="t", drafter=drafter.format("a", "a"), output="o", acceptance=RULES, draft=draft)
        kinds.add(config.drafting().kind)
    assert kinds == set(KINDS)
