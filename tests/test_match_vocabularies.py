"""Tokens of two tokenizers, matched by what they stand for; and engines whose drafter has ids of its own."""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers import oracle
from helpers.models import MERGES, save_tiny, tiny_drafter, tiny_model, tiny_tokenizer
from helpers.vocabularies import renamed, reordered, sentencepiece
from tokenizers import AddedToken, Tokenizer, models
from transformers import PreTrainedTokenizerFast

import specc
from specc.bench.transformers_models import Transformers
from specc.capture import match_vocabularies
from specc.draft_vocabulary import DraftVocabulary, describe
from specc.errors import TokenizerError
from specc.inspect import inspect
from specc.manifest import EngineManifest

ORDER = torch.randperm(128, generator=torch.Generator().manual_seed(4)).tolist()
PROMPT = "the rain in the north is of another kind"


def loaded(tokenizer: Any, source: str = "folder") -> Any:
    return SimpleNamespace(tokenizer=tokenizer, source=source)


def match(target: Any, drafter: Any) -> DraftVocabulary:
    return match_vocabularies(loaded(target, "T"), loaded(drafter, "D"))


def test_equal_tokenizers_need_no_maps() -> None:
    found = match(tiny_tokenizer(), tiny_tokenizer())
    assert found.fed_as is found.column_of is None
    assert found.record() == {} and describe({}) == ""


def test_same_strings_under_other_ids() -> None:
    found = match(tiny_tokenizer(), reordered(tiny_tokenizer(), ORDER))
    assert found.fed_as.tolist() == found.column_of.tolist() == ORDER
    assert found.record() == {"target_ids": 128, "drafter_ids": 128, "draftable": 128}


def test_overlap_of_byte_level_vocabularies() -> None:
    """One renamed merge: its token cannot be drafted, and is fed as the last of its letters."""
    target, drafter = tiny_tokenizer(), tiny_tokenizer(th="zz")
    th, h = target.convert_tokens_to_ids(["th", "h"])
    found = match(target, drafter)
    expected = list(range(128))
    expected[th] = -1
    assert found.column_of.tolist() == expected
    expected[th] = h
    assert found.fed_as.tolist() == expected


@functools.cache
def spelled_otherwise() -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    """A byte-level target, and a sentencepiece drafter of letters, two of the merges and some words of its own."""
    letters = [chr(c) for c in range(33, 127)]
    return tiny_tokenizer(), sentencepiece(["▁", *letters, "th", "in", "▁whale", "é"], [("t", "h"), ("i", "n")])


def test_byte_level_and_sentencepiece_meet_in_bytes() -> None:
    target, drafter = spelled_otherwise()
    found = match(target, drafter)
    name = {i: token for token, i in drafter.get_vocab().items()}
    ours = {token: found.column_of[i].item() for token, i in target.get_vocab().items()}
    drafted = {token: name[column] for token, column in ours.items() if column >= 0}
    assert drafted["Ġ"] == "▁" and drafted["th"] == "th" and drafted["a"] == "a" and drafted["Ċ"] == "<0x0A>"
    assert drafted["Ã"] == "<0xC3>"  # the first byte of é: a letter where a byte's piece is not
    assert drafted["<|im_end|>"] == "</s>" and drafted["<|im_start|>"] == "<s>"  # by role
    assert "he" not in drafted and "<|endoftext|>" not in drafted
    assert len(set(drafted.values())) == len(drafted)
    fed_as = {token: name[found.fed_as[i].item()] for token, i in target.get_vocab().items()}
    assert {token: fed_as[token] for token in drafted} == drafted
    assert (fed_as["he"], fed_as["er"], fed_as["<|endoftext|>"]) == ("e", "r", ">")


def test_sentencepiece_target_keeps_letters_and_bytes_apart() -> None:
    """`A` and `<0x41>` stand for one byte: a byte-level drafter has one token for it, and the piece gets it."""
    drafter, target = spelled_otherwise()
    found = match(target, drafter)
    letter, byte = target.convert_tokens_to_ids(["A", "<0x41>"])
    (own,) = drafter.convert_tokens_to_ids(["A"])
    assert found.column_of[letter] == own and found.column_of[byte] == -1
    whale, e = target.convert_tokens_to_ids(["▁whale", "é"])
    assert found.column_of[whale] == -1 and found.fed_as[whale] == drafter.convert_tokens_to_ids("e")
    assert found.column_of[e] == -1 and found.fed_as[e] == drafter("é").input_ids[-1]


def test_broken_characters_are_fed_by_their_last_byte() -> None:
    """A token of two bytes of a character that takes four, which the drafter lacks."""
    target = tiny_tokenizer(al="ðŁ")
    found = match(target, tiny_tokenizer())
    index = target.convert_tokens_to_ids("ðŁ")
    assert found.column_of[index] == -1
    assert found.fed_as[index] == tiny_tokenizer().convert_tokens_to_ids("Ł")


