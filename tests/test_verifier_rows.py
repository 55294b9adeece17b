"""The check of texts side by side, for engines that `test_verify` does not compile."""

from __future__ import annotations

import pytest
from helpers.fake_engine import fake_engine

from specc.verifier import rows
from specc.verifier.lab import Lab
from specc.verifier.rows import side_by_side


@pytest.mark.parametrize("rules", [("coupled",), ("rejection",)])
def test_any_rules(rules: tuple[str, ...]) -> None:
    check = side_by_side(Lab.make(fake_engine(batch=2, rules=rules)[0], quick=True))
    assert check.result == "pass" and not check.faults


def test_plain_texts_stand_beside_those_that_speculate(monkeypatch: pytest.MonkeyPatch) -> None:
    """In two rows as well."""
    mixes: list[set[bool]] = []
    monkeypatch.setattr(
        rows, "_together", lambda lab, found, wanted: mixes.append({length > 0 for _, length in wanted})
    )
    side_by_side(Lab.make(fake_engine(batch=2)[0], quick=True))
    assert {True, False} in mixes
