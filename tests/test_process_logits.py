"""ProcessLogits: bias, penalties, least length and grammar along every path, against transformers' processors."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand
from helpers.check import assert_shapes
from helpers.decoding import PLAIN, Session, built, decode, pair, prompt
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.passes.accept.penalties import Counts, Paths, Penalties, penalize
from specc.passes.count_tokens import CountTokens
from specc.passes.process_logits import ProcessLogits
from specc.passes.read_root import ReadRoot
from specc.passes.tree_mask import TreeMask
from specc.program import Level, Model, Program
from specc.tree import DraftTree

VOCAB = 12
CHAIN, TREE = DraftTree.chain(3), DraftTree.from_paths([(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 1, 0)])
ODD = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (2, 0), (2, 1), (2, 1, 0)])
STRONG = {"repetition_penalty": 1.6, "presence_penalty": 0.9, "frequency_penalty": 0.7}


def before(tree: DraftTree, batch: int = 1) -> Program:
    """A step whose logits and tokens are inputs."""
    program = hand(Level.CAPTURED, batch=batch, slots=40)
    program.models["target"] = Model("target", program.graph, {}, VOCAB, 64)
    ReadRoot().run(program)
    TreeMask(tree=tree).run(program)
    CountTokens().run(program)
    program.give(logits=program.input("given_logits", (batch, len(tree), VOCAB), torch.float32))
    program.give(tokens=program.input("drafted", (batch, len(tree)), torch.int64))
    return program


def paths(tree: DraftTree, tokens: list[int]) -> list[list[int]]:
    """Drafted tokens from the root's child to each node."""
    on_path = [[n for n in range(1, len(tree)) if tree.ancestors[node][n]] for node in range(len(tree))]
    return [[tokens[n] for n in sorted(nodes, key=lambda n: tree.depths[n])] for nodes in on_path]


numbers = st.sampled_from([0.0, 0.5, 2.0, -1.0])


