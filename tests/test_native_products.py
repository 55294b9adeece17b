"""The C++ products: right for every shape, the same bits for a row whatever the others, and linked into programs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers.by_hand import hand, op
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._inductor.exc import InvalidCxxCompiler

from specc.errors import BackendError
from specc.lower import native
from specc.lower.aotinductor import key_options, lower
from specc.lower.cache import cache_folder
from specc.lower.forms import FormTable
from specc.lower.native_calls import Native
from specc.ops import spread_levels
from specc.passes.quantise_draft import QuantiseDraft, quantised
from specc.passes.quantised_linears import QuantisedLinears
from specc.passes.skinny_linears import SkinnyLinears
from specc.program import Level

LINEAR = torch.ops.aten.linear.default

if not shutil.which("g++"):
    pytest.skip("no C++ compiler", allow_module_level=True)


@pytest.fixture(scope="module")
def products() -> Native:
    return Native()


def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


SIZES = st.tuples(st.integers(1, 200), st.integers(1, 90), st.integers(1, 20))


@settings(max_examples=150, deadline=None)
@given(SIZES)
def test_every_shape_is_the_product(products: Native, sizes: tuple[int, int, int]) -> None:
    out, size, rows = sizes
    x, weight = matrix(rows, size, 1), matrix(out, size, 2)
    found = products.skinny_linear(x, weight)
    torch.testing.assert_close(found, x @ weight.T, atol=1e-4, rtol=1e-4)
    assert torch.equal(products.skinny_linear(x[:1], weight), found[:1])


@settings(max_examples=100, deadline=None)
@given(SIZES, st.sampled_from((8, 4)))
def test_every_shape_of_levels_is_the_product(products: Native, sizes: tuple[int, int, int], bits: int) -> None:
    out, words, rows = sizes
    size = words * (32 // bits)
    x, (levels, scale) = matrix(rows, size, 1), quantised(matrix(out, size, 2), bits)
    found = products.levels_linear(x, levels, scale.contiguous(), bits)
    torch.testing.assert_close(found, x @ spread_levels(levels, scale, bits).T, atol=1e-3, rtol=1e-4)
    assert torch.equal(products.levels_linear(x[:1], levels, scale.contiguous(), bits), found[:1])


def test_any_number_of_threads(products: Native) -> None:
    x, weight, before = matrix(3, 70, 1), matrix(131, 70, 2), torch.get_num_threads()
    expected = products.skinny_linear(x, weight)
    try:
        for threads in (1, 2, 8):
            torch.set_num_threads(threads)
            assert products._library.omp_get_max_threads() == threads  # one OpenMP for torch and for these
            assert torch.equal(products.skinny_linear(x, weight), expected)
    finally:
        torch.set_num_threads(before)


def test_a_program_calls_them(products: Native, tmp_path: Path) -> None:
    """By the passes, over strided rows, with a bias behind and levels after it, in one package: every number is as the
    products alone give it."""
    program = hand(Level.STATIC)
    weight, bias, second = matrix(40, 24, 1), torch.arange(40.0), matrix(16, 40, 2)
    x = program.input("x", (2, 24, 3), torch.float32)
    rows = op(program, torch.ops.aten.permute.default, x, [0, 2, 1])
    y = op(program, LINEAR, rows, program.constant("target.w", weight), program.constant("b", bias))
    z = op(program, LINEAR, op(program, torch.ops.aten.relu.default, y), program.constant("drafter.w", second))
    z.meta["specc_model"] = "drafter"
    program.give(z=z)
    assert QuantiseDraft(kind="int8").run(program) == 1
    program.level = Level.ENGINE
    assert SkinnyLinears(skinny=lambda *sizes: sizes[3] == torch.float32).run(program) == 1
    assert QuantisedLinears(skinny=lambda *sizes: True).run(program) == 1
    path = tmp_path / "products.pt2"
    lower(program, path)
    package = torch._inductor.aoti_load_package(str(path))
    package.load_constants({name: program.weights[name] for name in program.weight_names()}, check_full_update=True)
    given_x = torch.randn(2, 24, 3)
    (found,) = package(given_x)
    hidden = (products.skinny_linear(given_x.mT.reshape(6, 24), weight) + bias).relu()
    assert torch.equal(found.view(6, 16), products.levels_linear(hidden, *quantised(second, 8), 8))


def test_what_decides_a_program_holds_the_source_and_the_flags(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = key_options()
    assert "-O3" in before["native"] and "aoti_torch_cpu_skinny_linear" in before["native"]
    (tmp_path / "other.cpp").write_text("int other;")
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    assert key_options() != before


def test_a_compiler_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "broken.cpp").write_text("int main( {")
    monkeypatch.setattr(native, "SOURCES", tmp_path)
    with pytest.raises(BackendError, match="(?s)could not make broken.cpp.*--backend eager"):
        native.objects()
    assert not list((cache_folder() / "native").glob(f".{os.getpid()}.*"))


def test_no_compiler_is_told_and_not_needed_to_time_the_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def none() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setenv("SPECC_CACHE", str(tmp_path))
    monkeypatch.setattr(native, "get_cpp_compiler", none)
    with pytest.raises(BackendError, match="(?s)could not make attention.cpp.*apt-get install g"):
        native.objects()
    assert FormTable(None, "this machine").seconds(64, 64, 1, torch.bfloat16) > 0


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, unwritable: Path) -> None:
    monkeypatch.setenv("SPECC_CACHE", str(unwritable))
    found = native.objects()
    assert all(file.is_file() and not file.is_relative_to(unwritable) for file in found) and native.objects() == found


def test_the_linker_finds_it_wherever_the_cache_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative cache, for the linker runs elsewhere; and one whose name no list of folders can hold."""
    monkeypatch.chdir(tmp_path)
    for name in ("here", "a:b"):
        monkeypatch.setenv("SPECC_CACHE", name)
        found = native.objects()
        assert all(file.is_absolute() and ":" not in str(file) for file in found)
        assert {path.name for path in (tmp_path / name / "native").iterdir()} == {file.name for file in found}


def test_narrower_registers(tmp_path: Path) -> None:
    """The same source for AVX2, where the tiles have other sizes; on a processor that has it."""
    if "AVX512" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("what is narrower than this processor's own is not known here")
    code = """
import torch
from specc.lower import native
from specc.lower.native_calls import Native
assert "-mavx2" in native.recipe() and "avx512" not in native.recipe().lower()
products, draw = Native(), torch.Generator().manual_seed(1)
for out, size in ((13, 7), (64, 40), (101, 75)):
    x, weight = torch.randn(17, size, generator=draw), torch.randn(out, size, generator=draw)
    whole = products.skinny_linear(x, weight)
    torch.testing.assert_close(whole, x @ weight.T, atol=1e-4, rtol=1e-4)
    for rows in range(1, 17):
        assert torch.equal(products.skinny_linear(x[:rows], weight), whole[:rows])
"""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2", "SPECC_CACHE": str(tmp_path)}
    subprocess.run([sys.executable, "-P", "-c", code], env=environment, check=True)
