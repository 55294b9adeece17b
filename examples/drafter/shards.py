"""What the target said, in files: each shard is one .npz, written aside and renamed, so a kill loses one shard at most.

A shard holds, for R rows of N tokens in all, of which M are predicted:
  ids   int32   [N]     tokens of all rows, one after the other
  size  int32   [R]     tokens of each row
  skip  int32   [R]     how many tokens at the start of each row are not predicted (prompt; at least 1)
  top   int32   [M, k]  the target's k likeliest tokens for each predicted one, likeliest first
  logp  float16 [M, k]  their log-probabilities under the target
  kind  str     [R]     kind of prompt
"""

import os
import time
from pathlib import Path

import numpy as np
import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from .prompts import Prompts
from .target import end_tokens, greedy_rows, score_rows


def write(path: Path, rows: list[dict]) -> None:
    """rows: dicts with ids [n], skip, top [n - skip, k], logp [n - skip, k], kind."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".part")
    with open(aside, "wb") as f:
        np.savez(
            f,
            ids=np.concatenate([np.asarray(r["ids"], np.int32) for r in rows]),
            size=np.array([len(r["ids"]) for r in rows], np.int32),
            skip=np.array([r["skip"] for r in rows], np.int32),
            top=np.concatenate([np.asarray(r["top"], np.int32) for r in rows]),
            logp=np.concatenate([np.asarray(r["logp"], np.float16) for r in rows]),
            kind=np.array([r["kind"] for r in rows]),
        )
    os.replace(aside, path)


def read(path: Path) -> list[dict]:
    with np.load(path) as z:
        data = {name: z[name] for name in z.files}
    rows, a, b = [], 0, 0
    for size, skip, kind in zip(data["size"], data["skip"], data["kind"], strict=True):
        n = int(size - skip)
        top, logp = data["top"][b : b + n], data["logp"][b : b + n]
        rows.append(dict(ids=data["ids"][a : a + size], skip=int(skip), top=top, logp=logp, kind=str(kind)))
        a, b = a + size, b + n
    return rows


def progress() -> Progress:
    note = TextColumn("{task.fields[note]}")
    return Progress(TextColumn("{task.description}"), BarColumn(), note, TimeElapsedColumn())


def passages(folder: Path, tokenizer, count: int = 400) -> list[str]:
    """Texts for summary prompts: whole sentences from answers of chat prompts in finished shards."""
    texts = []
    for path in sorted(folder.glob("*.npz")):
        for row in read(path):
            if row["kind"] not in ("chat", "passage"):
                continue
            text = tokenizer.decode(row["ids"][row["skip"] :][:150], skip_special_tokens=True)
            text = text[: text.rfind(".") + 1].strip()
            if 200 < len(text) < 900:
                texts.append(text)
        if len(texts) >= count:
            break
    return texts[:count]


def chat_ids(tokenizer, text: str) -> list[int]:
    if not tokenizer.chat_template:
        return tokenizer(text)["input_ids"]
    chat = [{"role": "user", "content": text}]
    out = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
    return list(out["input_ids"])


def score(model, tokenizer, source: Path, folder: Path, k: int, name: str = "text") -> None:
    """Distributions on ready token rows: `source` is an .npz of int arrays [rows, tokens]. One shard per 16 rows."""
    with np.load(source) as z:
        arrays = [z[key] for key in z.files]
    parts = [part for x in arrays for part in np.array_split(x, max(1, len(x) // 16))]
    with progress() as bar:
        task = bar.add_task(f"score {source.name}", total=len(parts), note="")
        for i, part in enumerate(parts):
            path = folder / f"{name}-{i:04d}.npz"
            if not path.exists():
                ids = torch.tensor(part).long()
                top, logp = score_rows(model, ids, k)
                # The last token's prediction has nothing to be compared with, so it is dropped.
                pairs = zip(part, top[:, :-1].numpy(), logp[:, :-1].numpy(), strict=True)
                write(path, [dict(ids=r, skip=1, top=t, logp=q, kind="text") for r, t, q in pairs])
            bar.update(task, advance=1, note=f"{i + 1}/{len(parts)}")


def generate(
    model, tokenizer, folder: Path, count: int, batch: int, new: int, k: int, held: bool, seconds: float = 1e9
) -> None:
    """Greedy answers to `count` prompts in shards of `batch`; finished shards are kept and skipped."""
    ends, started, said = end_tokens(model, tokenizer), time.time(), 0
    with progress() as bar:
        task = bar.add_task("held-out answers" if held else "answers", total=count, note="")
        for first in range(0, count, batch):
            path = folder / f"{'held' if held else 'answers'}-{first:06d}.npz"
            number = min(batch, count - first)
            if not path.exists():
                if time.time() - started > seconds:
                    break
                prompts = Prompts(passages(folder, tokenizer), held)
                asked = [prompts(i) for i in range(first, first + number)]
                ids = [chat_ids(tokenizer, text) for _, text in asked]
                begun, tokens = time.time(), 0

                def tick(n, begun=begun):
                    nonlocal tokens, said
                    tokens, said = tokens + n, said + n
                    bar.update(task, note=f"{said} tokens, {tokens / (time.time() - begun):.0f}/s")

                rows = greedy_rows(model, ids, new, ends, k, tick)
                write(
                    path,
                    [
                        dict(ids=p + a, skip=len(p), top=np.stack(t), logp=np.stack(q), kind=kind)
                        for p, (a, t, q), (kind, _) in zip(ids, rows, asked, strict=True)
                    ],
                )
            bar.update(task, completed=first + number)
