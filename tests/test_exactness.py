"""Speculative text is the target's own, greedy and coupled, token for token; programs in eager mode.

Models are float32 with V = 128; the near-tie clause is not used once.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.decoding import CHUNK, Session, decode, pair, prompt
from helpers.exact import CHAINS, K3, LAST, NAMES, SAMPLING, TREES, coupled_reference, greedy

from specc.tree import DraftTree

each_tree = pytest.mark.parametrize("tree", [*CHAINS, *TREES], ids=NAMES.get)


def repeating() -> list[int]:
    """A prompt in which lookup finds something."""
    return prompt(6, seed=3) * 3


# --- greedy


def test_the_text_is_not_degenerate() -> None:
    assert len(set(greedy(tuple(prompt()), 40))) >= 8


@each_tree
def test_greedy_equals_the_target(tree: DraftTree) -> None:
    session = Session(tree=tree).start([prompt()], new=40)
    assert session.run()[0] == list(greedy(tuple(prompt()), 40))
    assert session.stats["accepted"] > 5, "nothing was accepted: the test proves little"
    assert session.stats["steps"] < 40


def test_greedy_plain_equals_the_target() -> None:
    assert decode(prompt(), new=40) == list(greedy(tuple(prompt()), 40))


@pytest.mark.parametrize("text", [prompt(), repeating(), [5]], ids=["random", "repeating", "one"])
def test_greedy_lookup_equals_the_target(text: list[int]) -> None:
    session = Session(tree=K3, drafter="ngram").start([text], new=40)
    assert session.run()[0] == list(greedy(tuple(text), 40))


@pytest.mark.parametrize("tree", TREES, ids=NAMES.get)
def test_tree_of_lookup(tree: DraftTree) -> None:
    """Every branch is another continuation; greedy and sampled texts are the target's own."""
    session = Session(tree=tree, drafter="ngram").start([repeating()], new=40)
    assert session.run()[0] == list(greedy(tuple(repeating()), 40))
    for rule in ("coupled", "rejection"):
        sampled = Session(tree=tree, drafter="ngram", rule=rule).start([prompt()], new=LAST, **SAMPLING)
        assert sampled.run()[0] == list(coupled_reference())


def test_lookup_is_accepted_where_the_text_repeats() -> None:
    """A target that has a cycle: from its second round on, every draft is right."""
    text = [7]
    for _ in range(100):
        text.append(text[-8] if len(text) >= 12 else 11 + len(text))
    session = Session(tree=K3, drafter="ngram").start([text[:40]], new=12)
    offered = session.step() and session.last[0, -1]
    assert offered == 3


