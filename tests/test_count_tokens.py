"""CountTokens: occurrences in the text and in its generated part, against a loop; the ids that end a text."""

from __future__ import annotations

import torch
from helpers.check import assert_shapes
from helpers.decoding import built, fresh, pair
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.passes.accept.penalties import count_tokens, mark_ends
from specc.passes.count_tokens import CountTokens
from specc.passes.read_root import ReadRoot

VOCAB, SLOTS = 12, 40


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), min_size=1, max_size=3),
    prompt=st.integers(1, 35),
    spare=st.integers(0, 8),
)
def test_counts_are_those_of_a_loop(texts: list[list[int]], prompt: int, spare: int) -> None:
    """The bucket covers the caches, so it may end right before the root."""
    history = torch.full((len(texts), SLOTS), 7)
    for row, text in enumerate(texts):
        history[row, : len(text)] = torch.tensor(text)
    length = torch.tensor([len(text) - 1 for text in texts])
    bucket = torch.zeros(min(SLOTS - 1, max(2, int(length.max())) + spare), dtype=torch.uint8)
    prompts = torch.full((len(texts),), prompt)
    in_text, generated = count_tokens(history, length, prompts, bucket, vocab=VOCAB)
    for row, text in enumerate(texts):
        assert in_text[row].tolist() == [text.count(token) for token in range(VOCAB)]
        assert generated[row].tolist() == [text[prompt:].count(token) for token in range(VOCAB)]


def test_ends() -> None:
    eos = torch.tensor([[3, 0, -1, -1, -1, -1, -1, -1], [-1] * 8])
    assert mark_ends(eos, vocab=5).tolist() == [[True, False, False, True, False], [False] * 5]


def test_graph() -> None:
    program = fresh(pair(), own_store=True)
    ReadRoot().run(program)
    assert CountTokens().run(program) == 1
    assert CountTokens().run(program) == 0
    assert_shapes(program.graph)
    bucket = next(n for n in program.graph.find_nodes(op="placeholder") if n.target == "bucket")
    assert bucket.meta["val"].shape[0].node.maybe_as_int() is None, "the number of slots is fixed"
    run = built(program)
    history = torch.zeros_like(run.inputs["history"])
    history[0, :5] = torch.tensor([9, 9, 4, 9, 4])
    state = {**run.inputs, "history": history, "target_length": torch.tensor([4]), "prompt_length": torch.tensor([3])}
    out = run(state, bucket=torch.zeros(4, dtype=torch.uint8))
    assert out["in_text"][0, [9, 4, 0]].tolist() == [3, 2, 0]
    assert out["generated"][0, [9, 4, 0]].tolist() == [1, 1, 0]
    assert not out["ends"].any()
