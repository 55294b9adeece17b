"""Models in: folders, GGUF files and hub ids; tokenizers compared; every wrong path named with what to type."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.gguf_file import write_gguf
from helpers.models import save_tiny, tiny_model, tiny_tokenizer
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

import specc
from specc.capture import capture, digest_source, load_model, match_vocabularies, save_text_files
from specc.errors import CaptureError


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("tiny"))


def load(path: Path | str, dtype: str = "float32"):
    return load_model(str(path), role="target", dtype=dtype)


def test_a_folder(folder: Path) -> None:
    one = load(folder)
    assert one.eos_token_ids == (2,)
    assert (one.vocab_size, one.max_positions, one.architecture) == (128, 512, "LlamaForCausalLM")
    assert one.chat_template is not None and not one.model.training
    assert one.digest == digest_source(str(folder), role="target")
    tokens = torch.arange(3, 20)[None]
    with torch.no_grad():
        assert torch.equal(one.model(tokens).logits, tiny_model()(tokens).logits)


def test_bfloat16(folder: Path) -> None:
    one = load(folder, "bfloat16")
    model = capture(one, name="target")
    assert model.weights["target.lm_head.weight"].dtype == torch.bfloat16
    assert model.graph.output_node().args[0][0].meta["val"].dtype == torch.bfloat16


def test_the_digest_follows_the_content(folder: Path, tmp_path: Path) -> None:
    same = shutil.copytree(folder, tmp_path / "same")
    (same / "README.md").write_text("not read")
    assert digest_source(str(same), role="target") == digest_source(str(folder), role="target")
    other = save_tiny(tmp_path / "other", seed=1)
    assert digest_source(str(other), role="target") != digest_source(str(folder), role="target")


def test_every_end_of_text(tmp_path: Path) -> None:
    model = tiny_model()
    model.generation_config.eos_token_id = [5, 7]
    assert load(save_tiny(tmp_path, model=model)).eos_token_ids == (5, 7, 2)  # 2: tokenizer, and end of a turn


def test_pickled_weights_are_read_as_weights_only(folder: Path, tmp_path: Path) -> None:
    old = shutil.copytree(folder, tmp_path / "old")
    (old / "model.safetensors").unlink()
    torch.save(tiny_model().state_dict(), old / "pytorch_model.bin")
    assert torch.equal(load(old).model.lm_head.weight, tiny_model().lm_head.weight)
    torch.save({"x": Path("code")}, old / "pytorch_model.bin")
    with pytest.raises(CaptureError, match="cannot be loaded"):
        load(old)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nowhere/at/all", "give a folder with config.json"),
        ("model.gguf", "nothing at model.gguf"),
        ("some/id", "hub cannot be reached; give a local folder"),
    ],
)
def test_nothing_there(name: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CaptureError, match=f"target: .*{reason}"):
        load(name)


def test_folders_that_are_no_model(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no config.json in .*expected a transformers folder"):
        load(tmp_path)
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(CaptureError, match=r"give the file: .*m\.gguf"):
        load(tmp_path)
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(CaptureError, match="not a GGUF file"):
        load(tmp_path / "notes.txt")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CaptureError, match="is not JSON"):
        load(tmp_path)
    shutil.copy(folder / "config.json", tmp_path)
    with pytest.raises(CaptureError, match="no .*safetensors weights"):
        load(tmp_path)
    for name in ("model.safetensors", "generation_config.json"):
        shutil.copy(folder / name, tmp_path)
    with pytest.raises(CaptureError, match="no tokenizer can be read"):
        load(tmp_path)


def test_no_causal_language_model(folder: Path, tmp_path: Path) -> None:
    broken = shutil.copytree(folder, tmp_path / "broken")
    config = json.loads((broken / "config.json").read_text())
    for kind in ("vit", "no_such_model"):
        (broken / "config.json").write_text(json.dumps({**config, "model_type": kind, "architectures": None}))
        with pytest.raises(CaptureError, match="target: .*"):
            load(broken)
    with pytest.raises(CaptureError, match="--dtype float32"):
        load(folder, "float64")


def test_padded_rows_are_accepted(folder: Path, tmp_path: Path) -> None:
    padded = load(save_tiny(tmp_path, vocab_size=144))
    assert padded.vocab_size == 128
    assert capture(padded, name="drafter").vocab_size == 128
    assert match_vocabularies(load(folder), padded).record() == {}


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="100 rows of vocabulary and its tokenizer knows id 100"):
        load(save_tiny(tmp_path, vocab_size=100))


def test_text_files_encode_as_transformers_does(folder: Path, tmp_path: Path) -> None:
    one = load(folder)
    core = one.tokenizer.backend_tokenizer
    core.post_processor = TemplateProcessing(single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)])
    core.enable_truncation(4)
    save_text_files(one, tmp_path)
    alone = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for text in ("the other thing in the café costs 3 €", "", "<|im_end|>x"):
        core.no_truncation()
        assert alone.encode(text).ids == one.tokenizer(text).input_ids
        assert alone.encode(text).ids[0] == 1
    text = json.loads((tmp_path / "text.json").read_text())
    assert text["chat_template"] == one.chat_template
    assert text["special_tokens"]["eos_token"] == "<|im_end|>"
    assert (text["eos_token_ids"], text["vocab_size"]) == ([2], 128)


def test_a_gguf_file(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with it")
    path = tmp_path / "tiny.gguf"
    own = tiny_model(tie_word_embeddings=True)
    write_gguf(path, own)
    one = load(path)
    assert one.eos_token_ids == (2,) and one.chat_template is not None
    assert digest_source(str(path), role="target") == one.digest
    assert one.tokenizer("the other").input_ids == tiny_tokenizer()("the other").input_ids
    tokens = torch.arange(3, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(one.model(tokens).logits, own(tokens).logits, rtol=0, atol=1e-4)


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_errors_begin_with_the_role(role: str, tmp_path: Path) -> None:
    """Two models are on their way into an engine: an error about one says which."""
    (tmp_path / "config.json").write_text("[")
    for place in ("nowhere/at/all", str(tmp_path)):
        for read in (digest_source, functools.partial(load_model, dtype="float32")):
            with pytest.raises(CaptureError, match=f"^{role}: "):
                read(place, role=role)
    dynamic = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}
    with pytest.raises(CaptureError, match=f"^{role}: LlamaForCausalLM scales"):
        capture(tiny_model(rope_parameters=dynamic), name=role)


def test_a_compile_names_the_drafter_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="^drafter: nothing at nowhere/at/all"):
        specc.compile(folder, "nowhere/at/all", tmp_path / "e", backend="eager")
