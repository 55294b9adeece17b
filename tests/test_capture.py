"""Capture: a flat graph of aten ops and markers, right for any number of rows, and refused when it is not the model."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from helpers.models import tiny_config, tiny_drafter, tiny_model, tiny_tokenizer
from torch import fx, nn
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaMLP

from specc.capture import LoadedModel, capture, prove
from specc.capture.marker import marker_attention, marker_mask
from specc.capture.proof import compare_decoding, decode_in_blocks, own_text
from specc.errors import CaptureError

ATTEND = torch.ops.specc.attend.default


def loaded(model: Any) -> LoadedModel:
    return LoadedModel(
        model=model,
        tokenizer=tiny_tokenizer(),
        config=model.config,
        eos_token_ids=(2,),
        vocab_size=128,
        max_positions=512,
        source="tiny",
        digest="",
        architecture=type(model).__name__,
        chat_template=None,
    )


def test_the_graph_is_flat_and_typed() -> None:
    model = capture(tiny_model(), name="target")
    ops = {node.op for node in model.graph.nodes}
    assert ops == {"placeholder", "get_attr", "call_function", "output"}
    assert [node.target for node in model.graph.find_nodes(op="placeholder")] == ["tokens", "positions"]
    assert len(model.graph.find_nodes(op="call_function", target=ATTEND)) == 2
    assert all("val" in node.meta for node in model.graph.nodes if node.op != "output")
    assert {str(node.target) for node in model.graph.find_nodes(op="get_attr")} == set(model.weights)
    assert all(name.startswith("target.") for name in model.weights)
    assert not any("assert" in str(node.target) for node in model.graph.nodes)
    (out,) = model.graph.output_node().args[0]
    assert out.meta["val"].shape[2] == 128
    assert (model.vocab_size, model.max_positions) == (128, 512)


@pytest.mark.parametrize("rows", [1, 2, 5, 40])
def test_any_number_of_rows(rows: int) -> None:
    own = tiny_model()
    model = capture(own, name="target")
    tokens = torch.randint(0, 128, (1, rows), generator=torch.Generator().manual_seed(rows))
    with torch.no_grad():
        (logits,) = fx.Interpreter(model.module()).run(tokens, torch.arange(rows)[None])
        torch.testing.assert_close(logits, own(tokens).logits, rtol=0, atol=1e-4)


def test_a_batch_of_rows_with_their_own_positions() -> None:
    own = tiny_model()
    model = capture(own, name="target", batch=3)
    tokens = torch.randint(0, 128, (3, 9), generator=torch.Generator().manual_seed(1))
    positions = torch.tensor([0, 7, 100])[:, None] + torch.arange(9)
    with torch.no_grad():
        (logits,) = model.module()(tokens, positions)
        theirs = own(tokens, position_ids=positions).logits
    torch.testing.assert_close(logits, theirs, rtol=0, atol=1e-4)


def test_tied_weights_have_one_name() -> None:
    tied = capture(tiny_model(tie_word_embeddings=True), name="drafter")
    assert sum(w.shape == (128, 32) for w in tied.weights.values()) == 1
    assert sum(w.shape == (128, 32) for w in capture(tiny_model(), name="drafter").weights.values()) == 2


def test_weights_are_the_models_own_storage() -> None:
    own = tiny_model()
    weights = capture(own, name="target").weights
    assert weights["target.lm_head.weight"].data_ptr() == own.lm_head.weight.data_ptr()


def test_the_model_is_left_as_it_was() -> None:
    own = tiny_model()
    before = own.config._attn_implementation
    capture(own, name="target")
    assert own.config._attn_implementation == before
    assert own.generate(torch.tensor([[5, 6]]), max_new_tokens=3, do_sample=False).shape[1] <= 5


def test_learned_positions_stop_at_the_last() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    own = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_embd=32, n_layer=2, n_head=4, n_positions=16)).eval()
    model = capture(own, name="target")
    with torch.no_grad():
        (logits,) = model.module()(torch.ones(1, 6, dtype=torch.long), torch.arange(12, 18)[None])
    assert model.max_positions == 16 and logits.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_prove_accepts_the_model(dtype: torch.dtype) -> None:
    one = loaded(tiny_model(3, dtype, tie_word_embeddings=True))
    one.model.generation_config.repetition_penalty = 1.5  # its own generate would use it
    prove(one, capture(one, name="target"))


def test_prove_refuses_other_weights() -> None:
    own = tiny_model()
    model = capture(tiny_drafter(own, noise=0.3), name="target")
    with pytest.raises(CaptureError, match="does not decode as its own generate"):
        prove(loaded(own), model)


def test_an_error_of_a_thousandth_is_seen() -> None:
    """Far more than rounding, far less than what changes a token: logits that are off in the fourth place."""
    own = tiny_model()
    text = own_text(own, torch.arange(3, 15)[None], 20)
    compare_decoding(own, capture(own, name="target"), text, 12, "tiny")
    other = tiny_drafter(own, noise=5e-5)
    with torch.no_grad():
        gap = (other(text).logits - own(text).logits).abs().max() / own(text).logits.abs().max()
    assert 2e-4 < gap < 2e-3 and own_text(other, text[:, :12], 20).equal(text)
    with pytest.raises(CaptureError, match="does not decode as its own generate"):
        compare_decoding(own, capture(other, name="target"), text, 12, "tiny")


def test_a_lost_window_is_seen() -> None:
    from transformers import MistralConfig, MistralForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = MistralConfig(vocab_size=128, num_attention_heads=4, sliding_window=8, initializer_range=0.35, **sizes)
    own = MistralForCausalLM(config).eval()
    model = capture(own, name="target")
    text = own_text(own, torch.arange(3, 15)[None], 20)
    compare_decoding(own, model, text, 12, "mistral")
    for marker in model.graph.find_nodes(op="call_function", target=ATTEND):
        assert marker.args[5] == 8
        marker.args = (*marker.args[:5], None, *marker.args[6:])
    with pytest.raises(CaptureError, match="new token 1 "):
        compare_decoding(own, model, text, 12, "mistral")


class _Summed(LlamaMLP):
    """Mixes in the rows before: state of a layer that no marker sees, though every layer attends."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x + x.cumsum(1))


