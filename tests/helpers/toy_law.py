"""The law of the toy target: logits from the last three tokens, every processor, noise. In plain Python, from options.

`toy_text` is the oracle of the runtime's tests: what decoding one token at a time gives. The fake programs use the same
law with what they find in their tensors.
"""

from __future__ import annotations

import functools
import math
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

VOCAB = 40
INF = math.inf


@dataclass(frozen=True)
class Law:
    """What a row's next token depends on beside its text; the defaults change nothing. Numbers are float32's."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[float, ...] = (0.0,) * VOCAB
    prompt_length: int = 0
    min_length: int = 0
    eos: tuple[int, ...] = ()
    seed: int = 0
    sample: int = 0
    grammar: ToyGrammar | None = None
    salt: tuple[int, ...] = ()  # of the rule and the tree, where the text depends on them

    @functools.cached_property
    def plain(self) -> bool:
        """Whether this is the model's own greedy choice."""
        neutral = (self.temperature, self.repetition, self.presence, self.frequency) == (0, 1, 0, 0)
        return neutral and not any(self.bias) and self.grammar is None and not (self.min_length and self.eos)

    @classmethod
    def of(cls, prompt: Sequence[int], **options: Any) -> Law:
        """From the options of `Engine.generate`."""
        numbers = {name: f32(options.get(f"{name}_penalty", 0.0)) for name in ("presence", "frequency")}
        bias = {**(options.get("logit_bias") or {}), **dict.fromkeys(options.get("bad_token_ids") or (), -INF)}
        allowed = options.get("allowed_token_ids")
        row = [f32(bias.get(v, 0.0)) if allowed is None or v in allowed else -INF for v in range(VOCAB)]
        least, top_k = options.get("min_new_tokens") or 0, options.get("top_k") or 0
        return cls(
            temperature=f32(options.get("temperature", 0.0)),
            top_k=top_k if top_k < VOCAB else 0,
            top_p=f32(options.get("top_p") or 1.0),
            min_p=f32(options.get("min_p") or 0.0),
            repetition=f32(options.get("repetition_penalty", 1.0)),
            **numbers,
            bias=tuple(row),
            prompt_length=len(prompt),
            min_length=len(prompt) + least if least else 0,
            eos=tuple(options.get("eos_token_id", ())),
            seed=options.get("seed") or 0,
            sample=options.get("sample", 0),
            grammar=options.get("grammar"),
        )


@dataclass(frozen=True, eq=False)
class ToyGrammar:
    """A token automaton as `specc.runtime.grammar` builds them."""

    token_class: Tensor
    next: Tensor
    classes: int
    start: int

    @classmethod
    def alternating(cls, groups: Sequence[Iterable[int]], end: int) -> ToyGrammar:
        """Tokens of `groups[0]`, `groups[1]`, ... in turn; `end` may come after a whole round."""
        kinds = len(groups) + 2
        token_class = torch.full((VOCAB,), kinds - 1, dtype=torch.int32)  # of those that never come
        table = torch.full((len(groups) + 2, kinds), -1, dtype=torch.int32)  # state 0 is where nothing is read yet
        for i, group in enumerate(groups):
            token_class[list(group)] = i
            for state in (i, *([len(groups)] if i == 0 else [])):
                table[state, i] = i + 1
        token_class[end] = len(groups)
        table[len(groups), len(groups)] = len(groups) + 1
        return cls(token_class, table.flatten(), kinds, 0)

    def next_state(self, state: int, token: int) -> int:
        """-1 if the token may not follow."""
        return int(self.next[state * self.classes + int(self.token_class[token])]) if state >= 0 else -1


def f32(number: float) -> float:
    """As float32 holds it."""
    return struct.unpack("f", struct.pack("f", number))[0]


@functools.cache
def _logits(a: int, b: int, c: int) -> tuple[float, ...]:
    order = list(range(VOCAB))
    random.Random(a * 1681 + b * 41 + c).shuffle(order)
    return tuple(f32(order[v] / 8 - 2) for v in range(VOCAB))


@functools.cache
def _best(a: int, b: int, c: int) -> int:
    scores = _logits(a, b, c)
    return scores.index(max(scores))


def toy_logits(known: Sequence[int]) -> tuple[float, ...]:
    """The target's logits behind a text."""
    a, b, c = [0, 0, *known][-3:]
    return _logits(a, b, c)


