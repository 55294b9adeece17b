"""Distillation: cross-entropy to the target's distribution and to its choice, over the tokens that matter.

All logits of all tokens would be most of the cost (49,152 x h per token, three times). A batch's targets name a
few thousand different tokens; these and a random sample of the others (with the weight of those left out) estimate
the normaliser.
"""

import json
import os
import time
from pathlib import Path

import torch

from . import shards
from .optimisers import Muon, RowAdam

CHUNK = 512  # rows of logits held at once


class SparseCE(torch.autograd.Function):
    """Sum over rows of logsumexp(h W^T + bias) - sum_k p_k (h W^T)_k, without keeping the logits.

    hidden [M, h], table [U, h], bias [U], index [M, k] columns of U, p [M, k] with rows that sum to 1.
    """

    @staticmethod
    def forward(ctx, hidden, table, bias, index, p):
        loss, right = hidden.new_zeros(()), 0
        d_hidden, d_table = torch.empty_like(hidden), torch.zeros_like(table)
        for a in range(0, len(hidden), CHUNK):
            h, i, q = hidden[a : a + CHUNK], index[a : a + CHUNK], p[a : a + CHUNK]
            logits = h @ table.T
            right += int((logits.argmax(1) == i[:, 0]).sum())
            loss -= (logits.gather(1, i) * q).sum()
            logits += bias
            lse = logits.logsumexp(1, keepdim=True)
            loss += lse.sum()
            logits.sub_(lse).exp_().scatter_add_(1, i, -q)
            torch.mm(logits, table, out=d_hidden[a : a + CHUNK])
            d_table.addmm_(logits.T, h)
        ctx.save_for_backward(d_hidden, d_table)
        return loss, torch.tensor(right)

    @staticmethod
    def backward(ctx, g, _):
        d_hidden, d_table = ctx.saved_tensors
        return d_hidden * g, d_table * g, None, None, None


class Data:
    """Rows of all shards in memory; `refresh` takes up shards that were finished meanwhile.

    Greedy answers, which are what the drafter will meet, are drawn `repeat` times as often as other text.
    """

    def __init__(self, folder: Path, repeat: int = 3):
        self.folder, self.repeat, self.rows, self.seen = folder, repeat, [], set()
        self.draw: list[dict] = []
        self.refresh()

    def refresh(self) -> None:
        for path in sorted(self.folder.glob("*.npz")):
            if path.name not in self.seen:
                self.seen.add(path.name)
                rows = shards.read(path)
                self.rows += rows
                self.draw += rows * (1 if rows[0]["kind"] == "text" else self.repeat)

    @property
    def tokens(self) -> int:
        return sum(len(r["top"]) for r in self.rows)

    def batch(self, seed: int, tokens: int, k: int):
        """-> ids [B, T], flat positions [M] that predict, top, p [M, k]. Rows of like length, drawn by `seed`."""
        g = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(self.draw), generator=g)[:256].tolist()
        order.sort(key=lambda i: len(self.draw[i]["ids"]))
        mean = sum(len(self.draw[i]["ids"]) for i in order) / len(order)
        take = max(1, min(len(order), round(tokens / mean)))
        at = int(torch.randint(len(order) - take + 1, (1,), generator=g))
        rows = [self.draw[i] for i in order[at : at + take]]
        width = max(len(r["ids"]) for r in rows) - 1
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        where, top, logp = [], [], []
        for b, r in enumerate(rows):
            n = len(r["ids"]) - 1
            ids[b, :n] = torch.from_numpy(r["ids"][:n]).long()
            where.append(b * width + torch.arange(r["skip"] - 1, n))
            top.append(torch.from_numpy(r["top"][:, :k]))
            logp.append(torch.from_numpy(r["logp"][:, :k]))
        return ids, torch.cat(where), torch.cat(top).long(), torch.cat(logp).float().softmax(1)


