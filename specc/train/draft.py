"""An independent drafter: a small Llama with the target's tokenizer, distilled on the target's answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from .batches import Batch
from .drafter import Drafter, Rows
from .layers import half
from .start_draft import basis, start_draft

THETA = 500_000.0  # slow rotary pairs compare tokens over long distances


def small_llama(target: Any, hidden: int, layers: int) -> LlamaConfig:
    """A Llama of the target's vocabulary with tied embeddings, heads of 64 and MLPs of four times the width."""
    head = min(64, hidden)
    return LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=max(1, hidden // head),
        num_key_value_heads=max(1, hidden // head),
        head_dim=head,
        tie_word_embeddings=True,
        rms_norm_eps=1e-5,
        max_position_embeddings=target.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        pad_token_id=target.pad_token_id,
    )


class Draft(Drafter):
    """The drafter; it reads nothing of the target.

    Args:
        config: its shape.
    """

    chains: ClassVar[bool] = False

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(torch.arange(config.vocab_size), config.vocab_size)
        self.llama = LlamaForCausalLM(config)

    @staticmethod
    def taps(count: int) -> tuple[int, ...]:
        """None."""
        return ()

    def start(self, target: Any, rows: Rows) -> None:
        table = target.get_output_embeddings().weight.detach()
        states = torch.cat([states for _, states in rows])
        counts = torch.cat([ids for ids, _ in rows]).bincount(minlength=len(table)).float()
        start_draft(self.llama, basis(table, states, counts))

    def slowness(self, name: str) -> float:
        """The copying circuit lives in the attention of the first two layers, and large steps had worn it down."""
        return 0.1 if "self_attn" in name and (".layers.0." in name or ".layers.1." in name) else 1.0

    def head(self, step: int) -> torch.Tensor:
        return self.llama.lm_head.weight

    def unroll(self, batch: Batch, steps: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        hidden = self.llama.model(input_ids=batch.ids, use_cache=False)[0]
        for step in range(steps):
            base = batch.bases(step)
            yield base, hidden[base // batch.width, base % batch.width + 1 + step]

    def files(self, target: Any, layers: tuple[int, ...]) -> dict[str, Any]:
        settings = {**self.llama.config.to_diff_dict(), "architectures": ["LlamaForCausalLM"], "dtype": "bfloat16"}
        return {"config.json": settings, "model.safetensors": half(self.llama)}
