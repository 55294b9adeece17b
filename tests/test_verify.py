"""`specc verify`: right engines pass; engines with planted faults fail, each in the check that is there to see it.

The faults are planted in what the passes write into the graphs, and the engines are compiled with them. Captures are
made once: two models of one layer, a target and a drafter that often agrees with it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fake_engine import fake_engine
from helpers.models import save_tiny, tiny_drafter, tiny_model
from helpers.verifying import by_name, failed, other_drafter, toy
from torch import Tensor

import specc
from specc import capture
from specc.errors import ConfigError
from specc.passes import blocks, inline_verify, process_logits
from specc.passes.accept import rejection
from specc.passes.graph import emit
from specc.passes.unroll_draft import UnrollDraft
from specc.runtime import Engine
from specc.tree import DraftTree
from specc.verifier.run import NAMES

TEXTS = tuple(name for name in NAMES if name not in ("laws", "transformers"))
Compile = Callable[..., Engine]


def small_model(seed: int = 3) -> Any:
    """One layer, and often sure of the next token, as trained models are."""
    return tiny_model(seed=seed, num_hidden_layers=1, initializer_range=0.7)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compile]:
    """Compile an engine of the small pair and load it; only the programs of `rules` and what an engine must have."""
    from specc import build, driver

    folder = tmp_path_factory.mktemp("verify")
    target = small_model()
    save_tiny(folder / "target", model=target)
    save_tiny(folder / "drafter", model=tiny_drafter(target, 0.1))
    plan, load, graph = build.plan_programs, functools.cache(capture.load_model), capture.capture
    graphs: dict[str, Any] = {}

    def captured(loaded: Any, *, name: str, batch: int, **_: Any) -> Any:
        if name not in graphs:
            graphs[name] = graph(loaded, name=name, batch=batch)
        return graphs[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "load_model", load)
        patch.setattr(capture, "capture", captured)
        patch.setattr(capture, "prove", lambda *a, **k: None)
        patch.setattr(driver, "measured", lambda folder, manifest, *a: manifest)

        def compile(name: str, *rules: str, **options: Any) -> Engine:
            def planned(*a: Any) -> Iterator[Any]:
                wanted = ("greedy", "", *rules)
                for one in plan(*a):
                    if one.rule in wanted or (rules and one.name == "plain_sampled"):
                        yield one

            with pytest.MonkeyPatch.context() as inner:
                inner.setattr(build, "plan_programs", planned)
                sampling = {"acceptance": ",".join(rules) or "coupled", "backend": "eager", "context": 96, "chunk": 16}
                path = specc.compile(folder / "target", folder / "drafter", folder / name, **sampling, **options)
            return specc.load(path)

        yield compile


# --- right engines


def test_a_chain_engine_passes(tiny_engine: Path, tiny_folders: tuple[Path, Path]) -> None:
    told: list[str] = []
    report = specc.verify(tiny_engine, quick=True, draws=100, tell=lambda check: told.append(check.name))
    assert report.passed and report.ties == 0
    checks = by_name(report)
    assert told == list(checks)
    skipped = {name for name, check in checks.items() if check.result == "skip"}
    assert skipped == {"acceptance", "rows", "begun ahead"}
    assert {"plain law", "coupled law", "rejection law", "rejection law, forced drafts"} <= set(checks)
    assert 0 < report.noise < 1e-4
    assert report.false_alarm == pytest.approx(5e-6)
    assert checks["transformers"].figures["tokens"] == 2 * 16


def test_a_tree_engine_passes(compiled: Compile) -> None:
    engine = compiled("tree", "coupled", tree="2,2")
    report = specc.verify(engine, quick=True, only=TEXTS)
    assert report.passed and report.ties == 0
    assert by_name(report)["forced drafts"].compared.startswith("12 drafts")  # 4 paths, 2 levels; 2 rules


def test_an_engine_of_several_rows_trees_and_lengths_passes() -> None:
    engine, programs = fake_engine(batch=3, tree=(2, 2), ladder=(3,), rules=("coupled", "rejection"), context=120)
    report = specc.verify(other_drafter(engine), draws=100)
    assert report.failed == []
    checks = by_name(report)
    skipped = [name for name, check in checks.items() if check.result == "skip"]
    assert skipped == ["self-check", "acceptance", "begun ahead", "transformers"]
    assert {"rejection law, rows", "rejection law, step_rejection_k3"} <= set(checks)
    assert max(programs.active) == 3
    assert {"step", "step_k3", "step_b3", "step_coupled_b3", "step_rejection_k3"} <= set(programs.calls)


# --- planted faults


def test_q_before_processing(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are drawn from the processed law and judged by the one before it."""
    right = UnrollDraft._choose

    def wrong(self: Any, program: Any, tree: Any, logits: Any, depth: int, frontier: Any, laws: list[Any]) -> Any:
        tokens = right(self, program, tree, logits, depth, frontier, laws)
        if laws:
            laws[-1] = emit(program, self, _softmax, logits)
        return tokens

    monkeypatch.setattr(UnrollDraft, "_choose", wrong)
    engine = compiled("q", "rejection", draft_length=2)
    assert failed(engine, "laws") == ["rejection law"]


