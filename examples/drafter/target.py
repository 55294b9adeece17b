"""The target: loading, and greedy decoding of many rows at once with one cache written in place.

`generate` of transformers copies or re-expands the cache at every token, which costs more than the model itself
at 96 rows; here the cache is allocated once and grouped heads are never repeated.
"""

from pathlib import Path

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer, Cache


def grouped_attention(module, query, key, value, attention_mask, scaling=None, **_):
    """query [B, H, T, D], key/value [B, G, S, D], mask [B, 1, T, S] added to scores -> [B, T, H, D]."""
    b, h, t, d = query.shape
    g = key.shape[1]
    r = h // g
    scores = query.reshape(b, g, r * t, d) @ key.transpose(2, 3)
    scores = scores * (d**-0.5 if scaling is None else scaling)
    scores += attention_mask if t == 1 else attention_mask.repeat(1, 1, r, 1)
    out = scores.softmax(-1) @ value
    return out.view(b, h, t, d).transpose(1, 2).contiguous(), None


class Slots(Cache):
    """Keys and values of all rows in `[B, G, S, D]` per layer; a call writes columns `at : at + T`."""

    def __init__(self, slots: int):
        super().__init__(layers=[])
        self.slots, self.at, self.keys, self.values = slots, 0, [], []

    def update(self, key_states, value_states, layer_idx, *args, **kwargs):
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
        """Drop all rows but these. One layer at a time, so that little extra memory is needed."""
        for states in (self.keys, self.values):
            for i, x in enumerate(states):
                states[i] = x[rows].contiguous()


def load_target(name: str, gguf: str | None = None, dtype=torch.float32):
    """-> model, tokenizer. `name` is a folder, a hub id or a .gguf file."""
    extra = {}
    if gguf:
        extra["gguf_file"] = gguf
    elif name.endswith(".gguf"):
        extra["gguf_file"], name = Path(name).name, str(Path(name).parent)
    tokenizer = AutoTokenizer.from_pretrained(name, **extra)
    model = AutoModelForCausalLM.from_pretrained(name, dtype=dtype, **extra).eval()
    AttentionInterface.register("grouped", grouped_attention)
    model.set_attn_implementation("grouped")
    return model, tokenizer


def end_tokens(model, tokenizer) -> set[int]:
    ids = {tokenizer.eos_token_id}
    for config in (model.config, model.generation_config):
        eos = getattr(config, "eos_token_id", None)
        ids |= set(eos if isinstance(eos, list | tuple) else [eos])
    return ids - {None}


@torch.inference_mode()
def greedy_rows(model, prompts: list[list[int]], new: int, ends: set[int], k: int, tick=None):
    """Greedy answers with the target's distribution at each of their tokens.

    prompts: token ids per row. Returns per row (answer ids [n], top ids [n, k], log-probabilities [n, k]);
    the answer ends with an end token or after `new` tokens.
    """
    rows, width = len(prompts), max(map(len, prompts))
    ids = torch.zeros(rows, width, dtype=torch.long)
    live = torch.zeros(rows, width + new, dtype=torch.bool)  # columns that hold a token, not left padding
    for i, p in enumerate(prompts):
        ids[i, width - len(p) :] = torch.tensor(p)
        live[i, width - len(p) :] = True
    live[:, width:] = True
    low = torch.finfo(model.dtype).min
    position = (live.long().cumsum(1) - 1).clamp(min=0)
    causal = torch.ones(width, width, dtype=torch.bool).tril()
    # A padding row may see itself: a softmax over nothing would be NaN.
    allowed = (live[:, None, :width] & causal) | torch.eye(width, dtype=torch.bool)
    mask = torch.where(allowed, 0.0, low)[:, None].to(model.dtype)
    cache, where = Slots(width + new), list(range(rows))
    answers, tops, logps = ([[] for _ in range(rows)] for _ in range(3))
    column = width
    inputs, place = ids, position[:, :width]
    while True:
        more = dict(attention_mask=mask, past_key_values=cache, use_cache=True)
        hidden = model.model(input_ids=inputs, position_ids=place, **more)[0][:, -1]
        logits = model.lm_head(hidden).float()
        value, index = logits.topk(k, -1)
        value = (value - logits.logsumexp(-1, keepdim=True)).half().numpy()
        index = index.int().numpy()
        still = []
        for j, row in enumerate(where):
            if row < 0:
                continue
            answers[row].append(int(index[j, 0]))
            tops[row].append(index[j])
            logps[row].append(value[j])
            if int(index[j, 0]) in ends or len(answers[row]) == new:
                where[j] = -1
            else:
                still.append(j)
        if tick:
            tick(len(still))
        if not still:
            return list(zip(answers, tops, logps, strict=True))
        cache.at = column
        token = torch.tensor(index[:, 0]).long()
        # Finished rows are computed along until a fifth of the batch is idle: dropping them copies the cache.
        if len(still) < 0.8 * len(where):
            kept = torch.tensor(still)
            cache.keep(kept)
            live, position, token = live[kept], position[kept], token[kept]
            where = [where[j] for j in still]
        inputs, place = token[:, None], position[:, column : column + 1]
        column += 1
        mask = torch.where(live[:, None, None, :column], 0.0, low).to(model.dtype)


@torch.inference_mode()
def score_rows(model, rows: torch.Tensor, k: int):
    """The target's distribution after every token of given rows [B, T] -> top ids, log-probabilities [B, T, k]."""
    b, t = rows.shape
    mask = torch.where(torch.ones(t, t, dtype=torch.bool).tril(), 0.0, torch.finfo(model.dtype).min)
    place = torch.arange(t).expand(b, t)
    hidden = model.model(input_ids=rows, position_ids=place, attention_mask=mask.expand(b, 1, t, t), use_cache=False)[0]
    top, logp = [], []
    for h in hidden:  # a row at a time: all logits of a batch would be gigabytes
        logits = model.lm_head(h).float()
        value, index = logits.topk(k, -1)
        top.append(index.int())
        logp.append((value - logits.logsumexp(-1, keepdim=True)).half())
    return torch.stack(top), torch.stack(logp)
