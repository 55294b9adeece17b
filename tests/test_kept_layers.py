"""Layers of the target as drafter: what they draft over its caches, and that nothing of them is stored twice."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.decoding import Built, Pair, Session, decode, fresh, loaded, lowered, prompt
from helpers.models import save_tiny, tiny_model
from safetensors.torch import load_file
from transformers import DynamicCache, Qwen3Config, Qwen3ForCausalLM

import specc
from specc.capture import capture, kept_layers
from specc.drafter import parse_drafter
from specc.errors import ConfigError
from specc.passes import step_passes
from specc.passes.inline_verify import InlineVerify
from specc.tree import DraftTree, DynamicTree

CHAIN = DraftTree.chain(3)
ODD = DraftTree.from_paths([(0,), (1,), (2,), (0, 0), (2, 0), (2, 1), (2, 1, 0)])
GROWN = DynamicTree.of(8, 3, 3)
FIRST, SKIPPED = (0, 1), (0, 2)
PROMPT = [1, 40, 50, 60, 70, 33, 90]


@functools.cache
def own_layers(kept: tuple[int, ...]) -> Pair:
    """A tiny target of three layers and those of its layers."""
    target = tiny_model(num_hidden_layers=3)
    return Pair(target, kept_layers(loaded(target), kept).model, kept=kept)


@torch.no_grad()
def reference(models: Pair, text: Sequence[int], paths: Sequence[tuple[int, ...]]) -> list[int]:
    """Tokens of the tree behind `text`: the kept layers over what the whole target's cache holds of them."""
    whole = DynamicCache()
    models.target(torch.tensor([text[:-1]]), past_key_values=whole, use_cache=True)
    tokens: dict[tuple[int, ...], int] = {(): text[-1]}
    for path in paths[1:]:
        cache = DynamicCache()
        for index, layer in enumerate(models.kept):
            cache.update(whole.layers[layer].keys, whole.layers[layer].values, index)
        ids = [tokens[path[:size]] for size in range(len(path))]
        logits = models.drafter(torch.tensor([ids]), past_key_values=cache, use_cache=True).logits[0, -1]
        tokens[path] = int(logits.topk(8).indices[path[-1]])
    return [tokens[path] for path in paths]


@functools.cache
def drafting(kept: tuple[int, ...], tree: DraftTree) -> Built:
    """The part of a step that drafts."""
    program = fresh(own_layers(kept), own_store=True)
    for pass_ in step_passes(tree=tree, rule="greedy", drafter=parse_drafter("self:1")):
        if isinstance(pass_, InlineVerify):
            break
        pass_.run(program)
    return lowered(program)


@pytest.mark.parametrize("kept, tree", [(FIRST, CHAIN), (SKIPPED, ODD)], ids=["first, chain", "skipped, odd"])
def test_every_step_drafts_over_the_targets_caches(kept: tuple[int, ...], tree: DraftTree) -> None:
    models = own_layers(kept)
    session = Session(models, tree=tree).start([prompt(19)], new=24)
    assert not session.has_drafter
    run = drafting(kept, tree)
    for plain in (False, True, True, True, True, True, False, False):
        got = run({**run.inputs, **session.state}, bucket=torch.zeros(90, dtype=torch.uint8))
        assert got["tokens"][0].tolist() == reference(models, session.texts[0], tree.paths)
        assert bool(got["valid"][0, 1:].all())
        session.step(plain)


@pytest.mark.parametrize(
    "kept, tree, rule",
    [(FIRST, CHAIN, "greedy"), (SKIPPED, ODD, "greedy"), (FIRST, ODD, "coupled"), (SKIPPED, GROWN, "coupled")],
    ids=["first, chain, greedy", "skipped, odd, greedy", "first, odd, coupled", "skipped, grown, coupled"],
)
def test_the_text_is_the_targets(kept: tuple[int, ...], tree: DraftTree, rule: str) -> None:
    models = own_layers(kept)
    request: dict[str, Any] = {"new": 30, "seeds": [3], "temperature": 0.7}
    plain = decode(prompt(9), models=models, rule=rule, **request)
    assert decode(prompt(9), models=models, tree=tree, rule=rule, **request) == plain
    assert len(set(plain)) > 5


def test_one_token_is_enough() -> None:
    models = own_layers(FIRST)
    session = Session(models, tree=CHAIN).start([[7]], new=12)
    assert session.run()[0] == oracle.greedy_text(models.target, [7], 12)
    assert session.stats["offered"] == 3 * session.stats["steps"]


def test_windows_follow_their_layers() -> None:
    sizes = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "head_dim": 8}
    kinds = ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]
    config = Qwen3Config(
        **sizes,
        num_key_value_heads=2,
        num_hidden_layers=4,
        use_sliding_window=True,
        sliding_window=8,
        layer_types=kinds,
    )
    target = Qwen3ForCausalLM(config).eval()
    shorter = kept_layers(loaded(target), (1, 2)).model
    assert shorter.config.layer_types == kinds[1:3] and target.config.layer_types == kinds
    graph = capture(shorter, name="drafter").graph
    markers = graph.find_nodes(op="call_function", target=torch.ops.specc.attend.default)
    assert [(*marker.args[5:6], None)[0] for marker in markers] == [8, None]
    assert len(target.model.layers) == 4


def test_layers_that_are_not_there_and_all_of_them() -> None:
    target = loaded(tiny_model(num_hidden_layers=4))
    with pytest.raises(ConfigError, match=r"layer 4 was asked for and the target has layers 0 to 3; try self:2"):
        kept_layers(target, (0, 4))
    with pytest.raises(ConfigError, match=r"all 4 layers of the target are kept.*try self:2"):
        kept_layers(target, (0, 1, 2, 3))


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Engines that draft with a layer of the target and by lookup."""
    folder = tmp_path_factory.mktemp("kept")
    target = save_tiny(folder / "t")
    options: dict[str, Any] = {"backend": "eager", "context": 80, "chunk": 16, "fixed": True}
    own, lookup = (specc.compile(target, drafter, folder / drafter[:4], **options) for drafter in ("self:1", "ngram"))
    return own, lookup


def test_nothing_is_stored_twice(engines: tuple[Path, Path]) -> None:
    own, lookup = (load_file(folder / "weights.safetensors") for folder in engines)
    assert not [name for name in own if name.startswith("drafter")]
    size, least = (sum(tensor.nbytes for tensor in found.values()) for found in (own, lookup))
    assert size < least + 2000  # masks
    manifest = specc.load(engines[0]).manifest
    assert not [spec.name for spec in manifest.tensors if spec.name.startswith("drafter")]
    assert "prefill_drafter" not in manifest.programs
    assert manifest.drafter is not None and manifest.drafter.layers == 1


def test_an_engine_writes_the_targets_text(engines: tuple[Path, Path]) -> None:
    engine, other = (specc.load(folder) for folder in engines)
    for sampling in ({}, {"temperature": 0.9, "seed": 4}):
        options: dict[str, Any] = {"max_new_tokens": 30, "eos_token_id": (), **sampling}
        plain = engine.generate(PROMPT, draft_length=0, **options).token_ids
        fast = engine.generate(PROMPT, **options)
        assert fast.token_ids == plain == other.generate(PROMPT, **options).token_ids
        assert 0 < fast.stats.drafted
    head = engine.generate(PROMPT, max_new_tokens=12, eos_token_id=()).token_ids
    engine.truncate(len(PROMPT) + 5)
    assert engine.resume(max_new_tokens=7, eos_token_id=()).token_ids == head[5:]
