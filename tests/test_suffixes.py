"""Suffixes: what the host sees is what lookup in the graph finds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.passes.lookup_draft import rank
from specc.runtime.suffixes import Suffixes

TEXTS = st.lists(
    st.tuples(st.integers(0, 4), st.lists(st.integers(0, 2), min_size=1, max_size=4)), min_size=1, max_size=12
)


def in_graph(text: Sequence[int], longest: int) -> int:
    """The length of the best match, as the pass ranks them."""
    history, index = torch.tensor([[*text, 9]]), torch.arange(len(text) + 1)
    best = int(rank(history, torch.tensor([len(text) - 1]), index, longest).max())
    return best // (len(text) + 1)


@settings(deadline=None)
@given(TEXTS, st.integers(0, 5))
def test_as_the_graph_sees_it(changes: list[tuple[int, list[int]]], longest: int) -> None:
    """A text that grows, and of which some is taken back."""
    suffixes, text = Suffixes(longest), [0]
    for back, more in changes:
        del text[max(1, len(text) - back) :]
        text += more
        assert suffixes.match(text) == in_graph(text, longest)


def test_the_last_token_alone_is_no_match() -> None:
    texts = [5], [5, 6], [5, 5], [1, 2, 1, 2], [1, 2, 3, 1, 2, 3]
    assert [Suffixes(3).match(text) for text in texts] == [0, 0, 1, 2, 3]
