"""Sizes of a drafter, taken from its target's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class DrafterShape:
    """Sizes as Llama's config names them."""

    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    max_positions: int

    @staticmethod
    def of(config: Any) -> DrafterShape:
        """That of one layer of the target.

        Every head has keys of its own, even where the target's heads share them: the embedding of the last
        token reaches the residual stream through the values only, and shared ones would squeeze it.
        """
        heads = config.num_attention_heads
        rope = getattr(config, "rope_parameters", None) or {}
        return DrafterShape(
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            heads=heads,
            kv_heads=heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
            rms_norm_eps=config.rms_norm_eps,
            rope_theta=float(rope.get("rope_theta", getattr(config, "rope_theta", 10000.0))),
            max_positions=config.max_position_embeddings,
        )

    def settings(self, target: Any, architecture: str) -> dict[str, Any]:
        """Fields of `config.json` of a drafter of one layer, as Llama's config names them.

        Args:
            target: configuration of the target.
            architecture: what other engines load it as.
        """
        return {
            "architectures": [architecture],
            "model_type": "llama",
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "max_position_embeddings": self.max_positions,
            "vocab_size": target.vocab_size,
            "bos_token_id": target.bos_token_id,
            "eos_token_id": target.eos_token_id,
            "torch_dtype": "bfloat16",
        }
