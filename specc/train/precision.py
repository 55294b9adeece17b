"""In which numbers products are computed while answers are written and drafters learn."""

from __future__ import annotations

import torch

FLOAT32, BFLOAT16 = PRECISIONS = ("float32", "bfloat16")
_INSTRUCTIONS = ("avx512_bf16", "amx_bf16")


def usual() -> str:
    """bfloat16 where the processor multiplies such numbers itself, two to four times faster; elsewhere it is slower."""
    features = torch.cpu.get_capabilities()
    return BFLOAT16 if any(features.get(name) for name in _INSTRUCTIONS) else FLOAT32
