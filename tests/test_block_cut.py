"""What a block emits, against a host that appends token after token."""

from __future__ import annotations

import torch
from helpers import oracle
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.passes.accept.block_cut import cut

TOKEN = st.integers(0, 4)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], int, list[int], int, int, bool]:
    block = draw(st.lists(TOKEN, min_size=1, max_size=5))
    accepted = draw(st.integers(0, len(block) - 1))
    eos = draw(st.lists(TOKEN, max_size=3, unique=True))
    length = draw(st.integers(0, 20))
    limit = length + 1 + draw(st.integers(0, 7))
    return block, accepted, eos, limit, length, draw(st.booleans())


@settings(max_examples=300, deadline=None)
@given(case=cases())
def test_equals_the_host(case: tuple[list[int], int, list[int], int, int, bool]) -> None:
    block, accepted, eos, limit, length, active = case
    numbers = (torch.tensor([n]) for n in (limit, length, active))
    padded = torch.tensor([eos + [-1] * (8 - len(eos))])
    count, going = cut(torch.tensor([block]), torch.tensor([accepted]), padded, *numbers)
    assert (int(count), bool(going)) == oracle.cut(*case)


def test_rows_do_not_mix() -> None:
    block = torch.tensor([[1, 2, 3], [1, 2, 3], [1, 2, 3], [1, 2, 3]])
    eos = torch.tensor([[2, *[-1] * 7], [-1] * 8, [-1] * 8, [3, *[-1] * 7]])
    limit, length = torch.tensor([99, 99, 12, 99]), torch.full((4,), 9)
    active = torch.tensor([True, True, True, False])
    count, going = cut(block, torch.tensor([2, 1, 2, 2]), eos, limit, length, active)
    assert count.tolist() == [2, 2, 2, 0]
    assert going.tolist() == [False, True, False, False]


def test_padding_of_the_list_is_no_token() -> None:
    """A block may hold -1 where nothing was drafted: it ends no text."""
    numbers = torch.tensor([99]), torch.tensor([1]), torch.tensor([True])
    count, going = cut(torch.tensor([[4, -1, 4]]), torch.tensor([0]), torch.full((1, 8), -1), *numbers)
    assert int(count) == 1 and bool(going)


def test_end_of_text_past_what_was_verified_does_not_count() -> None:
    numbers = torch.tensor([99]), torch.tensor([1]), torch.tensor([True])
    count, going = cut(torch.tensor([[4, 5, 2]]), torch.tensor([1]), torch.tensor([[2, *[-1] * 7]]), *numbers)
    assert int(count) == 2 and bool(going)


def test_end_of_text_on_the_last_place_wins_over_the_limit() -> None:
    numbers = torch.tensor([4]), torch.tensor([1]), torch.tensor([True])
    count, going = cut(torch.tensor([[4, 2, 6]]), torch.tensor([2]), torch.tensor([[2, *[-1] * 7]]), *numbers)
    assert int(count) == 2 and not bool(going)
