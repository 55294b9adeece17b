"""The estimate of how often the drafts of one tree are taken."""

from __future__ import annotations

import pytest

from specc.runtime.acceptance import MEMORY, PRIOR, Acceptance
from specc.runtime.cost import Trial


class TestAcceptance:
    """The estimate of one tree."""

    def test_begins_with_the_trial(self) -> None:
        found = Acceptance(3, Trial(1000, 1000, (800, 400, 100)))
        assert found.tokens(3) == pytest.approx(1 + 0.8 + 0.4 + 0.1, abs=0.02)
        assert found.tokens(1) == pytest.approx(1.8, abs=0.01)
        rarely = Acceptance(3, Trial(1000, 100, (100, 100, 100)))
        assert rarely.tokens(3) == pytest.approx(1.3, abs=0.02)
        deeper = Acceptance(5, Trial(1000, 1000, (500, 250)))  # deeper than was tried: as the last level
        assert deeper.tokens(5) == pytest.approx(sum(0.5**i for i in range(6)), abs=0.02)
        assert Acceptance(2, Trial(50, 50, (0, 0))).tokens(2) == pytest.approx(1, abs=0.03)

    def test_follows_what_is_seen(self) -> None:
        found = Acceptance(2, Trial(100, 100, (90, 80)))
        for _ in range(200):
            found.see(0, 2, 2)
        assert found.tokens(2) < 1.01
        for _ in range(200):
            found.see(2, 2, 2)
        assert found.tokens(2) > 2.9

    def test_levels_count_where_they_were_reached(self) -> None:
        """Half of the steps take both levels, half none: 1 token or 3."""
        found = Acceptance(2, None)
        for i in range(400):
            found.see(2 * (i % 2), 2, 2)
        assert found.tokens(1) == pytest.approx(1.5, abs=0.02) and found.tokens(2) == pytest.approx(2.0, abs=0.03)

    def test_steps_without_a_draft(self) -> None:
        found = Acceptance(2, Trial(100, 100, (100, 100)))
        for i in range(400):
            found.see(2 * (i % 4 == 0), 2 * (i % 4 == 0), 2)
        assert found.tokens(2) == pytest.approx(1 + 2 * 0.25, abs=0.04)

    def test_weights(self) -> None:
        """A trial counts for `PRIOR` steps at first, and less with each step after."""
        found, plain = Acceptance(1, Trial(10**6, 10**6, (5 * 10**5,))), Acceptance(1, None)
        found.see(1, 1, 1)
        assert found.tokens(1) == pytest.approx(1 + (MEMORY * PRIOR / 2 + 1) / (MEMORY * PRIOR + 1), abs=1e-4)
        for _ in range(50):
            plain.see(0, 1, 1)
        plain.fade(2)
        for _ in range(4):
            plain.see(1, 1, 1)
        assert plain.tokens(1) > 1.6
