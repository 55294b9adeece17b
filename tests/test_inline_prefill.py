"""InlinePrefill: a chunk of known tokens fills the caches of one model."""

from __future__ import annotations

import pytest
import torch
from helpers.check import assert_shapes
from helpers.decoding import CHUNK, Built, built, example_inputs, fresh, lowered, pair, prompt, until
from torch import Tensor

from specc.passes import prefill_passes
from specc.passes.inline_prefill import InlinePrefill
from specc.passes.manager import _run_one
from specc.program import Level, Program


def prefill(model: str) -> tuple[Program, Built]:
    program = until("lower_attention", prefill_passes(model=model))
    assert program.level == Level.FUSED
    assert_shapes(program.graph)
    return program, lowered(program)


def keys(model: str, text: list[int]) -> list[Tensor]:
    """What the model's own cache holds behind a text, by layer."""
    tokens = torch.tensor([text])
    source = pair().target if model == "target" else pair().drafter
    with torch.no_grad():
        cache = source(input_ids=tokens, use_cache=True).past_key_values
    return [part for layer in cache.layers for part in (layer.keys, layer.values)]


@pytest.mark.parametrize("model", ["target", "drafter"])
def test_caches_equal_the_models_own(model: str) -> None:
    """Two chunks, the second one padded."""
    program, run = prefill(model)
    assert set(program.values) == {"next", *(f"{model}_{kind}_{layer}" for layer in (0, 1) for kind in "kv")}
    text = prompt(CHUNK + 5)
    state = {name: torch.zeros_like(value) for name, value in example_inputs(program).items()}
    for start in (0, CHUNK):
        part = text[start : start + CHUNK]
        tokens = torch.tensor([part + [0] * (CHUNK - len(part))])
        bucket = torch.zeros(max(2, start), dtype=torch.uint8)
        out = run(state, tokens=tokens, start=torch.tensor([start]), bucket=bucket)
        assert out.pop("next").tolist() == [start + CHUNK]
        state.update(out)
    expected = keys(model, text)
    for index, name in enumerate(f"{model}_{kind}_{layer}" for layer in (0, 1) for kind in "kv"):
        torch.testing.assert_close(state[name][:, :, : len(text)], expected[index], rtol=0, atol=2e-5)


def test_only_its_own_model_is_in_the_graph() -> None:
    program, _ = prefill("drafter")
    names = [str(n.target) for n in program.graph.find_nodes(op="placeholder")]
    assert not [n for n in names if n.startswith("target")]
    assert not [n for n in program.weight_names() if n.startswith("target")]


def test_level_changes_and_nothing_else_is_asked_for() -> None:
    program = fresh(pair(), name="prefill_target", own_store=True)
    assert _run_one(program, InlinePrefill(model="target")) == 1
    assert {str(n.target) for n in program.graph.find_nodes(op="placeholder")} >= {"tokens", "start"}
    assert program.level == Level.FUSED and len(program.blocks) == 1 and len(program.blocks[0].markers) == 2
    assert built(program).inputs["tokens"].shape == (1, CHUNK)
