"""The list of passes, and the manager that checks, runs, dumps and bisects it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.by_hand import hand, op
from helpers.check import assert_shapes
from helpers.decoding import fresh, pair

from specc.drafter import parse_drafter
from specc.errors import ConfigError, PassError
from specc.passes import prefill_passes, run, step_passes
from specc.passes.accept_draft import AcceptDraft
from specc.passes.bind_state import BindState
from specc.passes.commit import Commit
from specc.passes.contract import Pass
from specc.passes.dump import dump, line, value
from specc.passes.inline_verify import InlineVerify
from specc.passes.levels import check
from specc.passes.lower_attention import LowerAttention
from specc.passes.manager import check_order
from specc.passes.normalize import Normalize
from specc.passes.process_logits import ProcessLogits
from specc.passes.read_root import ReadRoot
from specc.passes.rotary_tables import RotaryTables
from specc.passes.tree_mask import TreeMask
from specc.program import Level, Program
from specc.tree import DraftTree

PLAIN, CHAIN = DraftTree.chain(0), DraftTree.chain(1)
FOLDER = Path(__file__).resolve().parents[1]


def plain_passes() -> list[Pass]:
    return step_passes(tree=PLAIN, rule="greedy", drafter=parse_drafter("model"))


def empty() -> Program:
    return fresh(pair(), own_store=True)


# --- the list


def all_lists() -> list[list[Pass]]:
    lists = [
        step_passes(tree=tree, rule=rule, drafter=parse_drafter(drafter))
        for tree in (PLAIN, CHAIN, DraftTree.from_widths((2, 1)))
        for rule in ("greedy", "coupled", "rejection")
        for drafter in ("model", "ngram", "ngram,model")
    ]
    chains = DraftTree.from_widths((3, 1))
    lists += [
        step_passes(tree=chains, rule=rule, drafter=parse_drafter("lookahead:2,3,3")) for rule in ("greedy", "coupled")
    ]
    return lists + [prefill_passes(model=model) for model in ("target", "drafter")]


def test_every_list_is_in_order() -> None:
    for passes in all_lists():
        check_order(passes, Level.CAPTURED)
        assert passes[-1].leaves == Level.ENGINE
        assert len({p.stem() for p in passes}) == len(passes)


def test_lists_hold_what_they_need_and_no_more() -> None:
    stems = [p.stem() for p in plain_passes()]
    assert not {"draw_noise", "unroll_draft", "lookup_draft"} & set(stems)
    stems = [p.stem() for p in step_passes(tree=CHAIN, rule="coupled", drafter=parse_drafter("ngram"))]
    assert {"draw_noise", "lookup_draft"} <= set(stems) and "unroll_draft" not in stems
    assert stems.index("draw_noise") < stems.index("lookup_draft") < stems.index("inline_verify")


def test_one_stem_everywhere() -> None:
    """A pass, its file and its test carry one name."""
    for pass_ in {type(p): p for passes in all_lists() for p in passes}.values():
        assert type(pass_).__module__ == f"specc.passes.{pass_.stem()}"
        assert (FOLDER / "passes" / f"{pass_.stem()}.py").is_file()
        assert (FOLDER / "tests" / f"test_{pass_.stem()}.py").is_file()
        doc = type(pass_).__doc__ or ""
        assert "Before:" in doc and "After" in doc


# --- order


def test_all_violations_are_reported_at_once() -> None:
    passes = [RotaryTables(), Normalize(), Normalize(), TreeMask(tree=CHAIN), ReadRoot(), Commit(), ReadRoot()]
    with pytest.raises(PassError) as caught:
        check_order(passes, Level.CAPTURED)
    text = str(caught.value)
    for part in (
        "rotary_tables must come after normalize",
        "normalize stands twice",
        "read_root stands twice",
        "tree_mask must come after read_root",
        "commit needs accept_draft before it",
        "read_root reads CAPTURED but finds FUSED",
    ):
        assert part in text
    assert text.count(";") == 5


def test_nothing_runs_where_the_order_is_wrong() -> None:
    program = empty()
    with pytest.raises(PassError, match="out of order"):
        run(program, [Normalize(), Commit()])
    assert Normalize().run(program) > 0, "the first pass was not run"


def test_a_bound_program_is_not_bound_again() -> None:
    with pytest.raises(PassError, match="reads STATIC but finds ENGINE"):
        check_order([BindState(), BindState()], Level.STATIC)


# --- reports, dumps, bisection


def test_reports_and_numbered_dumps(tmp_path: Path) -> None:
    program = empty()
    passes = plain_passes()
    reports = run(program, passes, dump_dir=tmp_path)
    assert [r.name for r in reports] == [p.stem() for p in passes]
    assert all(r.seconds >= 0 and r.nodes > 0 for r in reports)
    assert reports[-1].nodes == len(program.graph.nodes)
    files = sorted(path.name for path in (tmp_path / "step").iterdir())
    expected = [f"{i:02}-{p.stem()}.{when}.txt" for i, p in enumerate(passes) for when in ("after", "before")]
    assert files == expected
    last = (tmp_path / "step" / files[-2]).read_text()
    assert last.startswith("# program step, level ENGINE\n") and dump(program.graph) in last
    assert "# model target" in (tmp_path / "step" / "00-normalize.before.txt").read_text()
    for index, pass_ in enumerate(passes[1:], 1):
        before = (tmp_path / "step" / f"{index:02}-{pass_.stem()}.before.txt").read_text()
        assert before == (tmp_path / "step" / f"{index - 1:02}-{passes[index - 1].stem()}.after.txt").read_text()
    assert str(FOLDER) not in last, "no absolute paths"


def test_equal_inputs_give_equal_graphs() -> None:
    texts = []
    for _ in range(2):
        program = empty()
        run(program, plain_passes())
        texts.append(dump(program.graph))
    assert texts[0] == texts[1]


class Failing(Pass):
    """Breaks where it is told to."""

    reads = leaves = Level.CAPTURED

    def __init__(self, *, how: str) -> None:
        self.how = how

    def run(self, program: Program) -> int:
        if self.how == "raises":
            raise ValueError("no such thing")
        if self.how == "signature":
            program.give(more=program.input("more", (1,), torch.int64))
        return 1

    def ensures(self, program: Program) -> None:
        if self.how == "promise":
            raise PassError("the promise is broken")


@pytest.mark.parametrize(
    "how, message",
    [("raises", "no such thing"), ("signature", "inputs or outputs changed from"), ("promise", "promise is broken")],
)
def test_a_failure_names_the_pass_and_those_before_it(how: str, message: str, tmp_path: Path) -> None:
    program = hand(Level.CAPTURED)
    with pytest.raises(PassError, match=f"pass failing on program hand failed: .*{message}") as caught:
        run(program, [ReadRoot(), Failing(how=how)], dump_dir=tmp_path)
    assert "(passes before it: read_root)" in str(caught.value)
    assert caught.value.__cause__ is not None
    assert (tmp_path / "hand" / "01-failing.failed.txt").is_file()


@pytest.mark.parametrize("stem", ["normalize", "rotary_tables", "read_rows", "share_weights", "fuse_linears"])
def test_without_what_may_be_left_out(stem: str) -> None:
    program = empty()
    reports = run(program, plain_passes(), without=[stem])
    assert stem not in [r.name for r in reports] and program.level == Level.ENGINE


@pytest.mark.parametrize(
    "stem, message",
    [
        ("tree_mask", "cannot be left out, inline_verify needs it"),
        ("inline_verify", "cannot be left out, process_logits needs it"),
        ("commit", "cannot be left out, nothing else brings the graph to FUSED"),
        ("expand_attention", "cannot be left out, back ends cannot run what it replaces"),
        ("bind_state", "cannot be left out, nothing else brings the graph to ENGINE"),
        ("tree_masks", "no such pass here; the passes are normalize, rotary_tables"),
        ("unroll_draft", "no such pass here"),
    ],
)
def test_without_what_is_needed(stem: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--without {stem}: {message}"):
        run(hand(Level.CAPTURED), plain_passes(), without=[stem])


@pytest.mark.parametrize("stem", ["read_root", "draw_noise"])
def test_without_what_begins_a_step(stem: str) -> None:
    """Their results are read by passes behind them; the refusal must come before anything runs."""
    passes = step_passes(tree=PLAIN, rule="coupled", drafter=parse_drafter("model"))
    with pytest.raises(ConfigError, match=f"--without {stem}: cannot be left out"):
        run(hand(Level.CAPTURED), passes, without=[stem])


def test_idempotence_of_the_whole_list() -> None:
    """After each pass that keeps its level, the same pass finds nothing to do."""
    program = fresh(pair(), own_store=True)
    for pass_ in step_passes(tree=CHAIN, rule="coupled", drafter=parse_drafter("model")):
        pass_.requires(program)
        pass_.run(program)
        program.level = pass_.leaves
        if pass_.reads == pass_.leaves:
            text = dump(program.graph)
            assert pass_.run(program) == 0, pass_.stem()
            assert dump(program.graph) == text, pass_.stem()
        assert_shapes(program.graph)


# --- grammar


def with_op(target: Any, *args: Any) -> Program:
    program = hand()
    x = program.input("x", (2, 3), torch.float32)
    program.give(out=op(program, target, x, *args))
    return program


@pytest.mark.parametrize(
    "target, args",
    [
        (torch.ops.aten.cumprod.default, (1,)),
        (torch.ops.aten.bernoulli.default, ()),
        (torch.ops.aten.all.dim, (1,)),
        (torch.ops.aten.rand_like.default, ()),
        (torch.ops.aten.multinomial.default, (1,)),
    ],
)
def test_banned_ops_are_named(target: Any, args: tuple[Any, ...]) -> None:
    name = target._schema.name.removeprefix("aten::")
    with pytest.raises(PassError, match=rf"hand: op that engines may not hold at level STATIC: \w+: .* = {name}"):
        check(with_op(target, *args), Level.STATIC)


def test_node_without_a_value_is_named() -> None:
    program = with_op(torch.ops.aten.neg.default)
    next(n for n in program.graph.nodes if n.op == "call_function").meta.clear()
    with pytest.raises(PassError, match=r"node without meta\['val'\] at level STATIC: neg_default"):
        check(program, Level.STATIC)


def test_weight_that_is_not_stored_is_named() -> None:
    program = hand()
    program.give(out=op(program, torch.ops.aten.neg.default, program.constant("w", torch.ones(2))))
    del program.weights.tensors["w"]
    with pytest.raises(PassError, match=r"weight that is not stored at level STATIC: w: f32\[2\] = weight\(w\)"):
        check(program, Level.STATIC)


def test_calls_that_are_no_ops_are_named() -> None:
    program = with_op(torch.ops.aten.neg.default)
    next(n for n in program.graph.nodes if n.op == "call_function").target = torch.neg
    with pytest.raises(PassError, match="call of something that is not an op"):
        check(program, Level.STATIC)


def test_markers_end_at_attention() -> None:
    program = hand(Level.FUSED)
    q = program.input("q", (1, 2, 3, 4), torch.float32)
    program.give(out=op(program, torch.ops.specc.attend.default, q, q, q, 0, 1.0))
    check(program, Level.FUSED)
    with pytest.raises(PassError, match=re.escape("op that should have been lowered at level STATIC: ")):
        check(program, Level.STATIC)


def test_fixed_bucket_is_named() -> None:
    program = hand()
    program.give(out=op(program, torch.ops.aten.neg.default, program.input("bucket", (5,), torch.uint8)))
    with pytest.raises(PassError, match=r"number of slots that is fixed at level STATIC: bucket: u8\[5\]"):
        check(program, Level.STATIC)


# --- the short form


def test_short_form() -> None:
    program = with_op(torch.ops.aten.sum.dim_IntList, [1], True)
    nodes = list(program.graph.nodes)
    assert [line(n) for n in nodes] == [
        "x: f32[2, 3] = input(x)",
        "sum_dim_int_list: f32[2, 1] = sum.dim_IntList(x, [1], True)",
        "return {out: sum_dim_int_list}",
    ]
    assert value((torch.ones(2).bfloat16(), torch.ones(1).bool())) == "(bf16[2], b8[1])"
    assert value(3) == "size" and value(None) == "NoneType"


def test_needs_are_passes_that_bring_what_is_read() -> None:
    assert InlineVerify in ProcessLogits.needs and ProcessLogits in AcceptDraft.needs and AcceptDraft in Commit.needs
    assert Commit in LowerAttention.after
