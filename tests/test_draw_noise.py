"""DrawNoise: Gumbel noise of the positions behind the root, from seed, sample and position alone."""

from __future__ import annotations

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand
from helpers.check import assert_golden, check_pass
from helpers.decoding import built
from torch import Tensor, fx

from specc.passes.accept.noise import gumbel
from specc.passes.draw_noise import DrawNoise, positions_behind
from specc.philox import RACE
from specc.program import Level, Model, Program

INPUTS = ["seed", "sample", "target_length"]


def empty() -> Program:
    program = hand(Level.CAPTURED)
    program.models["target"] = Model("target", fx.Graph(), {}, vocab_size=6, max_positions=64)
    return program


def noise(depth: int, seed: list[int], sample: list[int], length: list[int]) -> Tensor:
    program = empty()
    DrawNoise(depth=depth).run(program)
    state = {"seed": torch.tensor(seed), "sample": torch.tensor(sample), "target_length": torch.tensor(length)}
    return built(program)(state)["gumbel"]


def test_graph() -> None:
    program = check_pass(empty, DrawNoise(depth=1), rewrites=1, atol=None, new_inputs=INPUTS, new_outputs=["gumbel"])
    text = [node.name for node in program.graph.nodes]
    assert text[-1] == "output" and "specc_noise" not in text[0]
    assert_golden(
        program.graph,
        """
        seed: i64[2] = input(seed)
        sample: i64[2] = input(sample)
        target_length: i64[2] = input(target_length)
        unsqueeze_default: i64[2, 1] = unsqueeze(target_length, 1)
        arange_start: i64[2] = arange.start(1, 3, device=cpu, pin_memory=False)
        add_tensor: i64[2, 2] = add.Tensor(unsqueeze_default, arange_start)
        noise_default: f32[2, 2, 6] = specc::noise(seed, sample, add_tensor, 0, 6)
        log_default: f32[2, 2, 6] = log(noise_default)
        neg_default: f32[2, 2, 6] = neg(log_default)
        log_default_1: f32[2, 2, 6] = log(neg_default)
        neg_default_1: f32[2, 2, 6] = neg(log_default_1)
        return {gumbel: neg_default_1}
        """,
    )


@pytest.mark.parametrize("depth", [0, 3])
def test_equals_the_oracle(depth: int) -> None:
    got = noise(depth, [5, 2**40], [0, 2], [3, 9])
    assert got.shape == (2, depth + 1, 6)
    for row, (seed, sample, length) in enumerate(((5, 0, 3), (2**40, 2, 9))):
        for level in range(depth + 1):
            expected = oracle.gumbels(seed, length + 1 + level, 6, oracle.RACE, sample)
            torch.testing.assert_close(got[row, level], expected, rtol=0, atol=1e-6)


def test_a_position_keeps_its_noise_in_the_next_step() -> None:
    """Level 2 of one step is level 0 of the step after two tokens: the text cannot tell how it was cut in steps."""
    first, second = noise(2, [5, 5], [0, 0], [3, 3]), noise(2, [5, 5], [0, 0], [5, 5])
    assert torch.equal(first[0, 2], second[0, 0]) and not torch.equal(first[0, 0], second[0, 0])
    assert torch.equal(first[0], first[1]), "the batch row is not part of the key"


def test_positions() -> None:
    assert positions_behind(torch.tensor([4, 0]), 3).tolist() == [[5, 6, 7], [1, 2, 3]]


def test_noise_is_finite_at_the_ends() -> None:
    ends = torch.tensor([0.5 * 2.0**-23, 1 - 2.0**-24])
    assert torch.isfinite(gumbel(ends)).all() and RACE == oracle.RACE
