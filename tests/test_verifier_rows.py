"""The check of texts side by side, for engines that `test_verify` does not compile."""

from __future__ import annotations

import pytest
from helpers.fake_engine import fake_engine

from specc.verifier.lab import Lab
from specc.verifier.rows import side_by_side


@pytest.mark.parametrize("rules", [("coupled",), ("rejection",)])
def test_any_rules(rules: tuple[str, ...]) -> None:
    check = side_by_side(Lab.make(fake_engine(batch=2, rules=rules)[0], quick=True))
    assert check.result == "pass" and not check.faults
