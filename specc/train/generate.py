"""What the target writes behind many prompts at once, with one cache that is written in place.

`generate` of transformers copies or re-expands the cache at every token, which costs more than the model itself
at 96 rows; here the cache is allocated once and grouped heads are never repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AttentionInterface, Cache

from ..errors import CaptureError
from .answers import Row

ROWS_AT_ONCE = 16  # of logits
IDLE = (
    0.2  # finished rows are computed along until so large a part of the batch is idle: dropping them copies the cache
)


def grouped_attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of grouped heads as transformers calls it.

    Args:
        module: the attention layer.
        query: [B, H, T, D].
        key: [B, G, S, D].
        value: [B, G, S, D].
        attention_mask: [B, 1, T, S], added to the scores.
        scaling: of the scores; None for D ** -0.5.
        softcap, s_aux, sliding_window: what some models have and this does not; a window as long as the text is none.

    Returns:
        [B, T, H, D], and None for the weights.

    Raises:
        CaptureError: the model's attention is another.
    """
    more = {"caps its scores": softcap is not None, "has sinks": s_aux is not None}
    more["sees less than the text"] = sliding_window is not None and sliding_window < key.shape[2]
    for what, found in more.items():
        if found:
            raise CaptureError(
                f"target: a layer's attention {what}, and specc train writes answers of plain attention only; let "
                "another program write them and give them with --data"
            )
    b, h, t, d = query.shape
    g = key.shape[1]
    seen = attention_mask.expand(b, 1, h // g, -1) if t == 1 else attention_mask.repeat(1, 1, h // g, 1)
    out = nn.functional.scaled_dot_product_attention(
        query.reshape(b, g, h // g * t, d), key, value, attn_mask=seen, scale=scaling
    )
    return out.reshape(b, h, t, d).transpose(1, 2).contiguous(), None


class Slots(Cache):  # type: ignore[misc]
    """Keys and values of all rows, [B, G, S, D] for each layer; a call writes the columns `at : at + T`."""

    def __init__(self, slots: int) -> None:
        super().__init__(layers=[])
        self.slots, self.at = slots, 0
        self.keys: list[torch.Tensor] = []
        self.values: list[torch.Tensor] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a layer's new columns, and give all that are written."""
        b, g, t, d = key_states.shape
        if layer_idx == len(self.keys):
            self.keys.append(key_states.new_zeros(b, g, self.slots, d))
            self.values.append(value_states.new_zeros(b, g, self.slots, value_states.shape[-1]))
        end = self.at + t
        self.keys[layer_idx][:, :, self.at : end] = key_states
        self.values[layer_idx][:, :, self.at : end] = value_states
        return self.keys[layer_idx][:, :, :end], self.values[layer_idx][:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.at

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all rows but these, one layer at a time, so that little more memory is needed."""
        for states in (self.keys, self.values):
            for i, x in enumerate(states):
                states[i] = x[rows].contiguous()


@contextlib.contextmanager
def grouped(model: Any) -> Iterator[None]:
    """`model` with `grouped_attention`, which its masks below are made for."""
    before = model.config._attn_implementation
    AttentionInterface.register("specc_grouped", grouped_attention)
    model.set_attn_implementation("specc_grouped")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


@torch.inference_mode()
def continuations(
    model: Any,
    prompts: list[list[int]],
    kinds: list[str],
    *,
    longest: int,
    ends: tuple[int, ...],
    keep: int,
    draws: torch.Generator | None = None,
    tick: Callable[[int], None] = lambda rows: None,
) -> list[Row]:
    """What the target says, with its distribution in place of each token.

    Args:
        model: the target, a transformers causal language model.
        prompts: ids of each prompt.
        kinds: what each is, for the rows.
        longest: tokens of an answer at most.
        ends: ids that end an answer; the end is its last token.
        keep: likeliest tokens to keep.
        draws: draws each token from these, in proportion to their probabilities; None for the likeliest.
        tick: told the rows that are not done, after each token.
    """
    answers: list[tuple[list[int], list[Any], list[Any]]] = [([], [], []) for _ in prompts]
    with grouped(model):
        for rows, hidden in _decode(model, prompts, answers, longest, ends, tick):
            top, logp = likeliest(model.get_output_embeddings()(hidden), keep)
            said = top[:, :1]
            if draws is not None:
                said = top.gather(1, logp.float().exp().multinomial(1, generator=draws))
            for j, row in enumerate(rows):
                if row >= 0:
                    for part, new in zip(answers[row], (int(said[j, 0]), top[j].numpy(), logp[j].numpy()), strict=True):
                        part.append(new)
    return [
        Row(np.array([*prompt, *ids], np.int32), len(prompt), kind, np.stack(top), np.stack(logp))
        for prompt, kind, (ids, top, logp) in zip(prompts, kinds, answers, strict=True)
    ]


def likeliest(logits: torch.Tensor, keep: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int32 and float16 [M, keep]: the `keep` likeliest ids of logits [M, V], likeliest first, and log-probabilities.

    A few rows at a time: what is made on the way then stays in the cache of the processor. Float32 logits are lost.
    """
    tops, logps = [], []
    for part in logits.split(ROWS_AT_ONCE):
        whole = part.float()
        value, top = whole.topk(keep, -1)
        high = value[:, :1]
        tops.append(top.int())
        logps.append((value - high - whole.sub_(high).exp_().sum(-1, keepdim=True).log()).half())
    return torch.cat(tops), torch.cat(logps)


def _decode(
    model: Any,
    prompts: list[list[int]],
    answers: list[tuple[list[int], list[Any], list[Any]]],
    longest: int,
    ends: tuple[int, ...],
    tick: Callable[[int], None],
) -> Iterator[tuple[list[int], torch.Tensor]]:
    """Forwards over all rows that are not done.

    Yields:
        The row of each place of the batch, -1 for one that is done, and its last hidden state [B, E]; the
        caller appends the next token of each to `answers`.
    """
    count, width = len(prompts), max(map(len, prompts))
    ids = torch.zeros(count, width, dtype=torch.long)
    live = torch.zeros(count, width + longest, dtype=torch.bool)  # columns that hold a token, no padding at the left
    for i, prompt in enumerate(prompts):
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        live[i, width - len(prompt) :] = True  # and every column that will be generated
    low = torch.finfo(model.dtype).min
    position = (live.long().cumsum(1) - 1).clamp(min=0)
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    # A padding row may see itself: a softmax over nothing would be NaN.
    allowed = (live[:, None, :width] & causal) | torch.eye(width, dtype=torch.bool)
    mask = torch.where(allowed, 0.0, low)[:, None].to(model.dtype)
    cache, where = Slots(width + longest), list(range(count))
    inputs, place = ids, position[:, :width]
    for column in range(width, width + longest):
        more = {"attention_mask": mask, "past_key_values": cache, "use_cache": True}
        yield where, model.base_model(input_ids=inputs, position_ids=place, **more)[0][:, -1]
        token = torch.tensor([answers[row][0][-1] if row >= 0 else 0 for row in where])
        where = [row if row >= 0 and answers[row][0][-1] not in ends else -1 for row in where]
        going = [j for j, row in enumerate(where) if row >= 0]
        tick(len(going))
        if not going:
            return
        cache.at = column
        if len(going) < (1 - IDLE) * len(where):
            kept = torch.tensor(going)
            cache.keep(kept)
            live, position, token = live[kept], position[kept], token[kept]
            where = [where[j] for j in going]
        inputs, place = token[:, None], position[:, column : column + 1]
        mask = torch.where(live[:, None, None, : column + 1], 0.0, low).to(model.dtype)
