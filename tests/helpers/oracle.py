"""Plain eager references with every branch that the graphs have; no cache, no batching, no tricks."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import (
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specc.tree import DraftTree

MASK = 0xFFFFFFFF
RACE, DRAFT, COIN, RESIDUAL = range(4)


# --- random numbers


def philox(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10 on Python integers (Salmon et al. 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        low, high = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(high >> 32) ^ c[1] ^ k[0], high & MASK, (low >> 32) ^ c[3] ^ k[1], low & MASK]
        k = [(k[0] + 0x9E3779B9) & MASK, (k[1] + 0xBB67AE85) & MASK]
    return tuple(c)


def uniforms(seed: int, sample: int, position: int, stream: int, size: int) -> list[float]:
    """The uniform numbers of one position: four to a call, `((bits >> 9) + 1/2) / 2^23`."""
    numbers: list[float] = []
    for index in range(-(-size // 4)):
        counter = (index, position & MASK, (sample * 8 + stream) & MASK, 0)
        words = philox(counter, (seed & MASK, (seed >> 32) & MASK))
        numbers += [((word >> 9) + 0.5) * 2.0**-23 for word in words]
    return numbers[:size]


def gumbels(seed: int, position: int, size: int, stream: int = RACE, sample: int = 0) -> Tensor:
    """Gumbel noise of one position, from the uniforms above."""
    return -torch.log(-torch.log(torch.tensor(uniforms(seed, sample, position, stream, size))))


# --- distributions


def processed(
    logits: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    """Logits `[rows, V]` after transformers' own processors, which sort."""
    logits = logits.float()
    for warper in (
        TemperatureLogitsWarper(float(temperature)) if temperature != 1.0 else None,
        TopKLogitsWarper(top_k) if top_k else None,
        TopPLogitsWarper(top_p) if top_p < 1.0 else None,
        MinPLogitsWarper(min_p) if min_p else None,
    ):
        logits = warper(None, logits) if warper else logits
    return logits


def penalized(
    logits: Tensor,
    text: Sequence[int],
    prompt: int,
    *,
    bias: Tensor | None = None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    min_new_tokens: int = 0,
    eos: Sequence[int] = (),
) -> Tensor:
    """Logits `[V]` behind `text`, whose first `prompt` tokens were given: transformers' processors where it has them,
    the formula of the OpenAI API for presence and frequency."""
    scores, ids = logits.float()[None].clone(), torch.tensor([list(text)])
    if bias is not None:
        scores = scores + bias
    if repetition_penalty != 1.0:
        scores = RepetitionPenaltyLogitsProcessor(repetition_penalty)(ids, scores)
    for token in set(text[prompt:]):
        count = list(text[prompt:]).count(token)
        scores[0, token] -= count * frequency_penalty + presence_penalty
    if min_new_tokens and eos:
        scores = MinNewTokensLengthLogitsProcessor(prompt, min_new_tokens, list(eos), device="cpu")(ids, scores)
    return scores[0]


def chi_square_tail(counts: Tensor, law: Tensor) -> float:
    """Probability of a chi-square statistic at least this large if `counts` follow `law`; 0 where law excludes one."""
    counts, law = counts.double().flatten(), law.double().flatten()
    if counts[law == 0].sum() > 0:
        return 0.0
    counts, law = counts[law > 0], law[law > 0]
    expected = law / law.sum() * counts.sum()
    rare = expected < 5  # pooled, as the approximation needs
    if rare.any():
        counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
        expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor(max(1, len(counts) - 1) / 2.0, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def binomial_deviation(hits: int, draws: int, chance: float) -> float:
    """How many standard deviations a count lies from its expectation."""
    return (hits - draws * chance) / math.sqrt(max(draws * chance * (1 - chance), 1e-12))


# --- decoding


@torch.no_grad()
def next_logits(model: Any, text: Sequence[int]) -> Tensor:
    """Logits behind a text, the whole of which is run again."""
    ids = torch.tensor([list(text)])
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, -1].float()