def test_too_little_in_common() -> None:
    """Two letters of 128: refused, with the share and both sizes."""
    few = Tokenizer(models.BPE({"<unk>": 0, "Ġ": 1, "a": 2, "xyz": 3}, []))
    few.decoder = tiny_tokenizer().backend_tokenizer.decoder
    few.add_special_tokens([AddedToken("<unk>", special=True)])
    drafter = PreTrainedTokenizerFast(tokenizer_object=few, unk_token="<unk>")
    expected = r"share 2 tokens, 1.6% of the target's: target T has 128 ids, drafter D has 4.*needs 10%.*or 'ngram'"
    with pytest.raises(TokenizerError, match=expected):
        match(tiny_tokenizer(), drafter)


def test_names_where_a_decoder_sees_more_than_a_token() -> None:
    """Without a decoder nobody knows what a token spells: equal names are equal tokens."""
    bare = Tokenizer(models.BPE({name: i for i, name in enumerate(["x", *MERGES, *"abcdefgh"])}, []))
    other = Tokenizer(models.BPE({name: i for i, name in enumerate([*MERGES, "y", *"abcdefgh"])}, []))
    found = match(*(PreTrainedTokenizerFast(tokenizer_object=core) for core in (bare, other)))
    assert found.column_of.tolist() == [-1, *range(len(MERGES)), *range(len(MERGES) + 1, len(MERGES) + 9)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A target, a drafter, and the same drafter under other ids and with ids and tokens of its own."""
    root, target = tmp_path_factory.mktemp("vocabularies"), tiny_model()
    drafter = tiny_drafter(target, 0.03)
    made = {name: root / name for name in ("target", "same", "other", "overlap")}
    save_tiny(made["target"], model=target)
    save_tiny(made["same"], model=drafter)
    save_tiny(made["other"], model=renamed(drafter, torch.tensor(ORDER), 144))
    reordered(tiny_tokenizer(), ORDER).save_pretrained(made["other"])
    save_tiny(made["overlap"], model=renamed(drafter, torch.tensor(ORDER), 144))
    reordered(tiny_tokenizer(th="xq", Q="¡"), ORDER).save_pretrained(made["overlap"])
    return made


OPTIONS: dict[str, Any] = {"backend": "eager", "context": 120, "chunk": 16, "fixed": True}


@pytest.fixture(scope="module")
def engines(folders: dict[str, Path]) -> dict[str, Path]:
    """An engine for each drafter; none has times of its own, so each drafts at every step."""
    return {
        name: specc.compile(folders["target"], folders[name], folders[name].with_suffix(".engine"), **OPTIONS)
        for name in ("same", "other", "overlap")
    }


def test_engines(engines: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """Text and acceptance are those of the drafter under the target's ids; what is mapped is said and recorded."""
    loaded = {name: specc.load(path) for name, path in engines.items()}
    ids = loaded["same"].text.encode(PROMPT)
    results = {
        (name, temperature): one.generate(ids, max_new_tokens=40, temperature=temperature, seed=3, eos_token_id=())
        for name, one in loaded.items()
        for temperature in (0.0, 0.9)
    }
    text = oracle.greedy_text(tiny_model(), ids, 40)
    for (name, temperature), result in results.items():
        like = results["same", temperature]
        assert result.token_ids == (text if temperature == 0 else like.token_ids), name
        assert result.stats.accepted == like.stats.accepted if name == "other" else result.stats.accepted > 0
    manifests = {name: EngineManifest.read(path) for name, path in engines.items()}
    assert manifests["same"].draft_vocabulary == {}
    assert manifests["other"].draft_vocabulary == {"target_ids": 128, "drafter_ids": 128, "draftable": 128}
    assert manifests["overlap"].draft_vocabulary["draftable"] == 126
    assisted = Transformers(manifests["other"]).assisted(ids, 12)  # what the bench compares with goes by texts
    assert assisted.tokens == text[:12]
    inspect(str(engines["overlap"]))
    shown = " ".join(capsys.readouterr().out.split())
    assert "126 of the target's 128 ids (98%) can be drafted, by a drafter of 128 ids" in shown


def test_tune_reads_the_same_acceptance(folders: dict[str, Path], tmp_path: Path) -> None:
    made = [
        specc.compile(folders["target"], folders[name], tmp_path / name, tune=True, **OPTIONS)
        for name in ("same", "other")
    ]
    same, other = (EngineManifest.read(path).config["tuned"] for path in made)
    assert same["child_acceptance"] == other["child_acceptance"]
    assert same["child_acceptance"][0] > 0.3