@functools.lru_cache(maxsize=10_000)
def _noise(*key: int) -> tuple[float, ...]:
    draw = random.Random(hash(key))
    return tuple(-math.log(-math.log(draw.random() * 0.999998 + 1e-6)) for _ in range(VOCAB))


def processed(known: Sequence[int], law: Law, state: int = 0) -> list[float]:
    """Logits after all processors, the order of which is that of the issue; -inf where cut."""
    if law.plain:
        return list(toy_logits(known))
    scores = [x + y for x, y in zip(toy_logits(known), law.bias, strict=True)]
    for v in set(known) if law.repetition != 1 else ():
        scores[v] = scores[v] * law.repetition if scores[v] < 0 else scores[v] / law.repetition
    for v in known[law.prompt_length :] if law.presence or law.frequency else ():
        scores[v] -= law.frequency
    for v in set(known[law.prompt_length :]) if law.presence else ():
        scores[v] -= law.presence
    if len(known) < law.min_length:
        for v in law.eos:
            scores[v] = -INF
    if law.grammar is not None:
        scores = [x if law.grammar.next_state(state, v) >= 0 else -INF for v, x in enumerate(scores)]
    return _sampled(scores, law) if law.temperature else scores


def _sampled(scores: list[float], law: Law) -> list[float]:
    top = max(scores)
    scores = [(x - top) / law.temperature for x in scores]
    ranked = sorted(scores, reverse=True)
    least = ranked[law.top_k - 1] if law.top_k else -INF
    budget = law.top_p * sum(math.exp(x) for x in scores if x >= least)
    mass = 0.0  # of the tokens before
    for i, x in enumerate(ranked):
        if law.top_p < 1 and mass >= budget and x < ranked[i - 1]:
            least = max(least, ranked[i - 1])
            break
        mass += math.exp(x)
    return [x if x >= least and math.exp(x) >= law.min_p else -INF for x in scores]


def choose(known: Sequence[int], law: Law, state: int = 0) -> int:
    """The target's next token."""
    if law.plain:
        return _best(*[0, 0, *known][-3:])
    scores = processed(known, law, state)
    if law.temperature:
        noise = _noise(law.seed, law.sample, len(known), *law.salt)
        scores = [x + y for x, y in zip(scores, noise, strict=True)]
    return scores.index(max(scores))


def draft(known: Sequence[int], law: Law, state: int = 0) -> int:
    """A drafter that agrees with the target on two tokens of three."""
    token = choose(known, law, state)
    return token if sum(known[-2:]) % 3 else (token + 1) % VOCAB


def toy_target(known: Sequence[int]) -> int:
    """The target's greedy token."""
    return choose(known, Law())


def toy_text(prompt: Sequence[int], count: int, law: Law | None = None, **options: Any) -> list[int]:
    """What plain decoding of the target gives; end-of-text ids do not end it."""
    law, known = law or Law.of(prompt, **options), list(prompt)
    state = law.grammar.start if law.grammar else 0
    for _ in range(count):
        known.append(choose(known, law, state))
        if law.grammar:
            state = law.grammar.next_state(state, known[-1])
    return known[len(prompt) :]


def expected(prompt: Sequence[int], context: int, **options: Any) -> tuple[list[int], str]:
    """What one token at a time gives with the options of `Engine.generate`, and why it ends."""
    new, eos = options.get("max_new_tokens", 256), options.get("eos_token_id", ())
    law, known = Law.of(prompt, **options), list(prompt)
    state = law.grammar.start if law.grammar else 0
    while True:
        token = choose(known, law, state)
        known.append(token)
        if token in eos:
            return known[len(prompt) :], "stop"
        if len(known) - len(prompt) == new:
            return known[len(prompt) :], "length"
        if len(known) == context:
            return known[len(prompt) :], "context"
        if law.grammar:
            state = law.grammar.next_state(state, token)


def alternatives(known: Sequence[int], law: Law, top: int, raw: bool) -> tuple[list[float], dict[int, float]]:
    """Log-probabilities of all tokens behind a text, and the `top` likeliest with theirs."""
    scores = list(toy_logits(known)) if raw else processed(known, law)
    logprobs = torch.tensor(scores, dtype=torch.float32).log_softmax(0)
    values, ids = logprobs.topk(top)
    best: Mapping[int, float] = dict(zip(ids.tolist(), values.tolist(), strict=True))
    return logprobs.tolist(), {i: value for i, value in best.items() if value > -INF}


def forget() -> None:
    """Empty the memories of this module, so that they are not taken for a leak."""
    for memory in (_logits, _best, _noise):
        memory.cache_clear()