@settings(max_examples=60, deadline=None)
@given(
    tree=st.sampled_from([PLAIN, CHAIN, TREE, ODD]),
    seed=st.integers(0, 10**6),
    repetition=st.sampled_from([1.0, 1.3, 0.7]),
    presence=numbers,
    frequency=numbers,
    least=st.integers(0, 9),
)
def test_every_node_is_penalized_along_its_own_path(
    tree: DraftTree, seed: int, repetition: float, presence: float, frequency: float, least: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(0, VOCAB, (int(torch.randint(1, 12, (), generator=generator)),), generator=generator).tolist()
    given_tokens = int(torch.randint(1, len(text) + 1, (), generator=generator))
    tokens = [text[-1], *torch.randint(0, VOCAB, (len(tree) - 1,), generator=generator).tolist()]
    logits = torch.randn(len(tree), VOCAB, generator=generator) * 3
    bias = torch.randn(VOCAB, generator=generator)
    bias[int(torch.randint(0, VOCAB, (), generator=generator))] = float("-inf")
    eos, start, tail = [3, 5], given_tokens, paths(tree, tokens)
    in_text, generated = (torch.tensor([[float(t.count(v)) for v in range(VOCAB)]]) for t in (text, text[start:]))
    on_path = torch.tensor(
        [[[float(n > 0 and tree.ancestors[m][n]) for n in range(len(tree))] for m in range(len(tree))]]
    )
    ends = torch.tensor([[v in eos for v in range(VOCAB)]])
    got = penalize(
        logits[None],
        torch.tensor([len(text) - 1]),
        Counts(in_text, generated, ends),
        Paths(torch.tensor([tokens]), on_path, torch.tensor([tree.depths])),
        Penalties(
            bias=bias[None],
            repetition=torch.tensor([repetition]),
            presence=torch.tensor([presence]),
            frequency=torch.tensor([frequency]),
            min_length=torch.tensor([start + least]),
        ),
    )
    for node in range(len(tree)):
        expected = oracle.penalized(
            logits[node], text + tail[node], start, bias=bias, repetition_penalty=repetition,
            presence_penalty=presence, frequency_penalty=frequency, min_new_tokens=least, eos=eos,
        )  # fmt: skip
        torch.testing.assert_close(got[0, node], expected, rtol=1e-6, atol=1e-6)


def test_neutral_parameters_leave_every_bit() -> None:
    program = before(TREE, batch=2)
    pass_ = ProcessLogits(tree=TREE, rule="greedy")
    assert pass_.run(program) == 1
    assert pass_.run(program) == 0
    assert_shapes(program.graph)
    assert not {"in_text", "generated", "ends"} & set(program.values), "kept alive for nothing"
    run = built(program)
    logits = torch.randn(2, len(TREE), VOCAB, generator=torch.Generator().manual_seed(1))
    out = run({**run.inputs, "given_logits": logits, "history": torch.zeros(2, 40).long()})
    assert torch.equal(out["processed"], logits) and torch.equal(out["logits"], logits)


def test_greedy_reads_no_parameters_of_sampling() -> None:
    program = before(CHAIN)
    ProcessLogits(tree=CHAIN, rule="greedy").run(program)
    names = {str(node.target) for node in program.graph.find_nodes(op="placeholder")}
    assert not {"temperature", "top_k", "top_p", "min_p"} & names


# --- end to end, in eager mode: the target alone with transformers' processors


def bias(**tokens: float) -> Tensor:
    table = torch.zeros(1, 128)
    for name, value in tokens.items():
        table[0, int(name[1:])] = value
    return table


REQUESTS: dict[str, dict[str, Any]] = {
    "repetition": {"repetition_penalty": 1.5},
    "presence": {"presence_penalty": 2.0},
    "frequency": {"frequency_penalty": 1.5},
    "all": STRONG,
    "bias": {"bias": bias(t20=6.0, t120=float("-inf"), t64=-3.0)},
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=list(REQUESTS))
@pytest.mark.parametrize("tree", [PLAIN, CHAIN, ODD], ids=["plain", "chain", "tree"])
def test_greedy_text(tree: DraftTree, request_: dict[str, Any]) -> None:
    session = Session(tree=tree).start([prompt()], new=24, **request_)
    got = session.run()[0]
    assert got == oracle.processed_text(pair().target, prompt(), 24, **request_)
    assert got != oracle.greedy_text(pair().target, prompt(), 24), "the request changes nothing: it proves little"
    assert tree is PLAIN or session.stats["accepted"] > 2


@pytest.mark.parametrize("tree", [PLAIN, CHAIN, ODD], ids=["plain", "chain", "tree"])
def test_coupled_text(tree: DraftTree) -> None:
    sampling = {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.05}
    session = Session(tree=tree, rule="coupled").start([prompt()], new=20, seeds=[5], **sampling, **STRONG)
    expected = oracle.processed_text(pair().target, prompt(), 20, seed=5, sampling=sampling, **STRONG)
    assert session.run()[0] == expected
    assert expected != oracle.processed_text(pair().target, prompt(), 20, seed=5, sampling=sampling)


@pytest.mark.parametrize("tree", [PLAIN, CHAIN, TREE], ids=["plain", "chain", "tree"])
def test_no_end_before_its_time(tree: DraftTree) -> None:
    """Each id of the plain text ends it once; with a least length the text goes on, past every offset of a block."""
    text = oracle.greedy_text(pair().target, prompt(), 12)
    for least in range(0, 9):
        eos = [text[2], text[5]]
        expected = oracle.processed_text(pair().target, prompt(), 12, eos=eos, min_new_tokens=least)
        got = decode(prompt(), tree=tree, new=12, eos=eos, min_length=len(prompt()) + least)
        assert got == expected
        assert least <= len(got)


def test_lookup_is_penalized_too() -> None:
    text = prompt(6, seed=3) * 3
    got = decode(text, tree=CHAIN, drafter="ngram", new=20, **STRONG)
    assert got == oracle.processed_text(pair().target, text, 20, **STRONG)


def test_rows_have_their_own_parameters() -> None:
    penalty = torch.tensor([1.0, 1.5])
    session = Session(tree=CHAIN, batch=2).start([prompt()], new=16, repetition_penalty=penalty)
    rows = session.run()
    assert rows[0] == oracle.greedy_text(pair().target, prompt(), 16)
    assert rows[1] == oracle.processed_text(pair().target, prompt(), 16, repetition_penalty=1.5)


def test_drafter_and_target_are_penalized_alike() -> None:
    """A drafter equal to the target accepts every level under penalties, or it drafts from other laws."""
    session = Session(pair("equal"), tree=CHAIN).start([prompt()], new=24, **STRONG)
    session.run()
    assert session.stats["steps"] == 24 // 4


# --- forced drafts


@pytest.mark.parametrize("rule", ["greedy", "coupled", "rejection"])
@pytest.mark.parametrize("tree", [CHAIN, TREE], ids=["chain", "tree"])
def test_forced_drafts_change_no_text(rule: str, tree: DraftTree) -> None:
    """Right, wrong, padded (128 and above) and repeated tokens at every node: only the count accepted may change."""
    sampling = {} if rule == "greedy" else {"temperature": 0.8, "top_k": 20}
    if rule == "rejection":
        sampling["temperature"] = 0.0  # one law for every draft
    plain = decode(prompt(), rule="greedy" if rule == "rejection" else rule, new=16, **sampling)
    for seed in range(6):
        generator = torch.Generator().manual_seed(seed)
        forced = torch.randint(-1, 140, (1, len(tree)), generator=generator)
        assert decode(prompt(), tree=tree, rule=rule, new=16, forced=forced, **sampling) == plain


@pytest.mark.parametrize("right", [0, 1, 2, 3])
def test_forced_tokens_are_drafted(right: int) -> None:
    """The target's own tokens forced up to a level, a wrong one behind: so many are accepted."""
    text = oracle.greedy_text(pair().target, prompt(), 8)
    draft = [*text[:right], *[(token + 1) % 128 for token in text[right:3]]]
    session = Session(tree=CHAIN).start([prompt()], new=8, forced=torch.tensor([[-1, *draft]]))
    assert session.step()[0] == text[: right + 1]
    assert session.last[0, -2:].tolist() == [right, 3]


@pytest.mark.parametrize("place", [1, 2, 3])
@pytest.mark.parametrize("drafter", ["model", "ngram"])
def test_padded_id_is_refused_at_every_offset(place: int, drafter: str) -> None:
    text = oracle.greedy_text(pair().target, prompt(), 8)
    draft = [-1, *text[:3]]
    draft[place] = 131
    session = Session(tree=CHAIN, drafter=drafter).start([prompt()], new=8, forced=torch.tensor([draft]))
    assert session.step()[0] == text[:place]
    assert int(session.last[0, -2]) == place - 1


def test_forced_draft_of_lookup_is_offered() -> None:
    text = oracle.greedy_text(pair().target, prompt(), 8)
    session = Session(tree=CHAIN, drafter="ngram").start([prompt()], new=8, forced=torch.tensor([[-1, *text[:3]]]))
    assert session.step()[0] == text[:4]
