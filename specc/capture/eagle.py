"""EAGLE and EAGLE-2: a layer over the target's last hidden states and the tokens behind them.

Source: Li et al. 2024, EAGLE, section 4.1, and the published checkpoints. At position t the drafter reads the token
t + 1 beside the target's hidden state of t, and hands on its guess of the hidden state of t + 1, from which the
target's own head makes logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .checkpoint import Checkpoint
from .feature_drafter import FeatureDrafter, compare_rotary, fill, llama_config
from .load import LoadedModel
from .taps import Taps


class Eagle(nn.Module):  # type: ignore[misc]
    """`(tokens [B, T], positions [B, T], hidden [B, T, E]) -> (logits [B, T, V], hidden [B, T, E])`."""

    def __init__(self, config: Any, embed: nn.Module, head: nn.Module, bias: bool) -> None:
        from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

        super().__init__()
        size = config.hidden_size
        self.fc = nn.Linear(2 * size, size, bias=bias)
        self.layers = nn.ModuleList(LlamaDecoderLayer(config, i) for i in range(config.num_hidden_layers))
        self.layers[0].input_layernorm = nn.Identity()  # published checkpoints have none there, and no final norm
        self.rotary = LlamaRotaryEmbedding(config)
        self.embed_tokens, self.head = embed, head

    def forward(self, tokens: Tensor, positions: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.fc(torch.cat([self.embed_tokens(tokens), hidden], -1))
        turned = self.rotary(hidden, positions)
        for layer in self.layers:
            hidden = layer(hidden, position_embeddings=turned)
        return self.head(hidden), hidden


def load(checkpoint: Checkpoint, target: LoadedModel) -> FeatureDrafter:
    """Build the drafter from a published EAGLE checkpoint.

    Raises:
        CaptureError: a tensor is missing, has another shape or is not EAGLE's.
    """
    config = llama_config(checkpoint, target)
    rows, size = target.model.get_output_embeddings().weight.shape
    embed: nn.Module = target.model.get_input_embeddings()
    own = checkpoint.take_if("embed_tokens.weight", (rows, size), "the target's vocabulary and hidden size")
    if own is not None:
        embed = nn.Embedding.from_pretrained(own)
    module = Eagle(config, embed, target.model.get_output_embeddings(), bool(checkpoint.config.get("bias", True)))
    fill(module.fc, checkpoint, "fc.", "fc of EAGLE takes embedding and hidden state; EAGLE-3 has three states there")
    fill(module.layers, checkpoint, "layers.")
    return FeatureDrafter(
        kind="eagle",
        module=module,
        taps=Taps(),
        size=size,
        max_positions=config.max_position_embeddings,
        source=checkpoint.source,
        digest=checkpoint.digest,
        parameters=sum(tensor.numel() for tensor in checkpoint.tensors.values()),
        notes=compare_rotary(config, target),
    )
