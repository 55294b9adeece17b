"""`specc verify` on engines that compute in fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import specc
from specc.capture import load, proof
from specc.config import DTYPES
from specc.verifier import own_text
from specc.verifier.same_texts import TIES
from specc.verifier.texts import ALLOWED


def test_every_dtype_has_its_tolerances() -> None:
    for table in (ALLOWED, TIES, own_text.TOLERANCE):
        assert set(table) == set(DTYPES)
    assert {str(dtype).removeprefix("torch.") for dtype in proof.TOLERANCE} == set(load.DTYPES) == set(DTYPES)


def test_an_engine_in_float16_passes(tmp_path: Path, tiny_folders: tuple[Path, Path]) -> None:
    given: dict[str, Any] = {"context": 120, "chunk": 16, "draft_length": 2, "fixed": True}
    engine = specc.compile(*tiny_folders, tmp_path / "e", backend="eager", dtype="float16", **given)
    report = specc.verify(engine, quick=True, only=("greedy", "coupled", "penalties", "transformers"))
    assert report.passed, report.checks