@functools.lru_cache
def _greedy(model: Any, text: tuple[int, ...], new: int) -> tuple[int, ...]:
    out = list(text)
    for _ in range(new):
        out.append(int(next_logits(model, out).argmax()))
    return tuple(out[len(text) :])


def ended(tokens: Sequence[int], eos: Sequence[int]) -> list[int]:
    """The tokens up to the first end-of-text id, that one included."""
    for index, token in enumerate(tokens):
        if token in eos:
            return list(tokens[: index + 1])
    return list(tokens)


def greedy_text(model: Any, text: Sequence[int], new: int, eos: Sequence[int] = ()) -> list[int]:
    """The arg-max continuation."""
    return ended(_greedy(model, tuple(text), new), eos)


def processed_text(
    model: Any,
    text: Sequence[int],
    new: int,
    *,
    seed: int | None = None,
    sampling: dict[str, Any] | None = None,
    eos: Sequence[int] = (),
    **penalties: Any,
) -> list[int]:
    """The target alone with every processor: greedy, or with a seed the draw by that seed's noise."""
    out = list(text)
    while len(out) < len(text) + new:
        scores = penalized(next_logits(model, out), out, len(text), eos=eos, **penalties)
        if seed is not None:
            scores = processed(scores[None], **(sampling or {}))[0] + gumbels(seed, len(out), len(scores))
        out.append(int(scores.argmax()))
        if out[-1] in eos:
            break
    return out[len(text) :]


def sampled_text(model: Any, text: Sequence[int], new: int, seed: int, **processors: Any) -> list[int]:
    """Plain sampling in which the noise of a position depends on seed and position alone."""
    out = list(text)
    for _ in range(new):
        logits = processed(next_logits(model, out)[None], **processors)[0]
        out.append(int((logits + gumbels(seed, len(out), len(logits))).argmax()))
    return out[len(text) :]


def text_law(model: Any, text: Sequence[int], new: int, **processors: Any) -> dict[tuple[int, ...], float]:
    """The exact law of the next `new` tokens, by enumeration of every context that has a chance."""
    law = {(): 1.0}
    for _ in range(new):
        longer = {}
        for tail, chance in law.items():
            row = processed(next_logits(model, [*text, *tail])[None], **processors)[0].double().softmax(-1)
            for token in row.nonzero().flatten().tolist():
                longer[(*tail, token)] = chance * float(row[token])
        law = longer
    return law


# --- trees


def tree_tables(paths: Sequence[tuple[int, ...]]) -> tuple[list[int], list[int], list[list[bool]]]:
    """Parents, depths and ancestor mask of a tree given as paths in breadth-first order, the root first."""
    parents = [paths.index(path[:-1]) for path in paths]
    ancestors = [[path[: len(other)] == other for other in paths] for path in paths]
    return parents, [len(path) for path in paths], ancestors


def draft_tree(
    model: Any, text: Sequence[int], paths: Sequence[tuple[int, ...]], score: Callable[[Tensor, int], Tensor]
) -> list[int]:
    """Tokens of a draft tree: child c of a node is the c-th best token by `score(logits, depth of the child)`."""
    tokens: dict[tuple[int, ...], int] = {(): text[-1]}
    for path in paths[1:]:
        branch = [tokens[path[:i]] for i in range(1, len(path))]
        logits = next_logits(model, [*text, *branch])
        scores = score(logits, len(path)).tolist()
        tokens[path] = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)[
            path[-1]
        ]  # stable: low ids first
    return [tokens[path] for path in paths]


# --- acceptance, one row at a time


