"""The counter-based generator: published vectors, plain integers, and the open interval."""

from __future__ import annotations

import pytest
import torch
from helpers import oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.philox import philox4x32, uniform

# counter, key, output: Random123's known answers for philox4x32 with 10 rounds
VECTORS = [
    ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]
WORD = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("counter, key, expected", VECTORS)
def test_published_vectors(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert oracle.philox(counter, key) == expected
    words = philox4x32(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(map(int, words)) == expected


@settings(max_examples=50, deadline=None)
@given(counter=st.tuples(WORD, WORD, WORD, WORD), key=st.tuples(WORD, WORD))
def test_equals_plain_integers(counter: tuple[int, ...], key: tuple[int, ...]) -> None:
    words = philox4x32(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(map(int, words)) == oracle.philox(counter, key)


@pytest.mark.parametrize("seed", [0, 1, -1, 2**31, 2**40 + 3, 2**63 - 1, -(2**63)])
@pytest.mark.parametrize("sample, stream, size", [(0, 0, 7), (3, 1, 4), (2**20, 3, 1)])
def test_uniform_equals_plain_integers(seed: int, sample: int, stream: int, size: int) -> None:
    positions = [0, 5, 2**31]
    got = uniform(torch.tensor([seed]), torch.tensor([sample]), torch.tensor([positions]), stream, size)
    expected = [oracle.uniforms(seed, sample, position, stream, size) for position in positions]
    assert got.dtype == torch.float32
    assert got.double().tolist() == [expected]


def test_noise_op_is_the_same_function() -> None:
    key = torch.tensor([4, 9]), torch.tensor([0, 1]), torch.tensor([[3, 4], [8, 2]])
    assert torch.equal(torch.ops.specc.noise(*key, 2, 5), uniform(*key, 2, 5))


def test_open_interval_at_its_ends() -> None:
    words = torch.tensor([0, 0xFFFFFFFF])
    ends = ((words >> 9).float() + 0.5) * 2.0**-23  # the form that `uniform` uses
    assert 0.0 < float(ends[0]) < float(ends[1]) < 1.0
    assert float(ends[1].double()) == (2**23 - 0.5) * 2.0**-23  # exact: nothing was rounded
    gumbel = -torch.log(-torch.log(ends))
    assert torch.isfinite(gumbel).all()
    naive = words.float() * 2.0**-32
    assert float(naive[1]) == 1.0, "the obvious form rounds to one"


def test_no_key_part_is_ignored() -> None:
    def draw(seed: int = 1, sample: int = 0, position: int = 2, stream: int = 0) -> torch.Tensor:
        return uniform(torch.tensor([seed]), torch.tensor([sample]), torch.tensor([[position]]), stream, 8)

    draws = [draw(), draw(seed=2), draw(seed=1 + 2**32), draw(sample=1), draw(position=3)]
    draws += [draw(stream=s) for s in (1, 2, 3)]
    assert len({tuple(d.flatten().tolist()) for d in draws}) == len(draws)


def test_batch_row_is_not_part_of_the_key() -> None:
    seeds, sample, position = torch.tensor([3, 5, 3]), torch.zeros(3).long(), torch.tensor([[7], [7], [7]])
    draws = uniform(seeds, sample, position, 0, 16)
    assert torch.equal(draws[0], draws[2])
    assert torch.equal(draws[1:2], uniform(seeds[1:2], sample[1:2], position[1:2], 0, 16))


def test_prefix_does_not_depend_on_size() -> None:
    key = torch.tensor([3]), torch.tensor([0]), torch.tensor([[7]])
    assert torch.equal(uniform(*key, 0, 5), uniform(*key, 0, 128)[..., :5])


def test_uniform_law() -> None:
    """100,000 numbers in 64 bins; error rate 1e-6 at this fixed seed."""
    draws = uniform(torch.tensor([11]), torch.tensor([0]), torch.arange(1000)[None], 0, 100).flatten()
    counts = torch.bincount((draws * 64).long(), minlength=64)
    assert oracle.chi_square_tail(counts, torch.ones(64)) > 1e-6
