"""`--draft-vocab`: which ids are kept, the head without the others, and engines that draft from what is left."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from helpers import oracle
from helpers.by_hand import hand_model, op
from helpers.decoding import Pair, Session, pair, prompt
from helpers.exact import K3, SAMPLING, TREES, greedy
from helpers.models import save_tiny, tiny_drafter, tiny_model, tiny_tokenizer
from torch import Tensor

import specc
from specc.capture import capture
from specc.config import CompileConfig, DraftConfig
from specc.draft_head import cut_head
from specc.draft_ids import draft_ids, frequent_ids, ids_digest, read_ids
from specc.draft_vocabulary import DraftVocabulary
from specc.errors import ConfigError
from specc.inspect import weight_bytes
from specc.manifest import EngineManifest
from specc.program import Model

KEPT = [2, 5, 7, 8, 40, 41, 42, *range(60, 100), 127]


def run(model: Model, tokens: Tensor) -> Tensor:
    positions = torch.arange(tokens.shape[1])[None]
    return model.module()(tokens, positions)[0]


@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "phi"])
def test_logits_are_those_of_the_kept_columns(family: str, tied: bool) -> None:
    """Scaled and capped behind the head (gemma2), with a bias (phi); the embedding stays whole."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"vocab_size": 128, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 64, "pad_token_id": 0}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, tie_word_embeddings=tied, **sizes, **heads)
    whole = capture(AutoModelForCausalLM.from_config(config).eval(), name="drafter")
    kept = torch.tensor(KEPT)
    less = cut_head(whole, kept)
    tokens = torch.tensor([prompt(9)])
    found, expected = run(less, tokens), run(whole, tokens)[..., kept]
    assert found.shape == (1, 9, len(KEPT))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    rows = sorted(w.shape[0] for name, w in less.weights.items() if ("embed" in name or "head" in name) and w.ndim == 2)
    assert rows == [len(KEPT), 128]
    assert run(whole, tokens).shape[-1] == 128  # the model that was given is left alone


def test_a_head_that_is_no_product_is_refused() -> None:
    program = hand_model(lambda p, tokens, positions: op(p, torch.ops.aten.relu.default, tokens))
    with pytest.raises(ConfigError, match=r"logits of target come from .*only a head that is one matrix product"):
        cut_head(program.models["target"], torch.tensor([1]))


def narrowed(ids: list[int], shift: int = 0) -> Pair:
    """The near pair, its drafter's head cut to `ids`; `shift` plants a fault in the map."""
    like = pair("near")
    models = Pair(like.target, like.drafter)
    vocabulary = DraftVocabulary().only(ids, 128)
    model = vocabulary.of(capture(like.drafter, name="drafter"))
    if shift:
        columns = model.weights[model.column_of]
        model = model.with_vocabulary(column_of=torch.where(columns < 0, -1, (columns + shift) % len(ids)))
    models.model("target")
    models.captured["drafter", 1] = model
    for name, weight in model.weights.items():
        models.store.add(name, weight)
    return models


@pytest.mark.parametrize("rule, tree", [("greedy", K3), ("coupled", TREES[0])])
def test_text_is_the_targets(rule: str, tree: object) -> None:
    sessions = [
        Session(m, tree=tree, rule=rule).start([prompt()], new=40, **SAMPLING) for m in (pair(), narrowed(KEPT))
    ]
    texts = [session.run() for session in sessions]
    assert texts[0] == texts[1]
    assert 0 < sessions[1].stats["accepted"] < sessions[0].stats["accepted"]


def test_ids_that_the_text_takes_cost_no_acceptance() -> None:
    """All that the target writes here is kept: acceptance is that of the whole head, unless the map is off by one."""
    text = list(greedy(tuple(prompt()), 40))
    rates = []
    for models in (pair(), narrowed(sorted(set(text))), narrowed(sorted(set(text)), shift=1)):
        session = Session(models, tree=K3).start([prompt()], new=40)
        assert session.run()[0] == text
        rates.append(session.stats["accepted"] / session.stats["offered"])
    assert rates[1] >= rates[0] > 0.3
    assert rates[2] < 0.1


def test_maps_of_other_tokenizers_are_cut_as_well() -> None:
    columns = torch.tensor([7, -1, 3, 0, 5])
    found = DraftVocabulary(columns.clamp(min=0), columns, 9).only([0, 1, 3, 4], 5)
    assert found.column_of is not None and found.column_of.tolist() == [7, -1, -1, 0, 5]
    assert found.record() == {"target_ids": 5, "drafter_ids": 9, "draftable": 3}
    model = found.of(capture(pair().drafter, name="drafter"))
    assert model.weights[model.column_of].tolist() == [2, -1, -1, 0, 1]
    assert model.weights["drafter.draft_head.weight"].shape == (3, 32)
    with pytest.raises(ConfigError, match="the drafter has none of these 1 tokens"):
        found.only([2], 5)


