"""AcceptDraft: path, count, block and levels offered, by every rule."""

from __future__ import annotations

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand
from helpers.check import assert_shapes
from helpers.decoding import Built, built
from torch import Tensor

from specc.passes.accept_draft import AcceptDraft
from specc.passes.read_root import ReadRoot
from specc.passes.tree_mask import TreeMask
from specc.program import Level, Program
from specc.tree import DraftTree

ROWS, VOCAB, LENGTH = 24, 5, 3
CHAIN, TREE = DraftTree.chain(3), DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0)])
OUTPUTS = {"path", "accepted", "block", "offered"}


def before(tree: DraftTree, *, noise: bool = False, q: bool = False, drafted: bool = True) -> Program:
    """A step whose processed logits, tokens and q are inputs."""
    program = hand(Level.CAPTURED, batch=ROWS)
    ReadRoot().run(program)
    TreeMask(tree=tree).run(program)
    nodes, levels = len(tree), tree.depth
    program.give(processed=program.input("processed", (ROWS, nodes, VOCAB), torch.float32))
    if drafted:
        program.give(tokens=program.input("drafted", (ROWS, nodes), torch.int64))
        program.give(valid=program.input("valid", (ROWS, nodes), torch.bool))
    if noise:
        program.give(gumbel=program.input("gumbel", (ROWS, levels + 1, VOCAB), torch.float32))
    if q:
        program.give(q=program.input("q", (ROWS, levels, VOCAB), torch.float32))
    return program


def accepting(rule: str, tree: DraftTree, **parts: bool) -> Built:
    program = before(tree, **parts)
    pass_ = AcceptDraft(rule=rule, tree=tree)
    assert pass_.run(program) == 1
    assert pass_.run(program) == 0
    assert_shapes(program.graph)
    assert set(program.values) >= OUTPUTS
    assert not set(program.values) & {"q", "gumbel", "ancestors"}, "kept alive for nothing"
    return built(program)


def state(tree: DraftTree, seed: int = 0, limit: int = 16) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    nodes = len(tree)
    logits = torch.randn(ROWS, nodes, VOCAB, generator=generator)
    raw = torch.rand(ROWS, max(1, tree.depth), VOCAB, generator=generator) + 0.05
    return {
        "history": torch.zeros(ROWS, 8).long(),
        "target_length": torch.full((ROWS,), LENGTH),
        "processed": torch.stack([oracle.processed(row, 0.7, 4, 0.95) for row in logits]),
        "drafted": torch.randint(0, VOCAB, (ROWS, nodes), generator=generator),
        "valid": (torch.tensor([tree.depths]) <= limit).expand(ROWS, -1),
        "gumbel": torch.randn(ROWS, tree.depth + 1, VOCAB, generator=generator),
        "q": raw / raw.sum(-1, keepdim=True),
        "temperature": torch.full((ROWS,), 0.7),
        "seed": torch.arange(ROWS) + 100,
        "sample": torch.zeros(ROWS).long(),
    }


def assert_walked(out: dict[str, Tensor], given: dict[str, Tensor], choices: Tensor, tree: DraftTree) -> None:
    for row in range(ROWS):
        tokens, valid = given["drafted"][row].tolist(), given["valid"][row].tolist()
        path, emitted = oracle.walk(choices[row].tolist(), tokens, tree.parents, valid)
        assert int(out["accepted"][row]) == len(path) - 1
        assert out["path"][row, : len(path)].tolist() == path
        assert out["block"][row, : len(emitted)].tolist() == emitted
    assert len(set(out["accepted"].tolist())) > 1, "one and the same count proves little"