class SummedForCausalLM(LlamaForCausalLM):
    def __init__(self, config: Any) -> None:
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp = _Summed(config)
        self.post_init()


def test_state_outside_attention_is_seen() -> None:
    torch.manual_seed(0)
    own = SummedForCausalLM(tiny_config()).eval()
    model = capture(own, name="target")
    tokens = torch.arange(3, 30)[None]
    with torch.no_grad():
        whole = model.module()(tokens, torch.arange(27)[None])[0]
        torch.testing.assert_close(whole, own(tokens).logits, rtol=0, atol=1e-4)  # one block looks right
        assert (decode_in_blocks(model, tokens) - whole).abs().max() > 1
    with pytest.raises(CaptureError, match="does not decode"):
        prove(loaded(own), model)


class _Layer(nn.Module):
    is_causal, layer_idx = True, 0


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attention_mask": torch.ones(1)}, "mask of its own"),
        ({"dropout": 0.1}, "dropout"),
        ({"is_causal": False}, "not causal"),
        ({"position_bias": torch.ones(1)}, "position_bias"),
        ({"head_mask": torch.ones(1)}, "head_mask"),
    ],
)
def test_the_marker_refuses_what_it_cannot_carry(options: dict[str, Any], reason: str) -> None:
    q = torch.ones(1, 2, 3, 4)
    with pytest.raises(CaptureError, match=reason):
        marker_attention(_Layer(), q, q, q, **{"attention_mask": None, **options})


def test_the_marker_carries_its_arguments() -> None:
    q = torch.randn(1, 4, 6, 8)
    k, v, sinks = torch.randn(1, 2, 6, 8), torch.randn(1, 2, 6, 5), torch.randn(4)
    out, _ = marker_attention(_Layer(), q, k, v, None, sliding_window=3, softcap=5.0, s_aux=sinks)
    expected = torch.ops.specc.attend(q, k, v, 0, 8**-0.5, 3, 5.0, sinks).transpose(1, 2)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)


def test_chunks_are_refused() -> None:
    config = copy.copy(tiny_config())
    config.attention_chunk_size = 64
    with pytest.raises(CaptureError, match="chunks"):
        marker_mask(config=config, local_size=64)
    assert marker_mask(config=config, local_size=None) is None
