"""GiveDraft and TakeDraft: a step cut in two where its draft is known, whose halves together are the whole."""

from __future__ import annotations

import pytest
import torch
from helpers.bound import eager_step, empty_program, generated
from torch import Tensor

from specc.drafter import parse_drafter
from specc.errors import PassError
from specc.passes import run, step_passes
from specc.passes.pipeline import DRAFT, VERIFY, WHOLE
from specc.program import Program
from specc.tree import DraftTree

PROMPT = tuple((5 * i * i + 2 * i) % 125 + 3 for i in range(25))
CHAIN, TREE = DraftTree.chain(3), DraftTree.from_widths((3, 2))


def part_of(tree: DraftTree, rule: str, part: str) -> Program:
    program = empty_program(part or "whole")
    run(program, step_passes(tree=tree, rule=rule, drafter=parse_drafter("model"), part=part))
    return program


def names(program: Program, kind: str) -> set[str]:
    return {str(node.target) for node in program.graph.find_nodes(op=kind)}


@pytest.mark.parametrize(("tree", "rule"), [(CHAIN, "greedy"), (TREE, "greedy"), (CHAIN, "coupled"), (TREE, "coupled")])
def test_the_halves_are_the_whole(tree: DraftTree, rule: str) -> None:
    draft, verify = part_of(tree, rule, DRAFT), part_of(tree, rule, VERIFY)
    drafting, verifying = eager_step(draft), eager_step(verify)

    def both(state: dict[str, Tensor]) -> dict[str, Tensor]:
        given = drafting(state)
        assert set(given) == {"drafted", "offerable", "drafter_length"}
        assert given["drafted"].shape == given["offerable"].shape == (1, len(tree))
        return {"drafter_length": given["drafter_length"], **verifying({**state, **given})}

    count, sizes = 40, {"depth": tree.depth, "nodes": len(tree)}
    tokens, accepted = generated(both, PROMPT, count, **sizes)
    assert (tokens, accepted) == generated(eager_step(part_of(tree, rule, WHOLE)), PROMPT, count, **sizes)
    assert accepted > 3


def test_each_half_reads_one_model_and_writes_its_caches_alone() -> None:
    draft, verify = part_of(CHAIN, "coupled", DRAFT), part_of(CHAIN, "coupled", VERIFY)
    shared = {"history", "target_length", "bucket", "active", "draft_limit", "seed", "sample", "temperature"}
    assert shared - {"draft_limit"} <= names(draft, "placeholder") & names(verify, "placeholder")
    for program, own, other in ((draft, "drafter", "target"), (verify, "target", "drafter")):
        found = names(program, "placeholder") | names(program, "get_attr")
        assert any(name.startswith(f"{own}_k_") for name in found)
        assert not [name for name in found if name.startswith((f"{other}_k_", f"{other}_v_"))]
        assert not [name for name in found if name.startswith(other) and "proj" in name]  # equal ones have one name
    assert "drafter_length" not in names(verify, "placeholder")
    assert {"drafted", "offerable"} <= names(verify, "placeholder")


def test_the_root_is_the_steps_own() -> None:
    """The drafter's copy of the text may be anything: only what it drafts is taken."""
    verify = part_of(CHAIN, "greedy", VERIFY)
    tokens = next(n for n in verify.graph.nodes if n.meta.get("specc_pass") == "TakeDraft" and "cat" in str(n.target))
    assert str(tokens.args[0][0].target) == "aten.gather.default"  # of the history


def test_a_law_is_not_handed_on() -> None:
    program = empty_program("draft")
    with pytest.raises(PassError, match="draft: this rule needs the drafter's law, which is not handed on"):
        run(program, step_passes(tree=CHAIN, rule="rejection", drafter=parse_drafter("model"), part=DRAFT))


def test_a_narrow_tree_reads_the_widest_input() -> None:
    program = empty_program("step")
    program.sizes = type(program.sizes)(1, 120, 16, nodes=9)
    run(program, step_passes(tree=CHAIN, rule="greedy", drafter=parse_drafter("model"), part=VERIFY))
    drafted = next(n for n in program.graph.find_nodes(op="placeholder") if n.target == "drafted")
    assert tuple(drafted.meta["val"].shape) == (1, 9) and drafted.meta["val"].dtype == torch.int64
