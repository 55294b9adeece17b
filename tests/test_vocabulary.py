"""A drafter of another vocabulary: fed its own ids, read by the target's, its law that over what both can say."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand
from helpers.decoding import Built, Pair, Session, built, fresh, lowered, pair, prompt
from helpers.exact import K3, LAST, LAW, LAW_ROUNDS, LAW_ROWS, LAW_SLOTS, LAW_TEXT, SAMPLING, TREES, greedy, law_tail
from helpers.vocabularies import permuted
from torch import Tensor

from specc.drafter import DrafterSpec
from specc.passes import run, step_passes
from specc.passes.vocabulary import by_target_id, fed
from specc.program import Level, Model
from specc.tree import DraftTree

SEED = 5
K2 = DraftTree.chain(2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_maps(dtype: torch.dtype) -> None:
    """Ids in and logits out against plain indexing; a drafter without maps is only cut and cast."""
    program = hand(Level.CAPTURED)
    program.models["target"] = Model("target", program.graph, {}, 4, 64)
    program.models["same"] = Model("same", program.graph, {}, 6, 64)
    maps = {"fed_as": torch.tensor([5, 1, 0, 5]), "column_of": torch.tensor([4, -1, 0, 1])}
    other = Model("other", program.graph, {}, 6, 64).with_vocabulary(**maps)
    program.models["other"] = other
    for name, tensor in other.weights.items():
        program.weights.add(name, tensor)
    tokens = program.input("tokens", (2, 3), torch.int64)
    logits = program.input("logits", (2, 3, 6), dtype)
    assert fed(program, None, "same", tokens) is tokens
    results = {
        "fed": fed(program, None, "other", tokens),
        "other": by_target_id(program, None, "other", logits),
        "same": by_target_id(program, None, "same", logits),
    }
    program.give(**results)
    given = {"tokens": torch.tensor([[0, 1, 2], [3, 3, 0]]), "logits": torch.randn(2, 3, 6).to(dtype)}
    out = built(program)(given)
    assert out["fed"].tolist() == [[5, 1, 0], [5, 5, 5]]
    assert out["other"].dtype == out["same"].dtype == torch.float32
    expected = given["logits"].float()[..., [4, 0, 0, 1]]
    expected[..., 1] = -math.inf
    assert torch.equal(out["other"], expected)
    assert torch.equal(out["same"], given["logits"].float()[..., :4])


@pytest.mark.parametrize("rule, tree", [("greedy", K3), ("coupled", TREES[0]), ("rejection", K3)])
def test_other_ids_for_the_same_tokens_change_nothing(rule: str, tree: DraftTree) -> None:
    """Text, drafts and acceptance are those of the same drafter under the target's ids; prefill is mapped too."""
    sessions = [
        Session(models, tree=tree, rule=rule).start([prompt()], new=40, seeds=[SEED], **SAMPLING)
        for models in (pair(), permuted())
    ]
    texts = [session.run() for session in sessions]
    assert texts[0] == texts[1]
    assert sessions[0].stats == sessions[1].stats
    assert sessions[0].stats["accepted"] > 0


def test_planted_map_off_by_one() -> None:
    """The text stays the target's, and acceptance tells."""
    sessions = [Session(models, tree=K3).start([prompt()], new=40) for models in (permuted(), permuted(shift=1))]
    for session in sessions:
        assert session.run()[0] == list(greedy(tuple(prompt()), 40))
    right, wrong = (session.stats["accepted"] / session.stats["offered"] for session in sessions)
    assert right > 0.3 > 0.1 > wrong


