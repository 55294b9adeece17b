"""The C++ products: right for every shape, the same bits for a row whatever the others, and linked into programs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from helpers.by_hand import hand, op
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.errors import BackendError
from specc.lower import native
from specc.lower.aotinductor import key_options, lower
from specc.ops import spread_levels
from specc.passes.quantise_draft import quantised
from specc.program import Level

if not shutil.which("g++"):
    pytest.skip("no C++ compiler", allow_module_level=True)


@pytest.fixture(scope="module")
def products() -> native.Products:
    return native.Products()


def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


SIZES = st.tuples(st.integers(1, 200), st.integers(1, 90), st.integers(1, 20))


@settings(max_examples=150, deadline=None)
@given(SIZES)
def test_every_shape_is_the_product(products: native.Products, sizes: tuple[int, int, int]) -> None:
    out, size, rows = sizes
    x, weight = matrix(rows, size, 1), matrix(out, size, 2)
    found = products.skinny_linear(x, weight)
    torch.testing.assert_close(found, x @ weight.T, atol=1e-4, rtol=1e-4)
    assert torch.equal(products.skinny_linear(x[:1], weight), found[:1])


@settings(max_examples=100, deadline=None)
@given(SIZES, st.sampled_from((8, 4)))
def test_every_shape_of_levels_is_the_product(
    products: native.Products, sizes: tuple[int, int, int], bits: int
) -> None:
    out, words, rows = sizes
    size = words * (32 // bits)
    x, (levels, scale) = matrix(rows, size, 1), quantised(matrix(out, size, 2), bits)
    found = products.levels_linear(x, levels, scale.contiguous(), bits)
    torch.testing.assert_close(found, x @ spread_levels(levels, scale, bits).T, atol=1e-3, rtol=1e-4)
    assert torch.equal(products.levels_linear(x[:1], levels, scale.contiguous(), bits), found[:1])


@pytest.mark.parametrize("threads", (1, 2, 8))
def test_any_number_of_threads(products: native.Products, threads: int) -> None:
    x, weight, before = matrix(3, 70, 1), matrix(131, 70, 2), torch.get_num_threads()
    expected = products.skinny_linear(x, weight)
    torch.set_num_threads(threads)
    try:
        assert torch.equal(products.skinny_linear(x, weight), expected)
    finally:
        torch.set_num_threads(before)


def test_a_program_calls_them(products: native.Products, tmp_path: Path) -> None:
    """Strided rows, a bias behind, levels, all in one package; every number as the products alone give it."""
    program = hand(Level.ENGINE)
    weight, (levels, scale) = matrix(40, 24, 1), quantised(matrix(16, 40, 2), 8)
    x = program.input("x", (2, 24, 3), torch.float32)
    rows = op(program, torch.ops.aten.permute.default, x, [0, 2, 1])
    flat = op(program, torch.ops.aten.clone.default, rows, memory_format=torch.contiguous_format)
    y = op(program, torch.ops.specc.skinny_linear.default, flat, program.constant("w", weight))
    y = op(program, torch.ops.aten.relu.default, y)
    stored = program.constant("levels", levels), program.constant("scale", scale)
    program.give(z=op(program, torch.ops.specc.levels_linear.default, y, *stored, 8))
    path = tmp_path / "products.pt2"
    lower(program, path)
    given_x = torch.randn(2, 24, 3)
    package = torch._inductor.aoti_load_package(str(path))
    package.load_constants(
        {name: program.weights[name] for name in package.get_constant_fqns()}, check_full_update=True
    )
    (found,) = package(given_x)
    hidden = products.skinny_linear(given_x.mT.reshape(6, 24), weight).relu()
    assert torch.equal(found.view(6, 16), products.levels_linear(hidden, levels, scale, 8))


def test_what_decides_a_program_holds_the_source() -> None:
    assert native.source_digest() in key_options().values()


def test_a_compiler_that_fails_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "products.cpp"
    broken.write_text("int main( {")
    monkeypatch.setattr(native, "SOURCE", broken)
    native._compiled.cache_clear()
    try:
        with pytest.raises(BackendError, match="(?s)could not compile products.cpp.*--backend eager"):
            native.object_file()
    finally:
        native._compiled.cache_clear()


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, unwritable: Path) -> None:
    monkeypatch.setenv("SPECC_CACHE", str(unwritable))
    native._compiled.cache_clear()
    try:
        assert native.object_file().is_file()
    finally:
        native._compiled.cache_clear()
