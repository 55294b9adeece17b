"""ReadRoot: the last emitted token of every row."""

from __future__ import annotations

import torch
from helpers.by_hand import hand
from helpers.check import assert_golden, check_pass
from helpers.decoding import built

from specc.passes.read_root import ReadRoot
from specc.program import Level


def test_graph() -> None:
    program = check_pass(
        lambda: hand(Level.CAPTURED),
        ReadRoot(),
        rewrites=1,
        atol=None,
        new_inputs=["history", "target_length"],
        new_outputs=["tokens"],
    )
    assert_golden(
        program.graph,
        """
        history: i64[2, 8] = input(history)
        target_length: i64[2] = input(target_length)
        unsqueeze_default: i64[2, 1] = unsqueeze(target_length, 1)
        gather_default: i64[2, 1] = gather(history, 1, unsqueeze_default)
        return {tokens: gather_default}
        """,
    )


def test_every_row_has_its_own_length() -> None:
    program = hand(Level.CAPTURED)
    ReadRoot().run(program)
    history = torch.arange(16).view(2, 8)
    out = built(program)({"history": history, "target_length": torch.tensor([0, 7])})
    assert out["tokens"].tolist() == [[0], [15]]
