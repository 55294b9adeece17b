"""`specc verify` counts draws: which counts a law explains, and when it draws again."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.verifying import failed, toy

from specc.verifier import laws, run, sampled
from specc.verifier.lab import Lab


def test_the_tail_is_what_it_says() -> None:
    """Right counts are suspected as often as the level says, wrong ones always; slack only excuses small steps."""
    law = {(0, 0): 0.4, (0, 1): 0.3, (1, 0): 0.2, (1, 1): 0.1}
    generator = torch.Generator().manual_seed(1)

    def counts(shares: list[float], draws: int = 1000) -> dict[tuple[int, int], int]:
        drawn = torch.multinomial(torch.tensor(shares), draws, replacement=True, generator=generator)
        return dict(zip(law, drawn.bincount(minlength=4).tolist(), strict=True))

    tails = [laws.tail(counts(list(law.values())), law, 0.0) for _ in range(500)]
    assert 20 <= sum(p < 0.1 for p in tails) <= 80 and min(tails) > 1e-5
    assert laws.tail(counts([0.5, 0.2, 0.2, 0.1]), law, 0.0) < 1e-6
    assert laws.tail(counts([0.5, 0.2, 0.2, 0.1]), law, 0.5) > 1e-3
    assert laws.tail({(0, 0): 1, (7, 7): 1}, law, 0.0) == 0.0


def test_a_surprise_is_looked_for_in_first_tokens_and_in_pairs() -> None:
    """A wrong first token shows best alone, a wrong second one in pairs only."""
    law = {(a, b): 0.25 / 4 for a in range(4) for b in range(4)}
    right = dict.fromkeys(law, 10)
    assert laws.surprise(right, law, 0.0) == 1
    first = {(a, b): count + (5, -5, 0, 0)[a] for (a, b), count in right.items()}
    assert 2 * laws.tail({a: 40 + (20, -20, 0, 0)[a] for a in range(4)}, dict.fromkeys(range(4), 0.25), 0.0) == (
        pytest.approx(laws.surprise(first, law, 0.0))
    )
    assert laws.surprise(first, law, 0.0) < laws.tail(first, law, 0.0)
    second = {(a, b): count + (10 if a == b else -10 if b == (a + 1) % 4 else 0) for (a, b), count in right.items()}
    found = laws.surprise(second, law, 0.0)
    assert found == pytest.approx(2 * laws.tail(second, law, 0.0)) and found < 1e-6


def test_only_what_is_suspicious_is_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[range] = []
    right = sampled.draw

    def counted(lab: Lab, setting: Any, rule: str, length: int, seeds: range, *rest: Any) -> Any:
        looks.append(seeds)
        return right(lab, setting, rule, length, seeds, *rest)

    monkeypatch.setattr(sampled, "draw", counted)
    monkeypatch.setattr(run, "LEAST_DRAWS", 20)
    engine = toy()
    assert failed(engine, "laws", draws=20) == []
    assert set(looks) == {range(20)}
    looks.clear()
    monkeypatch.setattr(sampled, "surprise", lambda *a: 1e-3)
    assert failed(engine, "laws", draws=20) == []
    assert looks[:2] == [range(20), range(20, 100)]
    monkeypatch.setattr(sampled, "surprise", lambda *a: 1e-5)
    assert "plain law" in failed(engine, "laws", draws=20)
