"""A tiny model as a GGUF file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .models import MERGES, tiny_tokenizer


def write_gguf(path: Path, model: Any) -> None:
    """A tiny Llama as llama.cpp's converter writes it (rows of q and k interleaved)."""
    import gguf

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
