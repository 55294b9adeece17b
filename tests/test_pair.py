"""The target and what drafts for it: read, matched, measured against each other, and cut to what they can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import checkpoints
from helpers.decoding import prompt
from helpers.heard import Heard
from helpers.models import save_tiny, tiny_model

from specc.capture import FeatureDrafter
from specc.config import CompileConfig, DraftConfig
from specc.errors import CaptureError, ConfigError
from specc.keys import engine_key
from specc.manifest import ModelSpec
from specc.pair import (
    Pair,
    capture_pair,
    choose_context,
    cut_to_heads,
    digests,
    load_pair,
    model_spec,
    note_positions,
)
from specc.progress import Report
from specc.tree import DraftTree

TEXT = torch.tensor([prompt(12)])


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`target`, a whole `model`, and drafters of each kind."""
    folder = tmp_path_factory.mktemp("pairs")
    target = tiny_model(num_hidden_layers=3)
    save_tiny(folder / "target", model=target)
    save_tiny(folder / "model", seed=4, max_position_embeddings=100)
    checkpoints.save(folder / "eagle", *checkpoints.eagle(target))
    checkpoints.save(folder / "eagle3", *checkpoints.eagle3(target, draft_vocab=80))
    checkpoints.save(folder / "medusa", *checkpoints.medusa(target), "medusa_lm_head.pt")
    return folder


def config(folders: Path, drafter: str, **draft: Any) -> CompileConfig:
    kind, _, name = drafter.rpartition(":")
    given = f"{kind}:{folders / name}" if kind else str(folders / name)
    made = DraftConfig(**draft)
    return CompileConfig(
        target=str(folders / "target"), drafter=given, output=str(folders / "engine"), draft=made, backend="eager"
    )


@pytest.fixture(scope="module")
def pairs(folders: Path) -> Iterator[dict[str, Pair]]:
    names = ("model", "eagle:eagle", "eagle3:eagle3", "medusa:medusa")
    yield {name.rpartition(":")[2]: load_pair(config(folders, name), [], Report(True)) for name in names}


def test_draft_logits_are_those_of_the_first_draft(pairs: dict[str, Pair]) -> None:
    target = tiny_model(num_hidden_layers=3)
    with torch.no_grad():
        model = tiny_model(4, max_position_embeddings=100)(TEXT).logits[0]
        hidden = target.model(TEXT).last_hidden_state
    assert torch.allclose(pairs["model"].draft_logits(TEXT), model, atol=1e-5)
    for kind in ("eagle", "eagle3", "medusa"):
        found, drafter = pairs[kind].draft_logits(TEXT), pairs[kind].drafter
        assert isinstance(drafter, FeatureDrafter)
        assert found.shape == (12, 128) and found.dtype == torch.float32
        if kind == "eagle":
            wanted = drafter.module(TEXT[:, 1:], torch.arange(11)[None], hidden[:, :-1])[0][0]
            assert torch.allclose(found[1:], wanted, atol=1e-4)
        elif kind == "medusa":
            assert torch.allclose(found[1:], drafter.module.heads[0](hidden[0, :-1]), atol=1e-4)
        else:
            assert drafter.column_of is not None
            assert torch.equal(found[1:].isinf(), (drafter.column_of < 0).expand(11, -1))


def test_bytes_count_what_is_shared_once(pairs: dict[str, Pair]) -> None:
    target = sum(p.nbytes for p in tiny_model(num_hidden_layers=3).parameters())
    for kind in ("eagle", "eagle3"):
        drafter = pairs[kind].drafter
        assert isinstance(drafter, FeatureDrafter)
        assert target < pairs[kind].bytes() < target + 5 * drafter.parameters
    own = sum(p.nbytes for p in tiny_model(4).parameters())
    assert pairs["model"].bytes() == target + own


def test_vocabularies_that_differ_are_told(folders: Path) -> None:
    heard = Heard()
    load_pair(config(folders, "eagle3:eagle3"), [], heard)
    assert "80 of the target's 128 ids (62%) can be drafted, by a drafter of 80 ids" in heard.text


def test_a_narrower_vocabulary(folders: Path) -> None:
    heard = Heard()
    pair = load_pair(config(folders, "eagle3:eagle3", draft_vocab="40"), ["the sea", "a cat"], heard)
    record = pair.vocabulary.record()
    assert record["drafter_ids"] == 80 and 5 < record["draftable"] <= 40
    assert "draft vocabulary: " in heard.text


def test_notes_of_the_drafter_are_told(folders: Path, tmp_path: Path) -> None:
    made, tensors = checkpoints.eagle(tiny_model(num_hidden_layers=3))
    checkpoints.save(tmp_path, {**made, "rope_theta": 5e5}, tensors)
    heard = Heard()
    load_pair(CompileConfig(target=str(folders / "target"), drafter=f"eagle:{tmp_path}", output="e"), [], heard)
    assert "note: the drafter's rotary rope_theta is 500000.0" in heard.text


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa"])
def test_another_kind_given_as_a_whole_model(folders: Path, kind: str) -> None:
    given = config(folders, kind)
    with pytest.raises(CaptureError) as caught:
        digests(given)
        load_pair(given, [], Report(True))
    assert f"and not a whole model; type {kind}:{folders / kind} for {folders / kind}" in str(caught.value)


