"""Tuning: the dynamic programme against all trees there are, what it is fed, and a compile that chooses."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.models import save_tiny, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

import specc
from specc.capture import LoadedModel, capture, load_model
from specc.child_acceptance import Sample, child_acceptance, lookup_tokens, own_texts
from specc.choose_draft import choose_draft
from specc.config import CompileConfig, DraftConfig
from specc.errors import ConfigError
from specc.flags import add_config, build_config
from specc.lower import forms
from specc.lower.forms import NUMBERS, FormTable
from specc.pair import Pair
from specc.product_times import pass_times, products
from specc.program import Model
from specc.progress import Report
from specc.tree import DraftTree
from specc.tune import BestTrees, Candidate, best_of, candidates, expected_tokens

RATES = st.lists(st.floats(0, 0.4), min_size=1, max_size=6)


@cache
def all_trees(nodes: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """The paths of every prefix-closed tree of so many nodes, the root not among them."""
    if nodes == 1:
        return ((),)
    found = []
    for parts in compositions(nodes - 1):
        for subtrees in itertools.product(*(all_trees(part) for part in parts)):
            paths = [(i, *path) for i, subtree in enumerate(subtrees) for path in ((), *subtree)]
            found.append(tuple(sorted(paths)))
    return tuple(found)


def compositions(total: int) -> Iterator[tuple[int, ...]]:
    """Every ordered way to write a number as a sum."""
    if total == 0:
        yield ()
    for first in range(1, total + 1):
        for rest in compositions(total - first):
            yield (first, *rest)


def emits(paths: Sequence[tuple[int, ...]], rates: Sequence[float]) -> float:
    """By simulation of what acceptance means: the walk goes to a child with its rate, or ends; one token a node."""

    def walk(node: tuple[int, ...]) -> float:
        children = [path for path in paths if len(path) == len(node) + 1 and path[: len(node)] == node]
        return 1 + sum((rates[c[-1]] if c[-1] < len(rates) else 0.0) * walk(c) for c in children)

    return walk(())


def test_there_are_as_many_trees_as_there_should_be() -> None:
    assert [len(set(all_trees(n))) for n in range(1, 8)] == [1, 1, 2, 5, 14, 42, 132]  # Catalan numbers


@settings(deadline=None, max_examples=40)
@given(RATES, st.integers(1, 6))
def test_the_programme_finds_the_best_of_all_trees(rates: list[float], depth: int) -> None:
    best = BestTrees(rates, 7, depth)
    for nodes in range(2, 8):
        trees = [t for t in all_trees(nodes) if max(map(len, t)) <= depth and max(p[-1] for p in t) < len(rates)]
        assert ((nodes, depth) in best) == bool(trees)
        if trees:
            top = max(emits(tree, rates) for tree in trees)
            tree = best.tree(nodes, depth)
            assert best.tokens(nodes, depth) == pytest.approx(top, abs=1e-12)
            assert len(tree) == nodes and tree.depth <= depth
            assert expected_tokens(tree, rates) == pytest.approx(emits(tree.paths[1:], rates)) == pytest.approx(top)


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 0.5), min_size=3, max_size=8), st.integers(2, 24))
def test_greedy_expansion_finds_it_too_where_earlier_children_are_better(rates: list[float], nodes: int) -> None:
    """Sorted rates: the likeliest paths are prefix-closed by themselves, so one may take them one by one."""
    rates.sort(reverse=True)
    open_nodes, total = {(i,): rate for i, rate in enumerate(rates)}, 1.0
    for _ in range(nodes - 1):
        path = max(open_nodes, key=open_nodes.__getitem__)
        share = open_nodes.pop(path)
        total += share
        open_nodes |= {(*path, i): share * rate for i, rate in enumerate(rates)}
    assert BestTrees(rates, nodes, nodes - 1).tokens(nodes, nodes - 1) == pytest.approx(total)


class TestCandidates:
    """What is compared, and which is taken."""

    def test_a_good_drafter_that_costs_nothing_is_a_long_chain(self) -> None:
        best = best_of(candidates([0.95, 0.02], 0.01, lambda rows: 1.0))
        assert best.tree.is_chain and best.tree.depth == 15
        assert best.speedup == pytest.approx(best.tokens / 1.15)

    def test_a_dear_drafter_makes_a_flat_tree(self) -> None:
        best = best_of(candidates([0.4, 0.25, 0.15], 0.9, lambda rows: 1 + 0.001 * rows))
        assert best.tree == DraftTree.from_widths([3])

    def test_rows_that_cost_make_it_small(self) -> None:
        best = best_of(candidates([0.3, 0.2, 0.1], 0.02, lambda rows: 1 + 0.2 * (rows - 1)))
        assert len(best.tree) == 2

    def test_steps_in_the_price_are_used_up(self) -> None:
        """Rows cost in blocks of 4: the tree fills a block."""
        best = best_of(candidates([0.5, 0.2, 0.1, 0.05], 0.05, lambda rows: 1 + 0.5 * ((rows - 1) // 4)))
        assert len(best.tree) % 4 == 0

    def test_every_chain_is_compared_and_wins_a_tie(self) -> None:
        found = candidates([0.6], 0.1, lambda rows: 1.0)
        assert [c.tree for c in found] == [DraftTree.chain(k) for k in range(1, 16)]
        equal = [Candidate(DraftTree.chain(1), 1.5, 1.0), Candidate(DraftTree.from_widths([2]), 1.5, 1.0)]
        assert best_of(equal).tree.is_chain
        for candidate in found:
            assert candidate.tokens == pytest.approx(sum(0.6**i for i in range(candidate.tree.depth + 1)))
            assert candidate.cost == pytest.approx(1 + 0.1 * candidate.tree.depth)


@pytest.fixture(scope="module")
def pair(tiny_folders: tuple[Path, Path]) -> tuple[LoadedModel, LoadedModel]:
    target, drafter = (load_model(str(f), role="target", dtype="float32") for f in tiny_folders)
    return target, drafter


class TestSamples:
    """What a drafter is measured on."""

    def test_texts_are_the_targets_own_and_end_where_they_end(self, pair: tuple[LoadedModel, LoadedModel]) -> None:
        target, ticks = pair[0], []
        prompts = [[1, 40, 50], [7], [33, 34, 35, 36, 37, 38]]
        samples = own_texts(target, prompts, 12, lambda: ticks.append(1))
        assert [s.prompt for s in samples] == prompts and len(ticks) == 3
        for prompt, text in samples:
            known = torch.tensor([prompt + text])
            best = target.model(known).logits[0, len(prompt) - 1 : -1].argmax(-1)
            assert text == best.tolist() and len(text) == 12
        ends = dataclasses.replace(target, eos_token_ids=(samples[0].text[4],))
        cut = own_texts(ends, prompts[:1], 12, lambda: None)[0].text
        assert cut == samples[0].text[: samples[0].text.index(samples[0].text[4]) + 1]

    def test_ranks(self, pair: tuple[LoadedModel, LoadedModel]) -> None:
        """Against the drafter asked token by token, its choices in order."""
        target, drafter = pair
        samples = own_texts(target, [[1, 40, 50], [7, 9]], 20, lambda: None)
        counts = [0] * 5
        for prompt, text in samples:
            for i, token in enumerate(text):
                logits = drafter.model(torch.tensor([prompt + text[:i]])).logits[0, -1]
                rank = logits.argsort(descending=True, stable=True).tolist().index(token)
                if rank < 5:
                    counts[rank] += 1
        assert child_acceptance(Pair(target, drafter).draft_logits, samples, 5) == [count / 40 for count in counts]
        assert 0 < counts[0] < 40 and sum(counts[1:]) > 0
        assert child_acceptance(Pair(target, target).draft_logits, samples, 3) == [1.0, 0.0, 0.0]

    def test_rows_above_the_vocabulary_are_no_choices(self, pair: tuple[LoadedModel, LoadedModel]) -> None:
        def padded(input_ids: torch.Tensor, use_cache: bool) -> Any:
            logits = torch.zeros(1, input_ids.shape[1], 12)
            logits[..., 10:] = 9.0
            return type("Out", (), {"logits": logits})

        target, drafter = (dataclasses.replace(one, vocab_size=10) for one in pair)
        drafter = dataclasses.replace(drafter, model=padded)
        samples = [Sample([1], [0, 1, 2, 0])]  # equal logits: ids in order
        assert child_acceptance(Pair(target, drafter).draft_logits, samples, 3) == [0.5, 0.25, 0.25]

    def test_lookup_steps_through_the_text(self) -> None:
        repeats = [Sample([1, 2, 3, 4], [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 4])]
        assert lookup_tokens(repeats, 3) == 12 / 4  # nothing is known of the first 4; then 4 at a time
        assert lookup_tokens(repeats, 1) == pytest.approx(12 / 7)
        assert lookup_tokens([Sample([5], [9, 8, 7, 6])], 3) == 1.0
        assert lookup_tokens([], 3) == 0.0


class TestTimes:
    """What a pass costs."""

    def test_products_of_a_captured_model(self, tiny_folders: tuple[Path, Path]) -> None:
        model = capture(tiny_model(num_hidden_layers=1), name="target")
        assert products(model) == {(32, 32): 2, (16, 32): 2, (64, 32): 2, (32, 64): 1, (128, 32): 1}

    def test_transposed_weights_count_as_well(self) -> None:
        graph = torch.fx.Graph()
        x, weight, bias = graph.placeholder("x"), graph.get_attr("w"), graph.get_attr("b")
        weight.meta["val"] = torch.zeros(6, 9)
        graph.call_function(torch.ops.aten.addmm.default, (bias, x, weight))
        graph.call_function(torch.ops.aten.mm.default, (x, weight))
        graph.call_function(torch.ops.aten.mm.default, (x, x))
        assert products(Model("target", graph, {}, 9, 9)) == {(9, 6): 2}

    def test_between_the_rows_that_were_timed(self) -> None:
        times = pass_times({(10, 20): 3, (5, 5): 1}, lambda out, size, rows: out * size * float(rows))
        assert [times(rows) for rows in (1, 7, 10, 16)] == [625, 7 * 625, 10 * 625, 16 * 625]
        noisy = pass_times({(1, 1): 1}, lambda out, size, rows: 5.0 if rows == 2 else 3.0)
        assert [noisy(rows) for rows in (1, 2, 3, 16)] == [3, 5, 5, 5]

    def test_a_form_is_timed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        table = FormTable(None, "this machine")
        for dtype, form in ((torch.float32, None), (torch.float32, "linear"), (torch.bfloat16, None)):
            assert 0 < table.seconds(128, 64, 4, dtype, form) < 1
        assert 0 < table.seconds(128, 64, 4, torch.float32, numbers=128 * 64) < 1  # one weight, over and over
        seen: list[int] = []
        monkeypatch.setattr(forms, "_product", lambda form: lambda x, weight: seen.append(weight.numel()))
        monkeypatch.setattr(forms, "perf_counter", lambda: 2.0 * len(seen))  # two seconds a call
        assert table.seconds(2**22, 64, 1, torch.float32, "linear") == pytest.approx(2 * 2**22 * 64 / NUMBERS)
        assert set(seen) == {NUMBERS}  # of so large a weight a part is timed, and counted for the whole


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tune": True, "tree": "2,1"}, "--tune chooses what --tree 2,1 fixes"),
        ({"tune": True, "draft_length": 2}, "--tune chooses what --draft-length 2 fixes"),
        ({"fixed": True, "prompts": "p.txt"}, "--prompts p.txt would not be read"),
        ({"tune": "yes"}, "--tune must be True or False"),
        ({"fixed": 1}, "--fixed must be True or False"),
        ({"prompts": 5}, "--prompts must be the path"),
    ],
)
def test_options_that_contradict(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        DraftConfig(**options)
    if options.get("tune") is True:
        del options["tune"]
        DraftConfig(**options)


def test_flags() -> None:
    parser = argparse.ArgumentParser()
    add_config(parser, CompileConfig)
    given = parser.parse_args(["t", "d", "-o", "E", "--tune", "--prompts", "p.txt", "--ladder", "1,7"])
    config = build_config(CompileConfig, given)
    assert (config.draft.tune, config.draft.prompts, config.draft.fixed) == (True, "p.txt", False)


def test_prompts_that_cannot_be_read_are_refused_before_any_work(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n\n")
    target = save_tiny(tmp_path / "t", num_hidden_layers=1)
    for name, words in (("nowhere", "cannot be read"), ("empty", "holds no prompt")):
        with pytest.raises(ConfigError, match=words):
            specc.compile(target, "ngram", tmp_path / "e", prompts=str(tmp_path / name), tune=True, backend="eager")


class TestChoice:
    """`choose_draft`: all of it but the compile."""

    def choose(
        self, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, cost: float, *names: str, **draft: Any
    ) -> tuple[DraftConfig, dict[str, Any], str]:
        """With products that cost `cost` more a row."""
        roles = names or ("target", "drafter")
        loaded = {r: load_model(str(f), role=r, dtype="float32") for r, f in zip(roles, folders, strict=False)}
        drafter = "d" if "drafter" in loaded else "ngram"
        config = CompileConfig(
            target="t", drafter=drafter, output="o", backend="eager", draft=DraftConfig(tune=True, **draft)
        )
        timed = lambda table, out, size, rows, dtype, form, numbers: (1 + cost * (rows - 1)) * 1e-3  # noqa: E731
        monkeypatch.setattr(FormTable, "seconds", timed)
        graph = torch.fx.Graph()
        weight = graph.get_attr("w")
        weight.meta["val"] = torch.zeros(8, 8)
        graph.call_function(torch.ops.aten.linear.default, (graph.placeholder("x"), weight))
        models = {role: Model(role, graph, {}, 128, 512) for role in loaded}
        report = Report()
        with report.console.capture() as shown:
            both = Pair(loaded["target"], loaded.get("drafter"))
            chosen, record = choose_draft(config, both, models, ["the end of", "in there"], 100, report)
        return chosen, record, shown.get()

    def test_a_model(self, tiny_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        same = (tiny_folders[0], tiny_folders[0])
        chosen, record, shown = self.choose(same, monkeypatch, 0.0, ladder="1,2")
        assert chosen.draft_length == 1  # always right, but a level costs as much as a pass of the target: 2 for 2
        assert chosen == DraftConfig(draft_length=1, ladder="1,2")
        assert record["child_acceptance"] == [1.0] + [0.0] * 7 and record["draft_cost"] == 1.0
        assert record["predicted_speedup"] == pytest.approx(1.0) and "no draft is predicted to pay" in shown
        assert "chain of 1" in shown and "chosen" in shown
        assert record["prompts"] == 2 and record["tokens"] > 10
        json.dumps(record)

    def test_lookup(self, tiny_folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
        chosen, record, shown = self.choose(tiny_folders, monkeypatch, 0.0, "target")
        assert chosen.shape().is_chain and record["child_acceptance"] == []
        assert record["predicted_speedup"] == pytest.approx(record["tokens_per_step"]) and record["draft_cost"] == 0
        dear, record, shown = self.choose(tiny_folders, monkeypatch, 3.0, "target", prompts="p", fixed=True)
        assert dear.draft_length == 1 and "no draft is predicted to pay" in shown
        assert dear.fixed and dear.prompts is None and record["predicted_speedup"] < 1
