"""RotaryTables: sine and cosine become a table exactly where a position's value is its own."""

from __future__ import annotations

import pytest
import torch
from helpers.by_hand import exported_model
from helpers.check import check_pass, must_not_fire
from helpers.decoding import until
from helpers.models import tiny_model
from torch import Tensor, nn

from specc.drafter import parse_drafter
from specc.passes import step_passes
from specc.passes.normalize import Normalize
from specc.passes.rotary_tables import RotaryTables
from specc.program import Program, Sizes, WeightStore
from specc.tree import DraftTree

PASSES = step_passes(tree=DraftTree.chain(1), rule="greedy", drafter=parse_drafter("model"))


class Waves(nn.Module):
    """Logits from tokens and the cosine of something computed from positions."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.register_buffer("speed", torch.arange(1.0, 9.0) / 7)

    def angle(self, positions: Tensor) -> Tensor:
        return positions[..., None].float() * self.speed

    def forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor]:
        return (self.table(tokens) * self.angle(positions).cos(),)


class Relative(Waves):
    def angle(self, positions: Tensor) -> Tensor:
        return (positions - positions.amax(-1, keepdim=True))[..., None].float() * self.speed


class Running(Waves):
    def angle(self, positions: Tensor) -> Tensor:
        return positions.cumsum(-1)[..., None].float() * self.speed


class OfTokens(Waves):
    def forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor]:
        return ((self.table(tokens) + self.angle(positions)).cos(),)


class Learned(Waves):
    def forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor]:
        return (self.table(tokens) + self.table(positions % 16),)


class Across(Waves):
    """The positions lie in the last dimension: not one row of numbers a position."""

    def forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor]:
        wave = (positions.float() * 0.3).cos()
        return ((self.table(tokens).transpose(1, 2) * wave[:, None]).transpose(1, 2),)


class WithoutWaves(Waves):
    def forward(self, tokens: Tensor, positions: Tensor) -> tuple[Tensor]:
        return (self.table(tokens) * self.angle(positions).exp(),)


def test_captured_pair() -> None:
    program = check_pass(
        lambda: until("rotary_tables", PASSES),
        RotaryTables(),
        gone=["sin", "cos"],
        rewrites=4,
        atol=0,
        new_weights=4,
    )
    names = [n for n in program.weights if ".positions." in n]
    assert names == [f"{m}.positions.{i}.96" for m in ("target", "drafter") for i in (0, 1)]
    assert program.weights[names[0]].shape == (96, 8)


@pytest.mark.parametrize("position", [0, 47])
def test_every_slot_has_a_row(position: int) -> None:
    """The table holds as many positions as the cache has slots, the last one included."""

    def values(program: Program) -> Tensor:
        return program.models["target"].module()(torch.tensor([[3, 3]]), torch.tensor([[position, 1]]))[0]

    torch.manual_seed(0)
    module = Waves()
    before = values(exported_model(module))
    program = exported_model(module)
    Normalize().run(program)
    assert RotaryTables().run(program) == 1
    assert program.weights["target.positions.0.48"].shape == (48, 8)
    assert torch.equal(values(program), before)


def test_no_more_rows_than_the_model_has_positions() -> None:
    program = exported_model(Waves(), positions=24)
    RotaryTables().run(program)
    assert program.weights["target.positions.0.24"].shape == (24, 8)


@pytest.mark.parametrize(
    "module, reason",
    [
        (Relative, "depends on the other positions"),
        (Running, "depends on the other positions"),
        (Across, "not one row of numbers a position"),
        (OfTokens, None),
        (Learned, None),
        (WithoutWaves, None),
    ],
)
def test_must_not_fire(module: type[nn.Module], reason: str | None) -> None:
    def make() -> Program:
        torch.manual_seed(0)
        program = exported_model(module())
        Normalize().run(program)
        return program

    must_not_fire(make, RotaryTables(), reason=reason)


def test_scaled_rotary_keeps_its_values() -> None:
    """Linear scaling and another base go into the table."""
    from specc.capture import capture

    scaling = {"rope_type": "linear", "factor": 4.0, "rope_theta": 1000.0}
    model = tiny_model(rope_parameters=scaling)
    program = Program("hand", {"target": capture(model, name="target")}, WeightStore(), Sizes(1, 96, 16))
    for name, weight in program.models["target"].weights.items():
        program.weights.add(name, weight)
    Normalize().run(program)
    tokens, positions = torch.arange(9)[None] + 3, torch.arange(9)[None] + 80
    before = program.models["target"].copy().module()(tokens, positions)[0]
    assert RotaryTables().run(program) == 2
    assert torch.equal(program.models["target"].copy().module()(tokens, positions)[0], before)