def drafts(models: Pair, rule: str = "rejection", edit: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
    """What one drafting of a chain of three gives."""
    program = fresh(models, own_store=True)
    passes = [p for p in step_passes(tree=K3, rule=rule, drafter=DrafterSpec("model", ("d",)))]
    names = [p.stem() for p in passes]
    run(program, passes[: names.index("unroll_draft") + 1])
    drafting: Built = lowered(program)
    state = Session(models, tree=K3, rule=rule).start([prompt()], seeds=[SEED], **SAMPLING).state
    state |= {k: v for k, v in drafting.inputs.items() if k not in state} | (edit or {})
    return drafting(state, bucket=torch.zeros(40, dtype=torch.uint8))


def test_q_is_the_law_over_what_both_can_say() -> None:
    models = permuted(lacking=3)
    columns = models.maps["column_of"]
    out = drafts(models)
    text, own_ids = prompt(), models.maps["fed_as"]
    for level, token in enumerate(out["tokens"][0, 1:].tolist()):
        own = oracle.next_logits(models.drafter, own_ids[torch.tensor(text)].tolist())
        common = torch.where(columns < 0, -math.inf, own[columns.clamp(min=0)])
        law = oracle.processed(common[None], **SAMPLING)[0].softmax(-1)
        torch.testing.assert_close(out["q"][0, level], law, rtol=0, atol=5e-5)
        assert out["q"][0, level][columns < 0].eq(0).all() and law[token] > 0
        text = [*text, token]


@pytest.mark.parametrize("rule, tree", [("rejection", K2), ("coupled", TREES[1])])
def test_sampled_law_over_an_intersection(rule: str, tree: DraftTree) -> None:
    """The target's law, all 16 ids of it, from a drafter that lacks seven; a right program fails below 1e-5."""
    models = permuted(vocab=16, rows=20, lacking=3)
    session = Session(models, tree=tree, rule=rule, batch=LAW_ROWS, slots=LAW_SLOTS)
    found: list[tuple[int, ...]] = []
    for number in range(LAW_ROUNDS):
        seeds = list(range(number * LAW_ROWS, (number + 1) * LAW_ROWS))
        found += map(tuple, session.start([LAW_TEXT], new=3, seeds=seeds, **LAW).run())
    assert law_tail(found) > 1e-5
    assert 0.05 < session.stats["accepted"] / session.stats["offered"] < 1


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_nothing_is_offered_where_the_law_is_empty(rule: str) -> None:
    """The request allows only what the drafter lacks: no draft is offered, no number is NaN, the text goes on."""
    models = permuted(lacking=3)
    allowed = models.maps["column_of"] < 0
    bias = torch.where(allowed, 0.0, -math.inf)[None]
    out = drafts(models, rule, {"bias": bias})
    assert out["valid"].tolist() == [[True, False, False, False]]
    assert rule != "rejection" or (out["q"] == 0).all()
    texts = []
    for tree in (DraftTree.chain(0), K3):
        session = Session(models, tree=tree, rule=rule).start([prompt()], new=LAST, bias=bias, **SAMPLING)
        texts.append(session.run()[0])
        assert session.stats["accepted"] == session.stats["offered"] == 0
    assert all(allowed[token] for token in texts[0])
    assert texts[1] == texts[0] or rule == "rejection"


def test_children_beyond_the_law_are_not_offered() -> None:
    """Four children are asked for and the request allows two ids that the drafter has."""
    tree = DraftTree.from_widths((4, 1))
    bias = torch.full((1, 128), -math.inf)
    bias[0, [20, 40]] = 0.0
    session = Session(tree=tree).start([prompt()], new=10, bias=bias)
    program = session.step_program
    assert program is not None
    plain = Session().start([prompt()], new=10, bias=bias)
    assert session.run() == plain.run()
    assert session.stats["accepted"] > 0


def test_what_the_caller_forces_needs_no_law() -> None:
    """A forced draft that the drafter lacks is offered, and accepted where it is the target's."""
    models = permuted(lacking=3)
    text = list(greedy(tuple(prompt()), 3))
    forced = torch.tensor([[-1, *text]])
    session = Session(models, tree=K3).start([prompt()], new=4, forced=forced)
    bias = torch.where(models.maps["column_of"] < 0, 0.0, -math.inf)[None]
    assert session.step()[0][:3] == text
    assert session.stats["accepted"] == 3
    assert drafts(models, "greedy", {"forced": forced, "bias": bias})["valid"].all()