def test_other_model_of_the_class() -> None:
    """Drafter of the target's class with other weights and fewer layers: no name may collide, nothing agrees."""
    models = pair("other")
    session = Session(models, tree=K3).start([prompt()], new=LAST)
    assert session.run()[0] == list(greedy(tuple(prompt()), LAST))
    assert session.stats["accepted"] < session.stats["offered"] / 2
    names = session.step_program.program.weight_names()
    assert any(n.startswith("target.") for n in names) and any(n.startswith("drafter.") for n in names)


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
@pytest.mark.parametrize("tree", [K3, TREES[1]], ids=NAMES.get)
def test_equal_drafter_accepts_every_level(rule: str, tree: DraftTree) -> None:
    if rule == "rejection" and not tree.is_chain:
        pytest.skip("children are the drafter's best, and one is compared with a sample")
    sampling = {} if rule == "greedy" else SAMPLING
    session = Session(pair("equal"), tree=tree, rule=rule).start([prompt()], new=LAST, **sampling)
    while bool(session.state["active"].any()):
        (emitted,) = session.step()
        block, accepted, offered = len(emitted), *session.last[0, -2:].tolist()
        assert offered == tree.depth
        assert accepted == min(tree.depth, block)
        assert block == tree.depth + 1 or len(session.new()[0]) == LAST
    assert session.stats["steps"] == -(-LAST // (tree.depth + 1))


# --- coupled: the text of plain sampling with the same seed


def test_coupled_plain_equals_the_oracle() -> None:
    assert decode(prompt(), rule="coupled", new=LAST, **SAMPLING) == list(coupled_reference())
    assert list(coupled_reference()) != list(greedy(tuple(prompt()), LAST))


@pytest.mark.parametrize("tree", [CHAINS[0], CHAINS[3], *TREES[:2]], ids=NAMES.get)
def test_coupled_equals_plain_sampling(tree: DraftTree) -> None:
    session = Session(tree=tree, rule="coupled").start([prompt()], new=LAST, **SAMPLING)
    assert session.run()[0] == list(coupled_reference())
    assert session.stats["accepted"] > 3


@pytest.mark.parametrize("drafter", ["ngram", "other"])
def test_coupled_for_every_drafter(drafter: str) -> None:
    """Whatever is guessed: same seed, same text."""
    models = pair("other") if drafter == "other" else pair()
    kind = "ngram" if drafter == "ngram" else "model"
    session = Session(models, tree=K3, rule="coupled", drafter=kind).start([prompt()], new=LAST, **SAMPLING)
    assert session.run()[0] == list(coupled_reference())


@pytest.mark.parametrize("seed", [0, 2**40 + 1, -3])
def test_coupled_for_other_seeds(seed: int) -> None:
    session = Session(tree=CHAINS[3], rule="coupled").start([prompt()], new=LAST, seeds=[seed], **SAMPLING)
    assert session.run()[0] == list(coupled_reference(seed)) != list(coupled_reference())


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 1.5}, {"temperature": 0.7, "top_k": 1}, {"top_p": 0.3}, {"temperature": 2.0, "top_k": 5}],
    ids=str,
)
def test_coupled_for_other_processors(sampling: dict[str, Any]) -> None:
    session = Session(tree=CHAINS[3], rule="coupled").start([prompt()], new=LAST, **sampling)
    expected = oracle.sampled_text(pair().target, prompt(), LAST, 5, **sampling)
    assert session.run()[0] == expected
    if sampling.get("top_k") == 1:
        assert expected == list(greedy(tuple(prompt()), LAST))


def test_rejection_is_a_function_of_the_seed() -> None:
    texts = [
        Session(tree=K3, rule="rejection").start([prompt()], new=12, seeds=[s], **SAMPLING).run() for s in (1, 1, 2)
    ]
    assert texts[0] == texts[1] != texts[2]


# --- where a text ends


@pytest.mark.parametrize("tree", [K3, TREES[1]], ids=NAMES.get)
@pytest.mark.parametrize("offset", range(9))
def test_eos_at_every_offset(tree: DraftTree, offset: int) -> None:
    """The end-of-text id falls on every place of a block: text, history and lengths stop there."""
    text = greedy(tuple(prompt()), LAST)
    eos = text[offset]
    expected = oracle.ended(text, [eos])
    session = Session(tree=tree).start([prompt()], new=LAST, eos=[127, eos])
    assert session.run()[0] == expected and expected[-1] == eos
    assert int(session.state["target_length"]) == len(prompt()) + len(expected) - 1
    assert session.state["history"][0, : len(session.texts[0])].tolist() == session.texts[0]


def test_eos_ids_of_a_list_and_padding() -> None:
    text = greedy(tuple(prompt()), LAST)
    first, second = text[6], text[3]
    assert decode(prompt(), tree=K3, new=LAST, eos=[first, second]) == oracle.ended(text, [first, second])
    assert decode(prompt(), tree=K3, new=LAST, eos=[]) == list(text)


@pytest.mark.parametrize("tree", [K3, TREES[1]], ids=NAMES.get)
def test_limit_at_every_offset(tree: DraftTree) -> None:
    text = greedy(tuple(prompt()), LAST)
    for new in range(1, 10):
        session = Session(tree=tree).start([prompt()], new=new)
        assert session.run()[0] == list(text[:new])
        assert int(session.last[0, -2]) <= int(session.last[0, -3]), "accepted is cut with the block"


