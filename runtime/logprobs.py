"""Log-probabilities of emitted tokens, read from what a step returns. Only for requests that ask."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .request import Request
from .result import TokenLogprob


def read_logprobs(
    results: Mapping[str, Tensor], row: int, block: Sequence[int], request: Request
) -> list[TokenLogprob]:
    """One entry for each token of a block.

    Args:
        results: outputs of a step: `path` `[B, D+1]` int64, the node behind which each token of the block was chosen;
            `logits` `[B, N, V]`, as the model gave them, and `processed`, as they were chosen from (-inf where cut).
        row: of `results`.
        block: tokens emitted.
        request: says how many alternatives, and which scores: `logprobs`, `logprobs_mode`.
    """
    scores = results["logits" if request.logprobs_mode == "raw" else "processed"]
    nodes = results["path"][row, : len(block)]
    logprobs = scores[row].index_select(0, nodes).float().log_softmax(-1)
    own = logprobs.gather(1, torch.tensor(block, device=scores.device)[:, None])[:, 0].tolist()
    best = logprobs.topk(min(request.logprobs or 0, logprobs.shape[1]), -1)
    tops = [
        dict(zip(ids, values, strict=True))
        for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
    ]
    return [
        TokenLogprob(token, logprob, {i: value for i, value in top.items() if value > -math.inf})
        for token, logprob, top in zip(block, own, tops, strict=True)
    ]
