"""Decoder families of transformers, reduced and random: captured text is the model's own, or the reason is given."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from specc.capture import capture
from specc.capture.proof import CachedRun, compare_decoding, reduced_text
from specc.errors import CaptureError

FEW_EXPERTS = {"num_experts": 8}
TWO_KINDS = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
CAPTURED: dict[str, dict[str, Any]] = {
    "apertus": {},
    "arcee": {},
    "biogpt": {},
    "bitnet": {},
    "codegen": {"n_embd": 256, "n_head": 4, "rotary_dim": 16},
    "cohere": {},
    "cohere2": TWO_KINDS,
    "deepseek_v2": {"topk_method": "greedy", "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1},
    "deepseek_v3": {"n_routed_experts": 16, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1},
    "ernie4_5": {},
    "exaone4": TWO_KINDS,
    "gemma": {},
    "gemma2": {},
    "gemma3_text": TWO_KINDS,
    "glm": {},
    "glm4": {},
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gpt_oss": {"num_local_experts": 8},
    "gptj": {"n_embd": 256, "n_head": 4, "rotary_dim": 16},
    "granite": {},
    "granitemoe": {},
    "helium": {},
    "hunyuan_v1_dense": {"head_dim": 64, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
    "jetmoe": {"num_local_experts": 4, "num_hidden_layers": 2},
    "llama": {},
    "mistral": {},
    "mixtral": {"sliding_window": 4096},
    "nemotron": {},
    "olmo": {},
    "olmo2": {},
    "olmo3": TWO_KINDS,
    "olmoe": FEW_EXPERTS,
    "opt": {},
    "persimmon": {},
    "phi": {},
    "phi3": {},
    "phimoe": {"num_local_experts": 4},
    "qwen2": {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1, "num_hidden_layers": 2},
    "qwen2_moe": FEW_EXPERTS,
    "qwen3": {},
    "qwen3_moe": FEW_EXPERTS,
    "seed_oss": {},
    "smollm3": {"num_hidden_layers": 2, "no_rope_layers": [1, 0]},
    "stablelm": {},
    "starcoder2": {},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "bloom": ({}, "attention code of its own"),
    "diffllama": ({}, "2 layers, and they attend 4 times"),
    "falcon": ({}, "attention code of its own"),
    "gpt_neo": ({}, "attention code of its own"),
    "lfm2": ({"layer_types": ["conv", "full_attention"] * 2, "num_hidden_layers": 4}, r"conv, full_attention"),
    "mamba": ({"num_hidden_layers": 2, "hidden_size": 64}, "free number of tokens"),
    "minimax": ({"num_hidden_layers": 2, "num_local_experts": 4}, "linear_attention"),
    "mpt": ({}, "attention code of its own"),
}
ROTARY: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "longrope": {
        "short_factor": [1.1] * 16,
        "long_factor": [4.0] * 16,
        "factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 8192},
}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny products are slower on several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("family", CAPTURED)
def test_decodes_as_its_own_generate(family: str) -> None:
    small, text, prompt = reduced(AutoConfig.for_model(family, **CAPTURED[family]))
    assert len(set(text[0, prompt:].tolist())) >= 8
    model = capture(small, name="target")
    assert greedy(model, text[:, :prompt], text.shape[1] - prompt) == text[0].tolist()


@pytest.mark.parametrize("family", REFUSED)
def test_refused_with_the_reason(family: str) -> None:
    options, reason = REFUSED[family]
    with pytest.raises(CaptureError, match=reason):
        small, text, prompt = reduced(AutoConfig.for_model(family, **options))
        compare_decoding(small, capture(small, name="target"), text, prompt, family)


@pytest.mark.parametrize("kind", ROTARY)
def test_scaled_rotary_positions(kind: str) -> None:
    rope = {"rope_type": kind, "rope_theta": 1e4, **ROTARY[kind]}
    config = AutoConfig.for_model("llama", hidden_size=128, num_attention_heads=4, rope_parameters=rope)
    small, text, prompt = reduced(config)
    model = capture(small, name="target")
    assert greedy(model, text[:, :prompt], text.shape[1] - prompt) == text[0].tolist()
    assert model.max_positions == (256 if kind == "longrope" else 512)


def test_dynamic_rotary_positions_are_refused() -> None:
    config = AutoConfig.for_model("llama", rope_parameters={"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0})
    small, _, _ = reduced(config)
    with pytest.raises(CaptureError, match="dynamically.*config.json"):
        capture(small, name="target")


def test_windows_are_those_of_the_layers() -> None:
    small, _, _ = reduced(AutoConfig.for_model("gemma2"))
    markers = capture(small, name="target").graph.find_nodes(op="call_function", target=torch.ops.specc.attend.default)
    assert [marker.args[3] for marker in markers] == [0, 1]
    assert [marker.args[5] for marker in markers] == [8, None]
    assert all(marker.args[6] == small.config.attn_logit_softcapping for marker in markers)


def reduced(config: Any) -> tuple[Any, torch.Tensor, int]:
    return reduced_text(config, AutoModelForCausalLM._model_mapping[type(config)])


def greedy(model: Any, prompt: torch.Tensor, tokens: int) -> list[int]:
    """Greedy text of a captured graph, one token a block after the prompt."""
    cached, text = CachedRun(model), prompt
    with torch.no_grad():
        logits = cached.block(prompt)
        for _ in range(tokens):
            text = torch.cat([text, logits[:, -1:].argmax(-1)], 1)
            logits = cached.block(text[:, -1:])
    return text[0].tolist()