def test_finished_rows_stay_as_they_are() -> None:
    session = Session(tree=K3).start([prompt()], new=5)
    session.run()
    before = {name: value.clone() for name, value in session.state.items()}
    assert session.step() == [[]]
    for name in ("target_length", "drafter_length", "active", "limit"):
        assert torch.equal(session.state[name], before[name]), name
    length = int(before["target_length"])
    for name, value in before.items():
        if value.ndim == 4:
            assert torch.equal(session.state[name][:, :, :length], value[:, :, :length]), name
    assert session.last[0, -3:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("length", [1, 2, CHUNK, CHUNK + 1, CHUNK + 2])
def test_prompt_lengths_around_a_chunk(length: int) -> None:
    text = prompt(length, seed=length)
    assert decode(text, tree=K3, new=10) == list(greedy(tuple(text), 10))


@pytest.mark.parametrize("tree", [K3, TREES[1]], ids=NAMES.get)
def test_cache_filled_to_the_last_slot(tree: DraftTree) -> None:
    """The text may fill the whole context; the slack behind it takes the rows that are written in vain."""
    slots = 48
    context = slots - CHUNK
    session = Session(tree=tree, slots=slots).start([prompt()], new=1000)
    assert session.run()[0] == list(greedy(tuple(prompt()), context - len(prompt())))
    assert len(session.texts[0]) == context


def test_context_without_slack_is_the_last_row_that_fits() -> None:
    """D + 1 slots behind the text are enough: one slot less would be written out of bounds."""
    slots, text = 32, prompt(10)
    session = Session(tree=K3, slots=slots)
    session.start([text], new=1000)
    session.state["limit"][:] = slots - (K3.depth + 1)
    assert session.run()[0] == list(greedy(tuple(text), slots - (K3.depth + 1) - len(text)))


# --- draft length and plain steps in between


@pytest.mark.parametrize("tree", [CHAINS[4], TREES[0]], ids=NAMES.get)
def test_draft_limit_at_every_value(tree: DraftTree) -> None:
    for limit in range(tree.depth + 2):
        session = Session(tree=tree).start([prompt()], new=16, draft_limit=limit)
        while bool(session.state["active"].any()):
            session.step()
            _, accepted, offered = session.last[0, -3:].tolist()
            assert offered == min(limit, tree.depth) and accepted <= offered
        assert session.new()[0] == list(greedy(tuple(prompt()), 16))


def test_draft_limit_of_lookup() -> None:
    for limit in range(5):
        session = Session(tree=K3, drafter="ngram").start([repeating()], new=16, draft_limit=limit)
        while bool(session.state["active"].any()):
            session.step()
            assert int(session.last[0, -1]) <= min(limit, 3)
        assert session.new()[0] == list(greedy(tuple(repeating()), 16))


@pytest.mark.parametrize("pattern", ["PS", "PPPS", "PPPPPPPS", "SPPSP"])
def test_plain_steps_in_between(pattern: str) -> None:
    """The drafter is left behind and catches up: all that it is offered afterwards is accepted again."""
    session = Session(pair("equal"), tree=K3).start([prompt()], new=40)
    index = 0
    while bool(session.state["active"].any()):
        plain = pattern[index % len(pattern)] == "P"
        session.step(plain=plain)
        index += 1
        if not plain and bool(session.state["active"].any()):
            assert int(session.last[0, -2]) == K3.depth, "the drafter lost track of the text"
    assert session.new()[0] == list(greedy(tuple(prompt()), 40, "equal"))


def test_truncate_and_go_on() -> None:
    """`truncate(total)`: `L_t = total - 1`, `L_d = min(L_d, total - 1)`; what lies behind is written again."""
    session = Session(tree=K3).start([prompt()], new=20)
    session.run()
    total = len(prompt()) + 7
    session.texts[0] = session.texts[0][:total]
    session.state["target_length"][:] = total - 1
    session.state["drafter_length"].clamp_(max=total - 1)
    session.state["active"][:] = True
    assert session.run()[0] == list(greedy(tuple(prompt()), 20))


# --- rows of a batch


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
def test_rows_of_a_batch_are_independent(rule: str) -> None:
    """Texts of different length, seed and end beside each other are the texts of each alone."""
    prompts, seeds = [prompt(), prompt(7, seed=2), [9]], [5, 6, 7]
    sampling = {} if rule == "greedy" else SAMPLING
    together = Session(tree=K3, rule=rule, batch=3).start(prompts, new=12, seeds=seeds, **sampling).run()
    for row, text in enumerate(prompts):
        if rule == "greedy":
            assert together[row] == list(greedy(tuple(text), 12))
        else:
            assert together[row] == oracle.sampled_text(pair().target, text, 12, seeds[row], **SAMPLING)
