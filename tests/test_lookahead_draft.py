"""LookaheadDraft: window and guesses equal plain Python's; text is the target's own for every rule."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand
from helpers.decoding import PLAIN, Session, decode, pair, prompt
from helpers.exact import LAST, SAMPLING, coupled_reference, greedy
from helpers.lookahead import Lookahead
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.errors import PassError
from specc.passes.lookahead_draft import LookaheadDraft, guess, slide, window_rows
from specc.passes.lookahead_update import advance
from specc.program import Level
from specc.tree import DraftTree

TREE = DraftTree.from_widths((3, 1, 1))
NAME = "lookahead:4,4,3"
SLOTS, IDS = 64, 4
REPEATING = prompt(6, seed=3) * 3


def session(batch: int = 1, rule: str = "greedy", **more: Any) -> Session:
    return Session(tree=TREE, drafter=NAME, batch=batch, rule=rule, **more)


def read(text: Sequence[int]) -> tuple[Tensor, Tensor]:
    """History and length of one text; what stands behind it is junk."""
    history = torch.full((1, SLOTS), 1)
    history[0, : len(text)] = torch.tensor(text)
    return history, torch.tensor([len(text) - 1])


def toy_choice(line: Sequence[int]) -> int:
    """A target over a few ids that looks back three tokens."""
    return (line[-1] * 3 + line[-2] + line[-3] // 2 + len(line) % 2) % IDS


@settings(max_examples=100, deadline=None)
@given(
    text=st.lists(st.integers(0, IDS - 1), min_size=3, max_size=12),
    sizes=st.tuples(st.integers(1, 4), st.integers(2, 4), st.integers(1, 3)),
    steps=st.lists(
        st.tuples(st.integers(-4, 4), st.lists(st.integers(0, IDS - 1), min_size=4, max_size=4)), max_size=8
    ),
    limit=st.integers(0, 3),
)
def test_every_step_equals_plain_python(
    text: list[int], sizes: tuple[int, int, int], steps: list[tuple[int, list[int]]], limit: int
) -> None:
    """Texts grow by a step's tokens, stay, and are cut; window, guesses and pool follow as the reference's do."""
    width, size, guesses = sizes
    plain = Lookahead(*sizes)
    window, pool = torch.zeros(1, size - 1, width).long(), torch.zeros(1, 64 * width, size).long()
    made_for = torch.zeros(1).long()
    for grown, tokens in steps:
        text = [*text, *tokens[:grown]] if grown >= 0 else text[: max(3, len(text) + grown)]
        history, length = read(text)
        plain.slide(text)
        moved = slide(window, made_for, history, length)
        assert moved[0].tolist() == plain.window
        found, valid = guess(pool, history, length, torch.tensor([limit]), torch.zeros(len(text)), guesses=guesses)
        chains = found[0, 1:].view(size - 1, guesses).T.tolist()
        offered = valid[0, 1:].view(size - 1, guesses).T.tolist()
        cut = [chain[: sum(have)] for chain, have in zip(chains, offered, strict=True)]
        assert [c for c in cut if c] == [list(g[:limit]) for g in plain.guess(text) if limit]
        logits = torch.nn.functional.one_hot(torch.tensor([[toy_choice(row) for row in plain.rows(text)]]), IDS)
        state = window, pool, made_for, length, torch.tensor([True])
        window, pool, made_for = advance(moved, logits.float(), *state)
        plain.update(text, toy_choice)
        assert window[0].tolist() == plain.window and int(made_for) == plain.made_for
        assert [tuple(g) for g in (pool[0] - 1).tolist() if g[0] >= 0] == plain.pool


def test_rows_see_their_own_column_and_the_first_level() -> None:
    offsets, mask = window_rows(DraftTree.from_widths((2, 1)), 3)
    assert offsets.tolist() == [[0, 1, 1, 2, 2, 1, 2, 3, 2, 3, 4]]
    seen = [[column for column in range(11) if mask[0, row, column]] for row in range(11)]
    assert seen[:5] == [[0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4]]
    assert seen[5:] == [[0, 5], [0, 5, 6], [0, 5, 6, 7], [0, 5, 8], [0, 5, 6, 9], [0, 5, 6, 7, 10]]


def test_other_trees_are_refused() -> None:
    for widths in ((2, 2), (1, 2)):
        with pytest.raises(PassError, match="part at the root; give lookahead:W,N,G alone"):
            LookaheadDraft(tree=DraftTree.from_widths(widths), window=3).requires(hand(Level.CAPTURED))


# --- whole steps


def test_state_of_whole_steps_equals_plain_python() -> None:
    """The window's rows see what they should: the target's choices there are those of its own forward pass."""

    @functools.cache
    def likeliest(line: tuple[int, ...]) -> int:
        return int(pair().target(input_ids=torch.tensor([line])).logits[0, -1].argmax())

    run, plain = session().start([prompt()], new=30), Lookahead(4, 4, 3)
    for number in range(7):
        text = list(run.texts[0])
        run.step(plain=number == 3)  # a plain step leaves the window behind: it slides by what was emitted
        if number != 3:
            plain.slide(text)
            plain.update(text, lambda line: likeliest(tuple(line)))
        assert run.state["window"][0].tolist() == plain.window
        assert [tuple(g) for g in (run.state["ngrams"][0] - 1).tolist() if g[0] >= 0] == plain.pool
        assert int(run.state["window_at"]) == plain.made_for


@pytest.mark.parametrize("text", [prompt(), REPEATING, [5]], ids=["random", "repeating", "one"])
def test_greedy_equals_the_target(text: list[int]) -> None:
    run = session().start([text], new=40)
    assert run.run()[0] == list(greedy(tuple(text), 40))


def test_the_window_finds_what_the_text_does_not_hold() -> None:
    """Drafts are accepted where text repeats, and fewer if the pool is emptied before each step."""
    run = session().start([REPEATING], new=40)
    assert run.run()[0] == list(greedy(tuple(REPEATING), 40))
    without = session(edit=lambda state: state["ngrams"].zero_()).start([REPEATING], new=40)
    assert without.run()[0] == run.new()[0]
    assert run.stats["accepted"] > without.stats["accepted"] > 0


def test_stale_state_never_changes_the_text() -> None:
    def disturb(state: dict[str, Tensor]) -> None:
        state["window"].random_(0, 128)
        state["ngrams"].random_(1, 129)
        state["window_at"].random_(0, 60)

    assert session(edit=disturb).start([prompt()], new=24).run()[0] == list(greedy(tuple(prompt()), 24))


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
def test_sampled_text_is_that_of_the_seed(rule: str) -> None:
    """Guesses are one-hot, so that the draw decides: both rules give the text of plain sampling."""
    run = session(rule=rule).start([prompt()], new=LAST, **SAMPLING)
    assert run.run()[0] == list(coupled_reference())


def test_rows_of_a_batch_are_independent() -> None:
    prompts = [prompt(), REPEATING, [9]]
    together = session(batch=3).start(prompts, new=12).run()
    assert together == [list(greedy(tuple(text), 12)) for text in prompts]


def test_rows_that_are_not_active_keep_their_state() -> None:
    run = session(batch=2).start([prompt(), REPEATING], new=20)
    run.step()
    before = {name: run.state[name][1].clone() for name in ("window", "ngrams", "window_at")}
    run.state["active"] = torch.tensor([True, False])
    run.step()
    assert all(torch.equal(run.state[name][1], value) for name, value in before.items())


@pytest.mark.parametrize("limit", range(5))
def test_draft_limit(limit: int) -> None:
    run = session().start([REPEATING], new=16, draft_limit=limit)
    while bool(run.state["active"].any()):
        run.step()
        _, accepted, offered = run.last[0, -3:].tolist()
        assert accepted <= offered <= min(limit, 3)
    assert run.new()[0] == list(greedy(tuple(REPEATING), 16))


def test_forced_drafts_penalties_and_grammar() -> None:
    text = list(greedy(tuple(prompt()), 8))
    forced = torch.full((1, len(TREE)), -1)
    forced[0, [2, 5, 8]] = torch.tensor(text[:3])  # the second chain
    run = session().start([prompt()], new=8, forced=forced)
    assert run.step()[0] == text[:4]
    strong = {"repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.3}
    got = decode(REPEATING, tree=TREE, drafter=NAME, new=20, **strong)
    assert got == oracle.processed_text(pair().target, REPEATING, 20, **strong)
    assert got != decode(REPEATING, tree=PLAIN, new=20)


def test_logits_are_those_of_the_tree() -> None:
    run = session().start([prompt()], new=8)
    out = run.step_program(run.state, bucket=run._bucket())
    assert out["logits"].shape[:2] == out["processed"].shape[:2] == (1, len(TREE))
