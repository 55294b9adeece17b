"""Dynamic trees: what every step grows, against the plain algorithm over the whole text, and what it cannot change."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.decoding import Built, Pair, Session, fresh, lowered, pair, prompt
from helpers.features import Path_, best_children, drafter_of, feature_pair
from helpers.plain_tree import grow
from torch import Tensor

from specc.passes.accept.processors import process_best
from specc.passes.count_tokens import CountTokens
from specc.passes.draw_noise import DrawNoise
from specc.passes.grow_tree import GrowTree
from specc.passes.read_root import ReadRoot
from specc.tree import DynamicTree

DRAFTED = {
    "pruned": ("eagle3-pruned", DynamicTree.of(8, 3, 3), "greedy"),
    "coupled": ("eagle3-pruned", DynamicTree.of(8, 3, 3), "coupled"),
    "eagle": ("eagle", DynamicTree.of(13, 4, 2), "greedy"),
    "model": ("model", DynamicTree.of(8, 3, 3), "greedy"),
    "rejection": ("eagle", DynamicTree.of(5, 1, 4), "rejection"),
}
TEXTS = [prompt(5), prompt(31, seed=2)]
SAMPLING = {"temperature": 0.8, "top_k": 20, "top_p": 0.9}
PENALTIES = {"repetition_penalty": 1.3, "presence_penalty": 0.6, "frequency_penalty": 0.8}
GRAMMAR = 9  # entries of the automaton below


def automaton(rows: int) -> dict[str, Tensor]:
    """A token's class is its id modulo 3, and no two of one class may follow each other; the start is after class 0."""
    table = torch.tensor([[c if c != s else -1 for c in range(3)] for s in range(3)]).flatten()
    return {
        "grammar_next": table.int().expand(rows, -1).contiguous(),
        "grammar_class": (torch.arange(128) % 3).int().expand(rows, -1).contiguous(),
        "grammar_classes": torch.full((rows,), 3),
    }


def models(kind: str) -> Pair:
    return pair("near") if kind == "model" else feature_pair(kind)


@functools.cache
def growing(kind: str, tree: DynamicTree, rule: str) -> Built:
    """The part of a step that drafts."""
    program = fresh(models(kind), batch=2, own_store=True)
    passes = [ReadRoot(), CountTokens(), GrowTree(tree=tree, rule=rule, grammar=GRAMMAR)]
    if rule != "greedy":
        passes.insert(2, DrawNoise(depth=tree.depth))
    for pass_ in passes:
        pass_.run(program)
    return lowered(program)


def begun(name: str, **more: Any) -> Session:
    """Two texts of their own lengths, drafted for as `DRAFTED[name]` says."""
    kind, tree, rule = DRAFTED[name]
    session = Session(models(kind), tree=tree, rule=rule, batch=2, grammar=GRAMMAR)
    return session.start(more.pop("prompts", TEXTS), seeds=[5, 6], **SAMPLING, **more)


def grown(name: str, session: Session, **more: Tensor) -> dict[str, Tensor]:
    """What the next step will draft; the state stays as it is."""
    run = growing(*DRAFTED[name])
    session.catch_up()
    state = {k: v.clone() for k, v in session.state.items()}
    return run({**run.inputs, **state, **more}, bucket=torch.zeros(90, dtype=torch.uint8))


class Law(dict[Path_, list[tuple[float, int]]]):
    """Best children of every path behind a text, as the rule scores them."""

    def __init__(self, session: Session, row: int, *, seed: int = 0, grammar: bool = False, **penalties: Any) -> None:
        super().__init__()
        self.text, self.prompt = session.texts[row], session.prompts[row]
        self.behind = drafter_of(session.models, self.text)
        self.tree, self.rule, self.seed = session.tree, session.rule, seed
        self.grammar, self.penalties = grammar, penalties

    def __missing__(self, path: Path_) -> list[tuple[float, int]]:
        assert isinstance(self.tree, DynamicTree)
        scores = self.behind(path)
        if self.penalties:
            scores = oracle.penalized(scores, [*self.text, *path], self.prompt, **self.penalties)
        if self.grammar:
            last = path[-1] if path else self.text[-1] if len(self.text) > self.prompt else 0
            scores = torch.where(torch.arange(128) % 3 == last % 3, float("-inf"), scores)
        if self.rule == "coupled":
            given = [torch.tensor([SAMPLING[n]]) for n in ("temperature", "top_k", "top_p")]
            best, ids = process_best(scores[None, None], *given, torch.zeros(1))
            noise = oracle.gumbels(self.seed, len(self.text) + len(path), 128)
            scores = torch.full((128,), float("-inf")).scatter(0, ids[0, 0], best[0, 0] + noise[ids[0, 0]])
        self[path] = best_children(scores.log_softmax(-1), self.tree.top_k)
        return self[path]


def paths_of(got: dict[str, Tensor], row: int) -> list[Path_]:
    """Tokens on the path to every node; fails where a parent stands behind its child."""
    paths: list[Path_] = [()]
    for token, parent in zip(got["tokens"][row, 1:].tolist(), got["parents"][row, 1:].tolist(), strict=True):
        paths.append((*paths[parent], token))
    return paths


