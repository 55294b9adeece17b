"""Models in: folders, GGUF files and hub ids; tokenizers compared; every wrong path named with what to type."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from helpers.models import MERGES, save_tiny, tiny_drafter, tiny_model, tiny_tokenizer
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from specc.capture import capture, compare_tokenizers, digest_source, load_model, save_text_files
from specc.errors import CaptureError, TokenizerError


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
    assert one.digest == digest_source(str(folder))
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
    assert digest_source(str(same)) == digest_source(str(folder))
    other = save_tiny(tmp_path / "other", seed=1)
    assert digest_source(str(other)) != digest_source(str(folder))


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
        load(folder, "float16")


def test_padded_rows_are_accepted(folder: Path, tmp_path: Path) -> None:
    padded = load(save_tiny(tmp_path, vocab_size=144))
    assert padded.vocab_size == 128
    assert capture(padded, name="drafter").vocab_size == 128
    compare_tokenizers(load(folder), padded)


def test_more_tokens_than_rows(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="100 rows of vocabulary and its tokenizer knows id 100"):
        load(save_tiny(tmp_path, vocab_size=100))


def test_the_first_differing_token_is_named(folder: Path, tmp_path: Path) -> None:
    other = save_tiny(tmp_path / "other", model=tiny_drafter(tiny_model()))
    tiny_tokenizer(th="zz").save_pretrained(other)
    index = tiny_tokenizer().convert_tokens_to_ids("th")
    with pytest.raises(TokenizerError, match=f"id {index}: target .* 'th' .128 ids.* 'zz' .128 ids"):
        compare_tokenizers(load(folder), load(other))


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
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate", reason="transformers reads GGUF files with it")
    path = tmp_path / "tiny.gguf"
    own = tiny_model(tie_word_embeddings=True)
    write_gguf(gguf, path, own)
    one = load(path)
    assert one.eos_token_ids == (2,) and one.chat_template is not None
    assert digest_source(str(path)) == one.digest
    assert one.tokenizer("the other").input_ids == tiny_tokenizer()("the other").input_ids
    tokens = torch.arange(3, 20)[None]
    with torch.no_grad():
        torch.testing.assert_close(one.model(tokens).logits, own(tokens).logits, rtol=0, atol=1e-4)


def write_gguf(gguf, path: Path, model) -> None:
    """A tiny Llama as llama.cpp's converter writes it (rows of q and k interleaved)."""
    config, tokenizer = model.config, tiny_tokenizer()
    out = gguf.GGUFWriter(path, "llama")
    out.add_block_count(config.num_hidden_layers)
    out.add_context_length(config.max_position_embeddings)
    out.add_embedding_length(config.hidden_size)
    out.add_feed_forward_length(config.intermediate_size)
    out.add_head_count(config.num_attention_heads)
    out.add_head_count_kv(config.num_key_value_heads)
    out.add_rope_freq_base(config.rope_parameters["rope_theta"])
    out.add_layer_norm_rms_eps(config.rms_norm_eps)
    out.add_vocab_size(config.vocab_size)
    out.add_tokenizer_model("gpt2")
    out.add_token_list(tokenizer.convert_ids_to_tokens(range(128)))
    out.add_token_types([3 if i < 3 else 1 for i in range(128)])
    out.add_token_merges([f"{m[0]} {m[1]}" for m in MERGES])
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_pad_token_id(0)
    out.add_add_bos_token(False)
    out.add_chat_template(tokenizer.chat_template)
    names = {"q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output"}
    names |= {"gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
    names |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    for name, weight in model.state_dict().items():
        part = name.split(".")
        if name == "lm_head.weight":
            continue
        if part[1] == "layers":
            if part[-2] in ("q_proj", "k_proj"):
                heads = config.num_attention_heads if part[-2] == "q_proj" else config.num_key_value_heads
                weight = weight.view(heads, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
            name = f"blk.{part[2]}.{names[part[-2]]}.weight"
        else:
            name = {"embed_tokens": "token_embd.weight", "norm": "output_norm.weight"}[part[1]]
        out.add_tensor(name, weight.contiguous().numpy())
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