@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=["chain", "tree"])
@pytest.mark.parametrize("limit", [16, 1])
def test_greedy(tree: DraftTree, limit: int) -> None:
    given = state(tree, limit=limit)
    out = accepting("greedy", tree)(given)
    assert_walked(out, given, given["processed"].argmax(-1), tree)
    assert out["offered"].tolist() == [min(limit, tree.depth)] * ROWS
    assert int(out["accepted"].max()) <= limit


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=["chain", "tree"])
def test_the_target_chooses_by_noise(rule: str, tree: DraftTree) -> None:
    """Coupled, and rejection without q (trees, lookup): the target's sample is compared with the drafts."""
    given = state(tree)
    out = accepting(rule, tree, noise=True)(given)
    choices = torch.zeros(ROWS, len(tree), dtype=torch.long)
    for row in range(ROWS):
        choices[row] = (given["processed"][row] + given["gumbel"][row, torch.tensor(tree.depths)]).argmax(-1)
    assert_walked(out, given, choices, tree)


@pytest.mark.parametrize("limit", [16, 2, 0])
def test_rejection_on_a_chain(limit: int) -> None:
    """Coins and residual noise of the absolute positions, as the loop draws them."""
    given = state(CHAIN, limit=limit)
    out = accepting("rejection", CHAIN, noise=True, q=True)(given)
    offered = min(limit, 3)
    for row in range(ROWS):
        seed = int(given["seed"][row])
        p = given["processed"][row].softmax(-1)
        coins = [oracle.uniforms(seed, 0, LENGTH + 1 + level, oracle.COIN, 1)[0] for level in range(3)]
        drafts = given["drafted"][row, 1:].tolist()
        accepted, law = oracle.reject(p, given["q"][row], drafts, offered, coins)
        noise = oracle.gumbels(seed, LENGTH + 1 + accepted, VOCAB, oracle.RESIDUAL)
        assert int(out["accepted"][row]) == accepted
        assert out["block"][row, : accepted + 1].tolist() == [*drafts[:accepted], int((law.log() + noise).argmax())]
        assert out["path"][row, : accepted + 1].tolist() == list(range(accepted + 1))
    assert out["offered"].tolist() == [offered] * ROWS


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
def test_plain_step(rule: str) -> None:
    """Nothing was drafted: the block is the target's own choice."""
    tree = DraftTree.chain(0)
    given = state(tree)
    out = accepting(rule, tree, noise=rule != "greedy", drafted=False)(given)
    logits = given["processed"][:, 0]
    if rule != "greedy":
        logits = logits + given["gumbel"][:, 0]
    assert out["block"].tolist() == logits.argmax(-1, keepdim=True).tolist()
    assert out["accepted"].tolist() == out["offered"].tolist() == [0] * ROWS


@pytest.mark.parametrize("rule", ["coupled", "rejection"])
@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=["chain", "tree"])
def test_rows_of_temperature_zero_are_greedy(rule: str, tree: DraftTree) -> None:
    """Whatever the noise and the coins: greedy rows ride along in a sampled program, neighbours keep their own text."""
    given, q = state(tree), rule == "rejection" and tree.is_chain
    if q:  # as the drafter draws at temperature 0
        given["q"] = torch.nn.functional.one_hot(given["drafted"][:, 1:], VOCAB).float()
    run = accepting(rule, tree, noise=True, q=q)
    sampled = run(given)
    greedy = torch.arange(ROWS) % 2 == 0
    mixed = run({**given, "temperature": torch.where(greedy, 0.0, 0.7)})
    choices = given["processed"].argmax(-1)
    for row in range(ROWS):
        if not greedy[row]:
            assert all(torch.equal(mixed[name][row], sampled[name][row]) for name in ("path", "accepted", "block"))
            continue
        tokens, valid = given["drafted"][row].tolist(), given["valid"][row].tolist()
        path, emitted = oracle.walk(choices[row].tolist(), tokens, tree.parents, valid)
        assert int(mixed["accepted"][row]) == len(path) - 1
        assert mixed["block"][row, : len(emitted)].tolist() == emitted
    assert not torch.equal(mixed["block"], sampled["block"]), "the noise changes nothing here: the test proves little"


def test_greedy_reads_no_parameters_of_sampling() -> None:
    inputs = accepting("greedy", CHAIN).inputs
    assert not {"temperature", "top_k", "top_p", "seed", "sample"} & set(inputs)
