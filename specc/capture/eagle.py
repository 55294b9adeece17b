"""EAGLE and EAGLE-2: a layer over the target's last hidden states and the tokens behind them.

Source: Li et al. 2024, EAGLE, section 4.1, and the published checkpoints. At position t the drafter reads the token
t + 1 beside the target's hidden state of t, and hands on its guess of the hidden state of t + 1, from which the
target's own head makes logits.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CaptureError
from .checkpoint import Checkpoint
from .feature_drafter import FeatureDrafter
from .llama_parts import compare_rotary, fill, llama_config
from .load import LoadedModel
from .own_embedding import embedding
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
    head = target.model.get_output_embeddings()
    embed, notes = embedding(checkpoint, target, config.hidden_size)
    _check_head(checkpoint, head)
    module = Eagle(config, embed, head, _has_bias(checkpoint))
    fill(module.fc, checkpoint, "fc.", "fc takes the embedding beside one hidden state of the target")
    fill(module.layers, checkpoint, "layers.")
    return FeatureDrafter(
        kind="eagle",
        module=module,
        taps=Taps(),
        size=config.hidden_size,
        max_positions=config.max_position_embeddings,
        source=checkpoint.source,
        digest=checkpoint.digest,
        parameters=sum(tensor.numel() for tensor in checkpoint.tensors.values()),
        notes=[*compare_rotary(config, target), *notes],
    )


def _has_bias(checkpoint: Checkpoint) -> bool:
    """Whether `fc` has a bias: what the file holds, which the configuration must not contradict."""
    said, has = checkpoint.config.get("bias"), "fc.bias" in checkpoint.tensors
    if said is not None and bool(said) != has:
        raise CaptureError(
            f"drafter: config.json of {checkpoint.source} says bias: {json.dumps(said)}, and its file holds "
            f"{'an' if has else 'no'} fc.bias; correct config.json, or fetch the drafter again"
        )
    return has


def _check_head(checkpoint: Checkpoint, head: Any) -> None:
    """EAGLE drafts by the target's head; a copy of it in the file does no harm, another one is another drafter."""
    own = checkpoint.take_if("lm_head.weight", tuple(head.weight.shape), "the target's head, by which EAGLE drafts")
    if own is not None and not torch.allclose(own.float(), head.weight.float(), atol=1e-2):
        raise CaptureError(
            f"drafter: {checkpoint.source} holds an lm_head.weight that is not the target's, and EAGLE drafts by the "
            "target's; give the drafter of this target, or delete lm_head.weight from its file"
        )
