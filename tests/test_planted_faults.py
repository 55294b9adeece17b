"""Faults planted on purpose: the tests of texts and laws must see them."""

from __future__ import annotations

import pytest
import torch
from helpers.decoding import Pair, Session, build, built, fresh, pair, prompt
from helpers.exact import (
    CHAINS,
    K3,
    LAST,
    LAW_ROWS,
    LAW_SLOTS,
    SAMPLING,
    TREES,
    coupled_reference,
    greedy,
    law_models,
    law_tail,
    law_texts,
)
from torch import Tensor

from specc.drafter import parse_drafter
from specc.passes import run, step_passes
from specc.tree import DraftTree


def _step(
    monkeypatch: pytest.MonkeyPatch, tree: DraftTree, rule: str = "greedy", models: Pair | None = None
) -> Session:
    """A session over a step that is built anew, with the faults that are planted now."""
    plain = build("step", rule=rule, models=models or pair(), batch=1, slots=96)
    assert plain is not None  # built while it was right
    program = fresh(models or pair(), slots=96, own_store=True)  # what is planted stays out of the others' weights
    run(program, step_passes(tree=tree, rule=rule, drafter=parse_drafter("model")))
    step = built(program)
    monkeypatch.undo()
    return Session(models, tree=tree, rule=rule, step=step)


@pytest.mark.parametrize(
    ("tree", "rule"),
    [(K3, "greedy"), (DraftTree.from_widths((2, 2)), "greedy"), (TREES[1], "greedy"), (CHAINS[0], "coupled")],
    ids=["chain", "two by two", "tree", "coupled"],
)
def test_nothing_planted(monkeypatch: pytest.MonkeyPatch, tree: DraftTree, rule: str) -> None:
    """The control of those below: built the same way and left right, the text is right."""
    given = {"new": 40} if rule == "greedy" else {"new": LAST, **SAMPLING}
    session = _step(monkeypatch, tree, rule).start([prompt()], **given)
    assert session.run()[0] == list(greedy(tuple(prompt()), 40) if rule == "greedy" else coupled_reference())


def test_planted_position_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from specc.passes import blocks

    monkeypatch.setattr(
        blocks, "_positions", lambda start, offsets, *, last: (start[:, None] + offsets + 1).clamp(max=last)
    )
    session = _step(monkeypatch, K3).start([prompt()], new=40)
    assert session.run()[0] != list(greedy(tuple(prompt()), 40))


def test_planted_siblings_see_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    causal = DraftTree.from_widths((2, 2))
    everything = tuple(tuple(j <= i for j in range(len(causal))) for i in range(len(causal)))
    object.__setattr__(causal, "ancestors", everything)
    from specc.passes import tree_mask, unroll_draft

    for module in (tree_mask, unroll_draft):
        monkeypatch.setattr(module, "label", lambda tree: "planted")
    session = _step(monkeypatch, causal).start([prompt()], new=40)
    assert session.run()[0] != list(greedy(tuple(prompt()), 40))


def test_planted_wrong_rows_after_a_tree_accept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first D + 1 rows of the tree are written instead of the accepted path."""
    from specc.passes import blocks

    def first_rows(rows: Tensor, path: Tensor) -> Tensor:
        return rows[:, :, : path.shape[1]]

    monkeypatch.setattr(blocks, "_take_rows", first_rows)
    session = _step(monkeypatch, TREES[1]).start([prompt()], new=40)
    assert session.run()[0] != list(greedy(tuple(prompt()), 40))


def test_planted_chain_is_blind_to_wrong_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a chain the path is the first rows: the fault above needs a tree to be seen."""
    from specc.passes import blocks

    monkeypatch.setattr(blocks, "_take_rows", lambda rows, path: rows[:, :, : path.shape[1]])
    session = _step(monkeypatch, K3).start([prompt()], new=12)
    assert session.run()[0] == list(greedy(tuple(prompt()), 12))


def test_planted_noise_of_the_wrong_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """One position late on both sides: still a law of the target's, but not the text of the seed."""
    from specc.passes import draw_noise

    right = draw_noise.positions_behind
    monkeypatch.setattr(draw_noise, "positions_behind", lambda length, count: right(length, count) + 1)
    session = _step(monkeypatch, CHAINS[0], "coupled").start([prompt()], new=LAST, **SAMPLING)
    assert session.run()[0] != list(coupled_reference())


def test_planted_noise_of_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise keyed by the place in the block instead of the position: every step draws the same."""
    from specc.passes import draw_noise

    right = draw_noise.positions_behind
    monkeypatch.setattr(draw_noise, "positions_behind", lambda length, count: right(torch.zeros_like(length), count))
    session = _step(monkeypatch, CHAINS[0], "coupled").start([prompt()], new=LAST, **SAMPLING)
    assert session.run()[0] != list(coupled_reference())


def test_planted_residual_fails_the_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rejected draft may be drawn again: the residual is p."""
    from specc.passes.accept import rejection

    right = rejection.accept

    def wrong(processed: Tensor, q: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        accepted, _ = right(processed, q, *rest)
        row = accepted[:, None, None].expand(-1, 1, processed.shape[2])
        return accepted, processed.softmax(-1).gather(1, row).squeeze(1)

    monkeypatch.setattr(rejection, "accept", wrong)
    sizes = {"models": law_models(), "batch": LAW_ROWS, "slots": LAW_SLOTS}
    step = build.__wrapped__("step", tree=CHAINS[1], rule="rejection", **sizes)
    monkeypatch.undo()
    found, _ = law_texts(CHAINS[1], "rejection", step=step)
    assert law_tail(found) < 1e-5


def test_state_without_catch_up_loses_acceptance() -> None:
    """Planted: the drafter's cache is said to hold what plain steps never gave it."""

    def skip(state: dict[str, Tensor]) -> None:
        state["drafter_length"] = state["target_length"].clone()

    session = Session(pair("equal"), tree=K3, edit=skip).start([prompt()], new=40)
    accepted = []
    while bool(session.state["active"].any()):
        session.step(plain=len(accepted) % 2 == 0)
        accepted.append(int(session.last[0, -2]))
    assert session.new()[0] == list(greedy(tuple(prompt()), 40, "equal")), "a poor drafter costs speed, never text"
    assert min(accepted[1:-1:2]) < K3.depth
