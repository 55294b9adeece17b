"""How often the drafter's choice is the target's, on the target's own greedy answers to held-out prompts."""

from pathlib import Path

import torch

from . import shards


@torch.inference_mode()
def agreement(model, rows: list[dict]) -> dict[str, float]:
    """Share of answer tokens where the drafter's arg-max over the vocabulary is the target's -> by kind, and "all"."""
    model.eval()
    right, count = {}, {}
    for row in rows:
        ids = torch.from_numpy(row["ids"]).long()
        hidden = model.model(input_ids=ids[None, :-1], use_cache=False)[0][0, row["skip"] - 1 :]
        ok = (model.lm_head(hidden).argmax(-1).int() == torch.from_numpy(row["top"][:, 0])).sum().item()
        for kind in (row["kind"], "all"):
            right[kind] = right.get(kind, 0) + ok
            count[kind] = count.get(kind, 0) + len(row["top"])
    return {kind: round(right[kind] / count[kind], 4) for kind in sorted(right)}


def held_rows(folder: Path) -> list[dict]:
    return [row for path in sorted(folder.glob("*.npz")) for row in shards.read(path)]


def numbers(model) -> int:
    """Weights read per pass: all but the input embedding, which shares the output matrix where tied."""
    tables = ("embed_tokens", "lm_head")
    body = sum(p.numel() for name, p in model.named_parameters() if not any(table in name for table in tables))
    return body + model.lm_head.weight.numel()


def predicted_speedup(a: float, c: float, drafts: int = 3, verify: float = 1.05) -> float:
    """Tokens a step over its cost in target passes: (1 + a + .. + a^K) / (v + c K)."""
    return sum(a**i for i in range(drafts + 1)) / (verify + c * drafts)