def _softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def test_drafted_positions_off_by_one(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    right = inline_verify.add_block

    def wrong(program: Any, maker: Any, model: str, tokens: Any, *, offsets: Any, **more: Any) -> Any:
        return right(program, maker, model, tokens, offsets=emit(program, maker, _late, offsets), **more)

    monkeypatch.setattr(inline_verify, "add_block", wrong)
    engine = compiled("position", draft_length=2)
    assert "forced drafts" in failed(engine, "forced drafts", "greedy")


def _late(offsets: Tensor) -> Tensor:
    return offsets + (offsets > 0).long()


def test_wrong_rows_after_a_tree_accept(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first rows of the tree are written, whatever path was accepted."""
    monkeypatch.setattr(blocks, "_take_rows", lambda rows, path: rows[:, :, : path.shape[1]])
    engine = compiled("rows", tree="2,2")
    report = specc.verify(engine, quick=True, only=("forced drafts",))
    assert report.failed == ["forced drafts"]
    faults = "\n".join(by_name(report)["forced drafts"].faults)
    assert all(f"right along {path}:" in faults for path in ("0.1", "1.0", "1.1"))


def test_residual_that_forgets_the_draft(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused draft may be drawn again: what is left is p instead of max(0, p - q)."""
    right = rejection.accept

    def wrong(processed: Tensor, q: Tensor, *rest: Tensor) -> tuple[Tensor, Tensor]:
        accepted, _ = right(processed, q, *rest)
        row = accepted[:, None, None].expand(-1, 1, processed.shape[2])
        return accepted, processed.softmax(-1).gather(1, row).squeeze(1)

    monkeypatch.setattr(rejection, "accept", wrong)
    engine = compiled("residual", "rejection", draft_length=2)
    assert "rejection law, forced drafts" in failed(engine, "laws", draws=100)


def test_penalties_that_siblings_share(compiled: Compile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafted tokens count at every node that is not above them."""

    def wrong(program: Any, tree: DraftTree, nodes: Any, columns: Any) -> Any:
        on_path = [[float(column > 0 and tree.depths[column] <= tree.depths[n]) for column in columns] for n in nodes]
        depths = torch.tensor([[tree.depths[node] for node in nodes]])
        names = [f"planted.{kind}.{len(tree)}" for kind in ("path", "depths")]
        return program.constant(names[0], torch.tensor([on_path])), program.constant(names[1], depths)

    monkeypatch.setattr(process_logits, "path_constants", wrong)
    engine = compiled("penalties", tree="2,2")
    assert failed(engine, "greedy", "forced drafts", "penalties") == ["penalties"]


# --- what the other checks see


def test_another_model_at_the_target_is_seen(
    compiled: Compile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine = compiled("tree", "coupled", tree="2,2")
    check = by_name(specc.verify(engine, quick=True, only=("transformers",)))["transformers"]
    assert (check.result, check.figures["tokens"]) == ("pass", 32)
    near = tiny_drafter(small_model(), 0.03)
    monkeypatch.setattr(capture, "load_model", lambda *a, **k: type("Loaded", (), {"model": near}))
    assert failed(engine, "transformers") == ["transformers"]
    other = save_tiny(tmp_path / "other", seed=5, num_hidden_layers=1)
    with pytest.raises(ConfigError, match="--target .*not the model that this engine was compiled from"):
        specc.verify(engine, target=other, tell=lambda check: pytest.fail("told after something was compared"))
    gone = dataclasses.replace(engine.manifest.target, source=str(tmp_path / "gone"))
    monkeypatch.setattr(engine, "manifest", dataclasses.replace(engine.manifest, target=gone))
    assert specc.verify(engine, only=("transformers",)).checks[0].result == "skip"


def test_another_text_than_the_stored_one_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, _ = fake_engine()
    tokens = engine.generate([1, 2, 3], max_new_tokens=8, draft_length=0).token_ids
    for change, result in ((0, "pass"), (1, "fail")):
        stored = {"prompt": [1, 2, 3], "tokens": [*tokens[:5], (tokens[5] + change) % 40, *tokens[6:]]}
        monkeypatch.setattr(engine, "manifest", dataclasses.replace(engine.manifest, self_check=stored))
        (check,) = specc.verify(engine, only=("self-check",)).checks
        assert check.result == result
    assert check.faults and "new token 6" in check.faults[0]


@pytest.mark.parametrize("only", [("greedy", "acceptance"), ("acceptance",)])
def test_a_drafter_that_is_the_target_must_be_right(only: tuple[str, ...]) -> None:
    """The toy drafter is wrong one time in three, and its digest says that it is the target. Asked for alone, too."""
    report = specc.verify(fake_engine()[0], quick=True, only=only)
    assert report.failed == ["acceptance"]
    assert "expected all" in by_name(report)["acceptance"].faults[0]


def test_rows_that_hang_on_their_neighbours_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers import fake_engine as fake

    right = fake._Row.number
    monkeypatch.setattr(
        fake._Row, "number", lambda row, name, *d: right(row, name, *d) + (name == "seed" and row.b * 5)
    )
    assert failed(toy(batch=2), "coupled", "rows") == ["rows"]


def test_a_program_that_breaks_its_contract_fails_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    from helpers import fake_engine as fake

    right = fake._Row._results

    def wrong(row: Any, report: list[int], *rest: Any) -> dict[str, Tensor]:
        report[-3] *= not row.tree.depth  # a step that emits nothing
        return right(row, report, *rest)

    monkeypatch.setattr(fake._Row, "_results", wrong)
    report = specc.verify(toy(), quick=True, only=("greedy", "laws"))
    assert report.failed == ["greedy", "laws"]
    assert "emitted 0 tokens" in report.checks[0].faults[0]
