"""Attention in C++: right for every shape, and a row's bits are the same whatever is computed beside it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.by_hand import hand, op
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from specc.attention import two_part_attention
from specc.errors import BackendError
from specc.lower import native
from specc.lower.aotinductor import lower
from specc.lower.native_calls import Native
from specc.passes.expand_attention import ExpandAttention
from specc.passes.inputs import bucket
from specc.program import Level

if not shutil.which("g++"):
    pytest.skip("no C++ compiler", allow_module_level=True)


@pytest.fixture(scope="module")
def code() -> Native:
    return Native()


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """Sizes around the widths of vectors and tiles, and what a model may ask for."""
    groups, share, queries = draw(st.integers(1, 3)), draw(st.integers(1, 4)), draw(st.integers(1, 9))
    return {
        "batch": draw(st.integers(1, 3)),
        "groups": groups,
        "heads": groups * share,
        "queries": queries,
        "rows": queries + draw(st.integers(0, 5)),
        "size": draw(st.sampled_from((1, 5, 8, 16, 17, 40))),
        "values": draw(st.sampled_from((1, 7, 16, 31, 64, 75))),
        "lengths": draw(st.lists(st.integers(0, 90), min_size=3, max_size=3)),
        "slots": 90 + draw(st.integers(0, 3)),
        "window": draw(st.sampled_from((None, None, 1, 3, 20, 64))),
        "softcap": draw(st.sampled_from((None, None, 2.0))),
        "sinks": draw(st.booleans()),
        "one_mask": draw(st.booleans()),
    }


def problem(case: dict[str, Any], seed: int = 1) -> tuple[list[Tensor], dict[str, Any]]:
    """Tensors and options of one attention; every query sees its own row, and others at random."""
    generator = torch.Generator().manual_seed(seed)
    batch, heads, groups, queries = (case[name] for name in ("batch", "heads", "groups", "queries"))
    rows, size, values, slots = (case[name] for name in ("rows", "size", "values", "slots"))

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    q = random(batch, queries, heads, size).transpose(1, 2)  # as models make it: the heads of a row side by side
    rows_k, rows_v = (random(batch, rows, groups, n).transpose(1, 2) for n in (size, values))
    mask = torch.rand(1 if case["one_mask"] else batch, queries, rows, generator=generator) < 0.5
    mask |= torch.eye(rows, dtype=torch.bool)[rows - queries :]
    length = torch.tensor(case["lengths"][:batch])
    options: dict[str, Any] = {"scale": 0.3, "softcap": case["softcap"], "window": case["window"]}
    if case["window"] is not None:
        options["positions"] = length[:, None] + torch.arange(rows) // 2
    if case["sinks"]:
        options["sinks"] = random(heads)
    caches = random(batch, groups, slots, size), random(batch, groups, slots, values)
    return [q, *caches, rows_k, rows_v, length, mask, torch.zeros(slots, dtype=torch.uint8)], options


@settings(max_examples=300, deadline=None)
@given(shapes())
def test_every_shape_is_the_plain_form(code: Native, case: dict[str, Any]) -> None:
    tensors, options = problem(case)
    *given_tensors, length, mask, bucket = tensors
    found = code.cached_attention(*tensors, **options)
    expected = two_part_attention(*given_tensors, length=length, mask=mask, slots=bucket.shape[0], **options)
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    assert found.transpose(1, 2).is_contiguous()


@settings(max_examples=200, deadline=None)
@given(shapes(), st.data())
def test_a_row_is_the_same_bits_alone(code: Native, case: dict[str, Any], data: st.DataObject) -> None:
    """One query of one row of the batch, with its own rows alone, in whatever threads run."""
    tensors, options = problem(case)
    q, cache_k, cache_v, rows_k, rows_v, length, mask, bucket = tensors
    whole = code.cached_attention(*tensors, **options)
    row, last = data.draw(st.integers(0, case["batch"] - 1)), case["rows"] - case["queries"]
    query = data.draw(st.integers(0, case["queries"] - 1))
    seen = last + query + 1  # rows up to the query's own: those behind it are out of its sight below
    mask = mask.expand(case["batch"], -1, -1)[row : row + 1].clone()
    mask[0, query, seen:] = False
    again = [t[row : row + 1] for t in (q, cache_k, cache_v, rows_k, rows_v, length)]
    if "positions" in options:
        options["positions"] = options["positions"][row : row + 1]
    one = code.cached_attention(*again, mask, bucket, **options)[:, :, query]
    if "positions" in options:
        options["positions"] = options["positions"][:, :seen].contiguous()
    again = [q[row : row + 1, :, query : query + 1], *again[1:3], *(t[:, :, :seen] for t in again[3:5]), again[5]]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(data.draw(st.integers(1, 3)))
        alone = code.cached_attention(*again, mask[:, query : query + 1, :seen].contiguous(), bucket, **options)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(alone[:, :, 0], one)
    if not tensors[6].expand(case["batch"], -1, -1)[row, query, seen:].any():
        assert torch.equal(whole[row : row + 1, :, query], one)


@pytest.mark.parametrize("options", ({}, *({"window": n} for n in (1, 3, 5, 20)), {"softcap": 2.0}), ids=str)
@pytest.mark.parametrize("length", (0, 1, 13, 31, 32, 47, 63))
def test_a_chain_has_the_bits_of_its_tokens_one_by_one(code: Native, length: int, options: dict[str, Any]) -> None:
    """Rows of the step that a query sees count as if they were cached: verifying is plain decoding, bit by bit."""
    chain, size, slots = 6, 40, 80
    generator = torch.Generator().manual_seed(length)
    q, k, v = (torch.randn(1, n, slots, size, generator=generator) for n in (6, 2, 2))

    def attend(first: int, count: int) -> Tensor:
        rows = slice(first, first + count)
        given_options = dict(options)
        if "window" in options:
            given_options["positions"] = torch.arange(slots)[None, rows].contiguous()
        seen, bucket = torch.ones(1, count, count).tril().bool(), torch.zeros(slots, dtype=torch.uint8)
        new = (k[:, :, rows], v[:, :, rows])
        return code.cached_attention(
            q[:, :, rows], k, v, *new, torch.tensor([first]), seen, bucket, scale=0.2, **given_options
        )

    together = attend(length, chain)
    assert all(torch.equal(attend(length + row, 1)[:, :, 0], together[:, :, row]) for row in range(chain))


def test_slots_past_the_length_and_rows_out_of_sight_are_not_read(code: Native) -> None:
    case = dict(batch=1, groups=1, heads=3, queries=2, rows=4, size=16, values=16, lengths=[5], slots=90)
    tensors, options = problem({**case, "window": None, "softcap": None, "sinks": False, "one_mask": True})
    tensors[6][:, :, 0] = False
    before = code.cached_attention(*tensors, **options)
    tensors[1][:, :, 5:] = tensors[2][:, :, 5:] = float("nan")
    tensors[3][:, :, 0] = tensors[4][:, :, 0] = float("nan")
    assert torch.equal(code.cached_attention(*tensors, **options), before)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, torch.zeros(1, 3, 2, 16, dtype=torch.float64)),
        (0, torch.zeros(1, 3, 16, 2).mT),  # rows that are not contiguous
        (1, torch.zeros(1, 1, 90, 8)),
        (3, torch.zeros(1, 2, 4, 16)),
        (5, torch.zeros(1, dtype=torch.int32)),
        (6, torch.zeros(1, 2, 3, dtype=torch.bool)),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else str(list(value.shape)),
)
def test_what_it_was_not_made_for_is_refused(code: Native, place: int, value: Tensor) -> None:
    case = dict(batch=1, groups=1, heads=3, queries=2, rows=4, size=16, values=16, lengths=[5], slots=90)
    tensors, options = problem({**case, "window": None, "softcap": None, "sinks": False, "one_mask": True})
    tensors[place] = value
    with pytest.raises(BackendError, match="refused its tensors"):
        code.cached_attention(*tensors, **options)


def test_a_program_calls_it(code: Native, tmp_path: Path) -> None:
    """With all that a model may ask for, and without, in one package: every bit is as the code alone gives it, and the
    heads of a row lie side by side."""
    batch, groups, heads, rows, size, slots = 2, 2, 4, 3, 16, 40
    program = hand(Level.ENGINE, batch=batch, slots=slots)

    def rows_of(name: str, count: int) -> torch.fx.Node:
        node = program.input(name, (batch, rows, count, size), torch.float32)
        return op(program, torch.ops.aten.permute.default, node, [0, 2, 1, 3])

    caches = [program.input(f"target_{kind}_0", (batch, groups, slots, size), torch.float32) for kind in "kv"]
    tensors = [rows_of("q", heads), *caches, rows_of("k", groups), rows_of("v", groups)]
    tensors += [
        program.input("target_length", (batch,), torch.int64),
        program.input("mask", (1, rows, rows), torch.bool),
    ]
    tensors += [bucket(program)]
    more = [program.input("positions", (batch, rows), torch.int64), program.input("sinks", (heads,), torch.float32)]
    attention = torch.ops.specc.cached_attention.default
    program.give(all=op(program, attention, *tensors, 0.3, 7, 2.0, *more), few=op(program, attention, *tensors, 0.3))
    assert ExpandAttention(attends=native.attends).run(program) == 0
    path = tmp_path / "attention.pt2"
    lower(program, path)
    package, generator = torch._inductor.aoti_load_package(str(path)), torch.Generator().manual_seed(3)
    values = {}
    for node in program.graph.find_nodes(op="placeholder"):
        shape = [int(n) for n in node.meta["val"].shape] if node.target != "bucket" else [30]
        values[node.target] = torch.randn(shape, generator=generator)
    values["target_length"], values["bucket"] = torch.tensor([22, 5]), torch.zeros(30, dtype=torch.uint8)
    values["mask"] = torch.ones(1, rows, rows).tril().bool()
    values["positions"] = values["target_length"][:, None] + torch.arange(rows)
    found = package(*values.values())
    turned = [values[name].transpose(1, 2) for name in ("q", "k", "v")]
    asked = [turned[0], values["target_k_0"], values["target_v_0"], *turned[1:]]
    asked += [values[name] for name in ("target_length", "mask", "bucket")]
    options = {"window": 7, "softcap": 2.0, "positions": values["positions"], "sinks": values["sinks"]}
    for result, wanted in zip(found, (code.cached_attention(*asked, scale=0.3, **options),
                                      code.cached_attention(*asked, scale=0.3)), strict=True):  # fmt: skip
        assert torch.equal(result, wanted) and result.transpose(1, 2).is_contiguous()


def test_narrower_registers(tmp_path: Path) -> None:
    """The same tests for AVX2, where blocks and tiles have other sizes; on a processor that has it."""
    if "AVX512" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("what is narrower than this processor's own is not known here")
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2", "SPECC_CACHE": str(tmp_path)}
    check = "from specc.lower import native; assert '-mavx2' in native.recipe() and 'avx512' not in native.recipe()"
    subprocess.run([sys.executable, "-P", "-c", check], env=environment, check=True)
    command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "plain or bits"]
    done = subprocess.run(command, env=environment, cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