def test_a_whole_model_that_is_damaged_stays_one(folders: Path, tmp_path: Path) -> None:
    save_tiny(tmp_path / "model")
    (tmp_path / "model" / "tokenizer.json").unlink()
    given = CompileConfig(target=str(folders / "target"), drafter=str(tmp_path / "model"), output="e")
    with pytest.raises(CaptureError, match="tokenizer"):
        load_pair(given, [], Report(True))


@pytest.mark.parametrize("name", ["eagle:eagle", "medusa:medusa"])
def test_the_key_follows_the_drafters_files(folders: Path, name: str) -> None:
    given, folder = config(folders, name), folders / name.rpartition(":")[2]
    before = engine_key(given, digests(given))
    (folder / "README.md").write_text("not read")
    assert engine_key(given, digests(given)) == before
    path = next(p for p in folder.iterdir() if p.suffix in (".safetensors", ".pt"))
    content = path.read_bytes()
    path.write_bytes(content[:99] + b"?" + content[100:])
    after = engine_key(given, digests(given))
    path.write_bytes(content)
    assert after != before == engine_key(given, digests(given))
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert engine_key(given, digests(given)) != before


def test_models_are_captured_for_one_row_and_for_all(pairs: dict[str, Pair]) -> None:
    found = capture_pair(pairs["eagle3"], 2, Report(True))
    assert sorted(found) == [1, 2]
    for rows, models in found.items():
        target, drafter = models["target"], models["drafter"]
        assert (target.features, drafter.features) == (32, 32) and drafter.column_of
        placeholders = [str(n.target) for n in drafter.graph.find_nodes(op="placeholder")]
        assert placeholders == ["tokens", "positions", "hidden"]
        assert next(iter(drafter.graph.nodes)).meta["val"].shape[0] == rows


def test_what_an_engine_says_of_a_drafter(pairs: dict[str, Pair]) -> None:
    spec = model_spec(pairs["eagle3"].drafter, capture_pair(pairs["eagle3"], 1, Report(True))[1]["drafter"])  # type: ignore[arg-type]
    assert isinstance(spec, ModelSpec)
    assert (spec.architecture, spec.layers, spec.taps, spec.max_positions) == ("Eagle3", 1, (0, 1, 2), 512)
    drafter = pairs["eagle3"].drafter
    assert isinstance(drafter, FeatureDrafter) and spec.parameters == drafter.parameters


def test_context(folders: Path, pairs: dict[str, Pair]) -> None:
    given = config(folders, "model")
    assert choose_context(given, pairs["model"]) == 512  # the target's: the drafter drafts as far as it goes
    heard = Heard()
    note_positions(pairs["model"], 512, heard)
    assert "made for texts of 100 tokens and the context is 512: beyond 100 texts go on with plain steps" in heard.text
    quiet = Heard()
    note_positions(pairs["model"], 100, quiet)
    note_positions(pairs["medusa"], 512, quiet)
    assert not quiet.text
    with pytest.raises(ConfigError, match="--context 600 is more than the target's 512 positions; use --context 512"):
        choose_context(CompileConfig(target="t", drafter="d", output="o", context=600), pairs["model"])


def test_trees_are_cut_to_the_heads(folders: Path, pairs: dict[str, Pair]) -> None:
    heard = Heard()
    given = config(folders, "medusa:medusa", tree="medusa_63", ladder="1,6")
    shapes = cut_to_heads(given, pairs["medusa"], heard).draft.shapes()
    assert [tree.depth for tree in shapes] == [3, 1, 3] and len(shapes[0]) == 62
    assert "the drafter has 3 heads: drafts of 6 levels are cut to 3" in heard.text
    chain = cut_to_heads(config(folders, "medusa:medusa", draft_length=5), pairs["medusa"], heard)
    assert chain.draft.shapes() == (DraftTree.chain(3),)
    fits = config(folders, "medusa:medusa", tree="2,2")
    tuned = cut_to_heads(config(folders, "medusa:medusa", tune=True, ladder="7"), pairs["medusa"], heard)
    assert tuned.draft.tune and tuned.draft.tree is None and tuned.draft.ladder == "3"
    assert cut_to_heads(fits, pairs["medusa"], heard) is fits
    deep = config(folders, "eagle:eagle", draft_length=9)
    assert cut_to_heads(deep, pairs["eagle"], heard) is deep


@pytest.mark.parametrize(
    "drafter, told", [("medusa:x", "says all levels at once"), ("ngram", "finds no scores to grow")]
)
def test_a_tree_that_grows_needs_a_drafter_that_is_run_level_by_level(drafter: str, told: str) -> None:
    with pytest.raises(ConfigError, match=f"{told}.*give widths"):
        CompileConfig(target="t", drafter=drafter, output="o", draft=DraftConfig(tree="dynamic:8,3,3"))