def walk(
    choices: Sequence[int], tokens: Sequence[int], parents: Sequence[int], valid: Sequence[bool]
) -> tuple[list[int], list[int]]:
    """From the root, to the first valid child that is the choice, and on; path and emitted tokens."""
    ends: list[list[int]] = [[0]]
    paths: list[list[int]] = []
    while ends:
        paths += ends
        ends = [
            [*path, child]
            for path in ends
            for child in range(1, len(tokens))
            if parents[child] == path[-1] and valid[child] and tokens[child] == choices[path[-1]]
        ]
    path = min(paths, key=lambda p: (-len(p), p[-1]))
    return path, [*(tokens[node] for node in path[1:]), choices[path[-1]]]


def reject(p: Tensor, q: Tensor, drafts: Sequence[int], offered: int, coins: Sequence[float]) -> tuple[int, Tensor]:
    """Levels accepted, and the law of the next token: residual, or p where nothing was rejected or nothing is left."""
    for level, token in enumerate(drafts[:offered]):
        if coins[level] < p[level, token] / q[level, token]:
            continue
        residual = (p[level] - q[level]).clamp(min=0)
        return level, residual / residual.sum() if residual.sum() > 0 else p[level]
    return offered, p[offered]


def cut(
    block: Sequence[int], accepted: int, eos: Sequence[int], limit: int, length: int, active: bool
) -> tuple[int, bool]:
    """Tokens that count, and whether the row goes on: one token after the other, as a host would append them."""
    if not active:
        return 0, False
    total, count = length + 1, 0
    for token in block[: accepted + 1]:
        if total >= limit:
            break
        total, count = total + 1, count + 1
        if token in [e for e in eos if e >= 0]:
            return count, False
    return count, total < limit


def lookup(text: Sequence[int], drafts: int, longest: int = 4) -> list[int]:
    """What followed the latest earlier occurrence of the longest suffix, going round where it runs into the end."""
    for size in range(min(longest, len(text) - 1), 0, -1):
        suffix = list(text[-size:])
        for end in range(len(text) - 1, size - 1, -1):
            if list(text[end - size : end]) == suffix:
                found = list(text)
                for index in range(drafts):
                    found.append(found[end + index])
                return found[len(text) :]
    return []


def lookup_tree(
    text: Sequence[int], tree: DraftTree, longest: int = 4, others: Sequence[Sequence[int]] = ()
) -> dict[int, int]:
    """The token of each node that gets one: a node's children are the different tokens behind its best matches, of
    equal ones the later, this text's before those of the `others`."""
    matches = []
    for number, known in enumerate([*others, text]):
        own = number == len(others)
        for end in range(1, len(known) + (not own)):
            size = next((k for k in range(longest, 0, -1) if k <= end and known[end - k : end] == text[-k:]), 0)
            if size:
                behind = list(known)
                for index in range(tree.depth if own else 0):
                    behind.append(behind[end + index])
                matches.append((size, number, end, behind[len(known) if own else end :][: tree.depth]))
    ranked = [behind for *_, behind in sorted(matches, reverse=True)]
    found: dict[int, int] = {}
    for node in range(1, len(tree)):
        line = [n for n in range(1, node) if tree.ancestors[node][n]]
        if all(n in found for n in line):
            path = [found[n] for n in line]
            children = dict.fromkeys(b[len(path)] for b in ranked if b[: len(path)] == path and len(b) > len(path))
            found |= dict(zip([node], list(children)[tree.paths[node][-1] :], strict=False))
    return found


# --- attention


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    seen: Tensor,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """One softmax over all columns, head by head and row by row; `seen` is `[T, R]`."""
    out = torch.zeros(*q.shape[:3], v.shape[3])
    share = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                columns = seen[t].nonzero().flatten()
                scores = k[b, h // share, columns] @ q[b, h, t] * scale
                scores = softcap * torch.tanh(scores / softcap) if softcap else scores
                if sinks is not None:
                    scores = torch.cat([scores, sinks[h : h + 1]])
                weights = scores.softmax(0)[: len(columns)]
                out[b, h, t] = weights @ v[b, h // share, columns]
    return out