def check(session: Session, got: dict[str, Tensor], **law: Any) -> None:
    """Both rows against the plain algorithm; `law` as `Law` takes it."""
    tree = session.tree
    assert isinstance(tree, DynamicTree)
    for row in range(2):
        paths = paths_of(got, row)
        wanted = grow(Law(session, row, seed=5 + row, **law), len(tree), tree.depth, tree.top_k)
        reachable = [path for path, score in wanted if score > float("-inf")]
        offered = got["valid"][row].tolist()
        assert [path for path, valid in zip(paths[1:], offered[1:], strict=True) if valid] == reachable
        assert int(got["tokens"][row, 0]) == session.texts[row][-1] and offered[0]
        assert got["depths"][row].tolist() == [len(path) for path in paths]
        assert got["ancestors"][row].tolist() == [[path[: len(other)] == other for other in paths] for path in paths]


@pytest.mark.parametrize("name", ["pruned", "eagle", "model", "coupled"])
def test_every_step_grows_the_plain_tree(name: str) -> None:
    session = begun(name, new=30)
    for plain in (False, True, False, True, True, True, True, True, False, False):
        check(session, grown(name, session))
        session.step(plain)


def test_the_tree_behind_random_texts() -> None:
    for seed in range(20):
        prompts = [prompt(3 + 5 * seed % 40, seed), prompt(4 + 7 * seed % 50, 99 + seed)]
        session = begun("pruned", prompts=prompts)
        check(session, grown("pruned", session))


def test_penalties_count_what_is_drafted_on_the_path() -> None:
    session = begun("pruned", **PENALTIES)
    for _ in range(3):
        check(session, grown("pruned", session), **PENALTIES)
        session.step()


@pytest.mark.parametrize("name", ["pruned", "coupled"])
def test_a_grammar_is_followed_along_every_path(name: str) -> None:
    session = begun(name, **automaton(2))
    for _ in range(4):
        check(session, grown(name, session), grammar=True)
        session.step()
    for text in session.new():
        assert len(text) > 3 and all(a % 3 != b % 3 for a, b in zip([0, *text], text, strict=False))


@pytest.mark.parametrize("name", ["pruned", "coupled"])
def test_where_nothing_can_be_drafted_nothing_is_offered(name: str) -> None:
    """The automaton allows one id alone, which the drafter's head does not have."""
    drafter = models("eagle3-pruned").features
    assert drafter is not None and drafter.column_of is not None
    only = int((drafter.column_of < 0).nonzero()[5])
    table = torch.tensor([[-1, 0, -1, -1, -1, -1, -1, -1, -1]] * 2).int()
    classes = (torch.arange(128) == only).int().expand(2, -1).contiguous()
    session = begun(name, new=5, grammar_next=table, grammar_class=classes, grammar_classes=torch.tensor([2, 2]))
    got = grown(name, session)
    assert got["valid"].tolist() == [[True] + [False] * 7] * 2
    for row in range(2):
        paths_of(got, row)
    assert session.run() == [[only] * 5] * 2 and session.stats["offered"] == 0


def test_what_is_told_stands_as_in_the_outline() -> None:
    tree, session = DRAFTED["pruned"][1], begun("pruned", new=20)
    right = oracle.greedy_text(session.models.target, TEXTS[0], 4)
    tokens = [right[len(path) - 1] if set(path) == {0} else 9 for path in tree.paths[1:]]
    forced = torch.tensor([[-1, *tokens], [-1] * 8])
    got = grown("pruned", session, forced=forced)
    assert got["tokens"][0, 1:].tolist() == tokens and bool(got["valid"][0].all())
    assert got["parents"][0].tolist() == list(tree.parents) and got["depths"][0].tolist() == list(tree.depths)
    assert torch.equal(got["tokens"][1], grown("pruned", session)["tokens"][1])  # the other row is told nothing
    too_high = torch.where(forced == tokens[0], 200, forced)
    valid = grown("pruned", session, forced=too_high)["valid"][0].tolist()
    assert valid == [not any(too_high[0, k] == 200 for k in range(8) if tree.ancestors[node][k]) for node in range(8)]
    session.state["forced"] = forced
    assert session.step()[0] == right


def test_draft_limit() -> None:
    got = grown("pruned", begun("pruned", draft_limit=2))
    assert torch.equal(got["valid"], got["depths"] <= 2)


@pytest.mark.parametrize("name", DRAFTED)
def test_the_text_is_the_plain_one(name: str) -> None:
    """Under rejection too: dynamic trees are one-hot drafts, drawn by the noise of the position."""
    session, target = begun(name, new=24), models(DRAFTED[name][0]).target
    if DRAFTED[name][2] == "greedy":
        wanted = [oracle.greedy_text(target, text, 24) for text in TEXTS]
    else:
        wanted = [
            oracle.sampled_text(target, text, 24, seed, **SAMPLING) for text, seed in zip(TEXTS, (5, 6), strict=True)
        ]
    assert session.run() == wanted
    assert session.stats["offered"] > 20 and len(set(wanted[0])) > 4
