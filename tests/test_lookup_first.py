"""Lookup before a drafter: who drafts where, and that the text and its law stay the target's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.decoding import Built, Session, decode, fresh, lowered, pair, prompt
from helpers.exact import CHAINS, K3, LAST, law_tail, law_texts
from torch import Tensor

from specc.drafter import parse_drafter
from specc.errors import PassError
from specc.passes import step_passes
from specc.passes.inline_verify import InlineVerify
from specc.passes.lookup_draft import lookup
from specc.passes.lookup_first import LookupFirst

COMBINED = "ngram,model"
REPEATING = prompt(6, seed=3) * 3


def part(drafter: str, rule: str, batch: int = 2) -> Built:
    """The part of a step that drafts."""
    program = fresh(pair("other"), own_store=True, batch=batch)
    for pass_ in step_passes(tree=K3, rule=rule, drafter=parse_drafter(drafter)):
        if isinstance(pass_, InlineVerify):
            break
        pass_.run(program)
    return lowered(program)


def state(run: Built, texts: list[list[int]]) -> dict[str, Tensor]:
    """Inputs for rows that hold these texts; caches are random, alike for every program."""
    given = {name: value.clone() for name, value in run.inputs.items()}
    for row, text in enumerate(texts):
        given["history"][row, : len(text)] = torch.tensor(text)
    given["target_length"] = torch.tensor([len(text) - 1 for text in texts])
    if "drafter_length" in given:
        given["drafter_length"] = given["target_length"] - 1
    return given


@pytest.mark.parametrize("rule", ["greedy", "rejection"])
def test_lookup_drafts_where_it_finds_something_and_the_model_elsewhere(rule: str) -> None:
    both, alone = part(COMBINED, rule), part("model", rule)
    unseen = list(range(3, 21))
    given = state(both, [REPEATING, unseen])
    given["draft_limit"][:] = 2
    bucket = torch.zeros(90, dtype=torch.uint8)
    got, own = both(given, bucket=bucket), alone(given, bucket=bucket)
    text = [given["history"], given["target_length"], given["draft_limit"], bucket]
    found, offered = lookup(*text, parents=K3.parents, least=2)
    assert offered.tolist() == [[True, True, True, False], [True, False, False, False]]
    assert got["tokens"][0].tolist() == found[0].tolist() != own["tokens"][0].tolist()
    assert got["tokens"][1].tolist() == own["tokens"][1].tolist()
    assert got["valid"][:, 1:].tolist() == [[True, True, False]] * 2
    assert torch.equal(got["drafter_length"], own["drafter_length"])
    if rule == "rejection":
        assert (
            got["q"][0].argmax(-1).tolist() == found[0, 1:].tolist()
            and got["q"][0].sum() == got["q"][0].amax(-1).sum() == 3
        )
        assert torch.equal(got["q"][1], own["q"][1])


def test_one_token_that_occurred_before_is_no_reason_to_look() -> None:
    """The drafter is right more often there."""
    both, alone = part(COMBINED, "greedy"), part("model", "greedy")
    once, twice = [3, 4, 5, 6, 7, 4], [3, 4, 5, 6, 3, 4]
    given, bucket = state(both, [once, twice]), torch.zeros(90, dtype=torch.uint8)
    given["draft_limit"][:] = 3
    got, own = both(given, bucket=bucket), alone(given, bucket=bucket)
    assert got["tokens"][0].tolist() == own["tokens"][0].tolist()
    assert got["tokens"][1].tolist() == [4, 5, 6, 3] != own["tokens"][1].tolist()


def test_what_a_caller_wants_is_drafted_first() -> None:
    both = part(COMBINED, "rejection")
    given = state(both, [REPEATING, list(range(3, 21))])
    given["forced"][:, 1] = 77
    got = both(given, bucket=torch.zeros(90, dtype=torch.uint8))
    assert got["tokens"][:, 1].tolist() == [77, 77] and got["q"][:, 0].argmax(-1).tolist() == [77, 77]


@pytest.mark.parametrize("rule", ["greedy", "coupled"])
@pytest.mark.parametrize("text", [prompt(), REPEATING], ids=["random", "repeating"])
def test_the_text_is_the_targets(text: list[int], rule: str) -> None:
    request: dict[str, Any] = {"new": LAST, "seeds": [3], "temperature": 0.7}
    plain = decode(text, rule=rule, **request)
    assert decode(text, tree=K3, rule=rule, drafter=COMBINED, **request) == plain


def test_the_law_is_the_targets() -> None:
    found, session = law_texts(CHAINS[1], "rejection", drafter=COMBINED)
    assert law_tail(found) > 1e-5
    assert 0.2 < session.stats["accepted"] / session.stats["offered"] < 1


def test_the_drafters_state_follows_the_text() -> None:
    """Behind a step that looked up, the drafter's cache is what its prefill makes of the same text."""
    session = Session(tree=K3, drafter=COMBINED).start([REPEATING], new=20)
    for _ in range(3):
        session.step()
    held = int(session.state["drafter_length"][0])
    again = Session(tree=K3, drafter=COMBINED).start([session.texts[0]], new=1)
    for name, value in session.state.items():
        if name.startswith("drafter_") and value.ndim == 4:
            assert torch.allclose(value[:, :, :held], again.state[name][:, :, :held], atol=1e-5), name


def test_steps_without_a_drafter_are_refused() -> None:
    with pytest.raises(PassError, match="no drafter has drafted"):
        LookupFirst(tree=K3).requires(fresh(pair()))