def test_frequent_ids() -> None:
    """Ends first, then by count, of equals the lowest, then the lowest that were not seen."""
    texts = [[9, 9, 4], [4, 7, 9, 200]]
    assert frequent_ids(3, texts, [2], 128) == ([2, 9, 4], 3)
    assert frequent_ids(6, texts, [2, 4], 128) == ([2, 4, 9, 7, 0, 1], 4)


def test_draft_ids_say_where_they_come_from() -> None:
    tokenizer = tiny_tokenizer()
    ids, told = draft_ids("20", tokenizer, ["the the the"], (2,), 128)
    assert ids[0] == 2 and len(set(ids)) == 20 and tokenizer.convert_tokens_to_ids("th") in ids
    assert told == "the 20 most frequent ids"
    ids, told = draft_ids("128", tokenizer, [], (2,), 128)
    assert sorted(ids) == list(range(128))
    assert re.fullmatch(r"the 128 most frequent ids \(\d+ stood in the texts, the others are the lowest.*\)", told)
    with pytest.raises(ConfigError, match="--draft-vocab 129: the target has 128 ids"):
        draft_ids("129", tokenizer, [], (2,), 128)


@pytest.mark.parametrize("text", ["[3, 1, 2]", "3\n1\n2\n", "3 1 2"])
def test_files_of_ids(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    assert read_ids(str(path), 4) == [3, 1, 2]
    digest = ids_digest(str(path))
    path.write_text(text.replace("3", "0"))
    assert ids_digest(str(path)) != digest


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1, 4]", r"id 4 is outside the target's 0\.\.3"),
        ("[1, -1]", "id -1 is outside"),
        ("[1, 2, 1]", "id 1 stands there 2 times; list every id once"),
        ("[]", "expected a list of token ids"),
        ("[1.5]", "expected a list of token ids"),
        ("[true]", "expected a list of token ids"),
        ("[[1]]", "expected a list of token ids"),
        ("one two", "neither a number nor a file of ids .*give 8000, say"),
        ("[1,", "neither a number nor a file of ids"),
    ],
)
def test_files_that_are_no_list_of_ids(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "ids"
    path.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_ids(str(path), 4)


def test_a_file_that_is_not_there() -> None:
    for read in (lambda: read_ids("nowhere", 4), lambda: ids_digest("nowhere")):
        with pytest.raises(ConfigError, match="--draft-vocab nowhere: neither a number nor a file of ids"):
            read()


@pytest.mark.parametrize("value", [0, -3, True, 1.5, ""])
def test_numbers_that_are_none(value: object) -> None:
    with pytest.raises(ConfigError, match="--draft-vocab"):
        DraftConfig(draft_vocab=value)  # type: ignore[arg-type]


def test_what_has_no_head_is_refused() -> None:
    with pytest.raises(ConfigError, match="--draft-vocab cuts the head of a drafting model, and ngram has none"):
        CompileConfig(target="t", drafter="ngram", output="o", draft=DraftConfig(draft_vocab=5))


def test_prompts_are_read_for_the_count() -> None:
    assert DraftConfig(draft_vocab=5, prompts="file", fixed=True).prompts == "file"
    with pytest.raises(ConfigError, match="would not be read"):
        DraftConfig(draft_vocab="ids.json", prompts="file", fixed=True)


def test_engine(tmp_path: Path) -> None:
    """A tied drafter: its head is stored cut, its embedding whole; the greedy text is the target's."""
    target = tiny_model()
    drafter = tiny_model(tie_word_embeddings=True)
    drafter.load_state_dict(tiny_drafter(target, 0.02).state_dict())
    drafter.tie_weights()
    for name, model in (("target", target), ("drafter", drafter)):
        save_tiny(tmp_path / name, model=model)
    (tmp_path / "ids.json").write_text(json.dumps(KEPT))
    options = {"backend": "eager", "context": 120, "chunk": 16, "fixed": True}
    wanted = str(tmp_path / "ids.json")
    output = specc.compile(tmp_path / "target", tmp_path / "drafter", tmp_path / "e", draft_vocab=wanted, **options)
    manifest, weights = EngineManifest.read(output), weight_bytes(output)
    assert manifest.draft_vocabulary == {"target_ids": 128, "drafter_ids": 128, "draftable": 48}
    assert weights["drafter.draft_head.weight"][0] == (48, 32)
    assert weights["drafter.model.embed_tokens.weight"][0] == (128, 32)
    engine = specc.load(output)
    ids = engine.text.encode("the sea")
    result = engine.generate(ids, max_new_tokens=30, eos_token_id=())
    assert result.token_ids == oracle.greedy_text(target, ids, 30)