def rate(step: float, steps: float, warmup: int, cooldown: float) -> float:
    """Warm-up, constant, and a linear descent to zero over the last `cooldown` of all steps."""
    if step < warmup:
        return (step + 1) / warmup
    return max(0.0, min(1.0, (steps - step) / max(1.0, steps * cooldown)))


class Trainer:
    """The drafter, its optimisers, a running average of its weights and its checkpoint.

    The embedding is `base @ mix + own` (start.py). Muon moves the matrices of the layers, row-wise Adam the table,
    AdamW the rest. The average is what is measured and exported: it is as good in the middle of training as after a
    descent of the rate.
    """

    def __init__(self, model, base, mix, work: Path, args):
        self.model, self.base, self.work, self.args, self.step, self.minutes = model, base, work, args, 0, 0.0
        table = model.model.embed_tokens.weight.detach()
        self.weights = {n: p for n, p in model.named_parameters() if "embed_tokens" not in n and "lm_head" not in n}
        self.weights |= {"mix": torch.nn.Parameter(mix.clone()), "own": torch.nn.Parameter(table - base @ mix)}
        w = self.weights
        vectors = [p for p in w.values() if p.dim() == 1]
        matrices = {n: p for n, p in w.items() if p.dim() > 1 and n not in ("mix", "own")}
        # The copying circuit lives in the attention of the first two layers. Muon moves all directions of a matrix
        # alike and had destroyed it within 400 steps.
        delicate = {n: p for n, p in matrices.items() if "self_attn" in n and (".layers.0." in n or ".layers.1." in n)}
        # A step of `mix` moves every row of the table by many columns at once, so it is smaller.
        rest = [
            dict(params=[w["mix"]], lr=0.1 * args.table_lr),
            dict(params=vectors, lr=args.table_lr),
            dict(params=list(delicate.values()), lr=0.1 * args.table_lr),
        ]
        self.optimizers = [
            Muon([p for n, p in matrices.items() if n not in delicate], lr=args.lr, weight_decay=0.01),
            RowAdam(w["own"], lr=args.table_lr),
            torch.optim.AdamW(rest, betas=(0.9, 0.98), weight_decay=0.0),
        ]
        self.full = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.average = {n: p.detach().clone() for n, p in w.items()}
        self.log: list[dict] = []

    @property
    def path(self) -> Path:
        return self.work / "checkpoint.pt"

    def save(self) -> None:
        state = dict(weights={n: p.detach() for n, p in self.weights.items()}, average=self.average)
        state |= dict(optimizers=[o.state_dict() for o in self.optimizers])
        state |= dict(step=self.step, minutes=self.minutes, log=json.dumps(self.log))
        aside = self.path.with_suffix(".part")
        torch.save(state, aside)
        os.replace(aside, self.path)

    @torch.no_grad()
    def resume(self) -> bool:
        if not self.path.exists():
            return False
        state = torch.load(self.path, weights_only=True)
        for name, p in self.weights.items():
            p.copy_(state["weights"][name])
        self.average = state["average"]
        for optimizer, old in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(old)
        self.step, self.minutes, self.log = state["step"], state["minutes"], json.loads(state["log"])
        return True

    @torch.no_grad()
    def averaged(self):
        """A copy of the drafter with the averaged weights."""
        drafter = type(self.model)(self.model.config)
        for name, p in drafter.named_parameters():
            if name in self.average:
                p.copy_(self.average[name])
        drafter.model.embed_tokens.weight.copy_(self.average["own"] + self.base @ self.average["mix"])
        drafter.tie_weights()
        return drafter.eval()

    def train_step(self, data: Data, planned: float) -> tuple[float, float, int]:
        """-> mean loss, share of right choices among the sampled tokens, number of predicted tokens."""
        a, vocab = self.args, len(self.base)
        ids, where, top, p = data.batch(self.step, a.batch_tokens, a.top)
        p = (1 - a.hard) * p
        p[:, 0] += a.hard
        named = top.unique()
        other = torch.randint(vocab, (a.negatives,), generator=torch.Generator().manual_seed(self.step))
        other = other[~torch.isin(other, named)].unique()
        columns = torch.cat([named, other])
        bias = torch.zeros(len(columns))
        if len(other):
            bias[len(named) :] = torch.log(torch.tensor((vocab - len(named)) / len(other)))
        used = torch.cat([columns, ids.unique()]).unique()
        place = torch.zeros(vocab, dtype=torch.long)
        place[used] = torch.arange(len(used))
        own = self.weights["own"].detach()[used].requires_grad_()
        table = own + self.base[used] @ self.weights["mix"]
        rows = torch.nn.functional.embedding(place[ids], table)
        hidden = self.model.model(inputs_embeds=rows, use_cache=False)[0].flatten(0, 1)[where]
        column = torch.zeros(vocab, dtype=torch.long)
        column[columns] = torch.arange(len(columns))
        loss, right = SparseCE.apply(hidden, table[place[columns]], bias, column[top], p)
        loss = loss / len(where)
        loss.backward()
        torch.nn.utils.clip_grad_norm_([*(p for n, p in self.weights.items() if n != "own"), own], 1.0)
        self.optimizers[1].rows, self.optimizers[1].grad = used, own.grad
        factor = rate(self.step, planned, a.warmup, a.cooldown)
        for optimizer, full in zip(self.optimizers, self.full, strict=True):
            for group, lr in zip(optimizer.param_groups, full, strict=True):
                group["lr"] = lr * factor
            optimizer.step()
            optimizer.zero_grad()
        if self.step % 4 == 0:
            with torch.no_grad():
                part = max(0.12, 4 / (self.step + 4))
                torch._foreach_lerp_(list(self.average.values()), list(self.weights.values()), part)
        self.step += 1
        return loss.item(), right.item() / len(where), len(where)

    def run(self, data: Data, measure, until: float = float("inf")) -> None:
        """Train to `args.steps`, or as far as the clock time `until` allows; a checkpoint every `args.save_minutes`.

        Where time is the limit, the steps that it allows are estimated all along, so the rate is at zero in time.
        """
        a, saved, seen, begun, mean, pace = self.args, time.time(), 0, time.time(), None, None
        self.model.train()
        with shards.progress() as bar:
            task = bar.add_task("training", total=a.steps, completed=self.step, note="")
            planned = float(a.steps)
            while self.step < planned and time.time() < until:
                before = time.time()
                loss, right, n = self.train_step(data, planned)
                took = time.time() - before
                pace = took if pace is None else 0.97 * pace + 0.03 * took
                planned = min(a.steps, self.step + (until - time.time()) / pace)
                self.minutes += took / 60
                seen += n
                mean = (loss, right) if mean is None else (0.98 * mean[0] + 0.02 * loss, 0.98 * mean[1] + 0.02 * right)
                note = f"{self.step}/{planned:.0f} loss {mean[0]:.3f} agreement {mean[1]:.3f} "
                note += f"{seen / (time.time() - begun):.0f} tokens/s"
                bar.update(task, completed=self.step, total=planned, note=note)
                if time.time() - saved > 60 * a.save_minutes:
                    self.checkpoint(data, measure, mean, bar.console)
                    saved = time.time()
            self.checkpoint(data, measure, mean, bar.console)

    def checkpoint(self, data: Data, measure, mean, console) -> None:
        loss, train = mean or (0.0, 0.0)
        entry = dict(step=self.step, loss=round(loss, 3), train=round(train, 3), minutes=round(self.minutes, 1))
        entry |= dict(rows=len(data.rows), tokens=data.tokens)
        self.log.append(entry | dict(held=measure(self.averaged())))
        console.print(json.dumps(self.log[-1]), soft_wrap=True)
        self.save()
        data.refresh()
