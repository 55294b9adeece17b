"""Request: what one generation was asked for, checked against the engine that is to honour it."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..manifest import LOSSY, LOSSY_DRAFTERS, EngineManifest
from .options import (
    MAX_PENALTY,
    MAX_TOP_LOGPROBS,
    Grammar,
    Options,
    bias_of,
    eos_of,
    listed,
    real,
    stops_of,
    temperature_of,
    token_ids,
    top_p_of,
    whole,
)
from .programs import BY_DRAFT, RULES, Programs
from .request_checks import check_engine, check_request, grammar_of

if TYPE_CHECKING:
    from .text import Text


Prompt = Iterable[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A valid request, every default filled in.

    Attributes:
        prompt: token ids; for a text that goes on, those to be added (possibly none).
        temperature: 0 is greedy.
        top_k, top_p, min_p: 0, 1.0 and 0.0 leave every token in, and are those of every greedy request: what it chooses
            is the same under any, and its processed log-probabilities must not hang on neighbours that sample.
        repetition_penalty, presence_penalty, frequency_penalty: 1.0, 0.0 and 0.0 change nothing.
        bias: what is added to logits, by id; -inf for those that are banned.
        allowed: the only ids that may come; None allows all.
        stop: strings that end the text.
        eos_token_ids: at most 8.
        logprobs: number of alternatives to report; None reports nothing.
        seed: a new one where the caller gave none, so that it can be reported and used again; None if greedy.
        sample: which of the `n` samples of one seed this is.
        acceptance: `greedy`, `coupled`, `rejection` or `typical`.
        draft_length: 0 is the plain step.
        adaptive: whether what a step drafts may be chosen, where the engine knows its costs; `draft_length` is what is
            drafted where it does not.
        reuse: whether what the engine holds already of the prompt may be kept.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    min_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    bias: Mapping[int, float]
    allowed: frozenset[int] | None
    stop: tuple[str, ...]
    eos_token_ids: tuple[int, ...]
    grammar: Grammar | None
    logprobs: int | None
    logprobs_mode: str
    n: int
    seed: int | None
    acceptance: str
    draft_length: int
    reuse: bool
    sample: int = 0
    adaptive: bool = False

    @classmethod
    def make(
        cls, manifest: EngineManifest, prompt: Prompt, known: int = 0, text: Text | None = None, **options: Any
    ) -> Request:
        """Check everything and fill in the engine's defaults.

        Args:
            manifest: of the engine that is asked.
            prompt: token ids.
            known: tokens that the engine holds already, when a text goes on.
            text: the engine's tokenizer, if it has one.
            options: as in `Options`.

        Raises:
            ConfigError: an option is unknown, out of range, contradicts another, or cannot be honoured by this engine.
        """
        unknown = sorted(set(options) - set(Options.__annotations__))
        if unknown:
            raise ConfigError(f"unknown option {', '.join(unknown)}; known are {', '.join(Options.__annotations__)}")
        vocab, programs = manifest.vocab_size, Programs(manifest)

        def given(name: str, default: Any = None) -> Any:
            value = options.get(name)
            return default if value is None else value

        temperature = temperature_of(options.get("temperature", 0.0))
        acceptance = _acceptance(manifest, programs, given("acceptance"), temperature)
        eos = eos_of(given("eos_token_id", manifest.eos_token_ids), vocab)
        seed = given("seed")
        seed = _new_seed() if seed is None else whole("seed", seed, 0, 2**63 - 1)
        top_k = whole("top_k", given("top_k", 0), 0, hint="; 0 means none")
        top_p = top_p_of(given("top_p"))
        min_p = real("min_p", given("min_p", 0.0), 0, 1, "; 0 leaves every token in")
        top_logprobs = given("logprobs")
        request = cls(
            prompt=_prompt(manifest, prompt, known),
            max_new_tokens=whole("max_new_tokens", options.get("max_new_tokens", 256), 1),
            min_new_tokens=whole("min_new_tokens", given("min_new_tokens", 0), 0),
            temperature=temperature,
            top_k=top_k if temperature and top_k < vocab else 0,
            top_p=top_p if temperature else 1.0,
            min_p=min_p if temperature else 0.0,
            repetition_penalty=real(
                "repetition_penalty", given("repetition_penalty", 1.0), 1 / MAX_PENALTY, MAX_PENALTY, "; 1 is none"
            ),
            presence_penalty=real("presence_penalty", given("presence_penalty", 0.0), -2, 2),
            frequency_penalty=real("frequency_penalty", given("frequency_penalty", 0.0), -2, 2),
            bias=_bias(given("logit_bias", {}), given("bad_token_ids", ()), vocab),
            allowed=_allowed(given("allowed_token_ids"), vocab),
            stop=stops_of(given("stop", ())),
            eos_token_ids=eos,
            grammar=grammar_of(options, text, manifest, eos),
            logprobs=None if top_logprobs is None else whole("logprobs", top_logprobs, 0, MAX_TOP_LOGPROBS),
            logprobs_mode=given("logprobs_mode", "raw"),
            n=whole("n", given("n", 1), 1),
            seed=seed if temperature else None,
            acceptance=acceptance,
            draft_length=_draft_length(manifest, programs, given("draft_length"), acceptance, given("acceptance")),
            reuse=given("reuse", False),
            adaptive=given("draft_length") is None and acceptance not in BY_DRAFT,
        )
        check_request(request, manifest, known, text)
        check_engine(request, manifest, programs)
        return request

    @classmethod
    def make_all(
        cls, manifest: EngineManifest, prompts: Sequence[Prompt], text: Text | None = None, **options: Any
    ) -> list[Request]:
        """One request for each sample of each prompt, in order; without a seed, every prompt gets its own."""
        several = len(prompts) > 1
        ids = [_prompt(manifest, p, 0, f"prompts[{i}]" if several else "prompt") for i, p in enumerate(prompts)]
        first = cls.make(manifest, ids[0], text=text, **options)  # a grammar is compiled once
        requests: list[Request] = []
        for prompt in ids:
            fresh = first.seed is not None and options.get("seed") is None
            request = dataclasses.replace(first, prompt=prompt, seed=_new_seed() if fresh else first.seed)
            check_request(request, manifest, 0, text)
            requests += [dataclasses.replace(request, sample=sample) for sample in range(request.n)]
        return requests

    @property
    def rule(self) -> str:
        """The rule of the programs that serve it: a plain step that samples is `coupled`, with nothing to accept."""
        return self.acceptance if self.draft_length else self.plain_rule

    @property
    def plain_rule(self) -> str:
        """The rule of the plain steps that serve it."""
        return "coupled" if self.temperature else "greedy"

    def fit(self, manifest: EngineManifest, known: int) -> None:
        """Check once more that the prompt fits behind `known` tokens, which may have changed since.

        Raises:
            ConfigError: it does not.
        """
        _prompt(manifest, self.prompt, known)


def split_prompts(prompt: Any) -> list[Any] | None:
    """The prompts of a list of them (texts or lists of ids); None if it is one prompt, which is not used up."""
    if isinstance(prompt, Iterator):
        return None
    try:
        items = listed(prompt)
    except TypeError:
        return None
    several = items and isinstance(items[0], Iterable) and getattr(items[0], "ndim", 1) > 0  # not numpy's numbers
    return items if several else None


def _new_seed() -> int:
    return int.from_bytes(os.urandom(8), "little") >> 1


def _prompt(manifest: EngineManifest, prompt: Prompt, known: int, name: str = "prompt") -> tuple[int, ...]:
    try:
        items = listed(prompt)
    except TypeError as e:
        raise ConfigError(f"{name} must be text or a list of token ids, not {type(prompt).__name__}") from e
    ids = tuple(whole(f"{name}[{i}]", item, 0, manifest.vocab_size - 1) for i, item in enumerate(items))
    if not ids and not known:
        raise ConfigError(f"{name} is empty; give at least one token")
    if known + len(ids) > manifest.context - 1:
        held = f"{known} tokens known and {len(ids)} more" if known else f"{name} has {len(ids)} tokens, which"
        raise ConfigError(
            f"{held} leave no room in the engine's context of {manifest.context}; "
            f"at most {manifest.context - 1} fit: shorten it, or compile with a larger --context"
        )
    return ids


def _bias(bias: Any, banned: Any, vocab: int) -> dict[int, float]:
    return {**bias_of(bias, vocab), **dict.fromkeys(token_ids("bad_token_ids", banned, vocab), -math.inf)}


def _allowed(allowed: Any, vocab: int) -> frozenset[int] | None:
    return None if allowed is None else frozenset(token_ids("allowed_token_ids", allowed, vocab))


def _acceptance(manifest: EngineManifest, programs: Programs, value: object, temperature: float) -> str:
    compiled = programs.rules()
    if value is not None and (not isinstance(value, str) or value not in ("greedy", *RULES)):
        raise ConfigError(f"acceptance {value!r} is not one of greedy, {', '.join(RULES)}")
    if not temperature:
        if value not in (None, "greedy"):
            raise ConfigError(f"acceptance {value!r} needs a temperature above 0; at temperature 0 it is 'greedy'")
        return "greedy"
    if value == "greedy":
        raise ConfigError(
            f"acceptance 'greedy' contradicts temperature {temperature}; use temperature=0, or leave it out"
        )
    lossless = [rule for rule in compiled if rule not in LOSSY]
    if value is None and lossless:
        return lossless[0]
    if value not in compiled:
        if value in LOSSY and manifest.drafter_kind not in LOSSY_DRAFTERS:
            raise ConfigError(f"acceptance {value!r} is for engines with Medusa heads; leave it out")
        rules = ",".join([*compiled, str(value or RULES[0])])
        raise ConfigError(
            f"this engine has no program for acceptance {value or RULES[0]!r} (it has: greedy"
            f"{''.join(', ' + rule for rule in compiled)}); compile it with --acceptance {rules}"
        )
    return str(value)


def _draft_length(manifest: EngineManifest, programs: Programs, value: object, rule: str, asked: object) -> int:
    if value is None:
        return len(manifest.tree_paths[-1])
    number, longest = whole("draft_length", value, 0), programs.longest(rule)
    if number > longest:
        raise ConfigError(
            f"draft_length {number} is above {longest}, the most this engine was compiled for; "
            f"compile it with --draft-length {number}"
        )
    if not number and asked in BY_DRAFT:
        raise ConfigError(
            f"acceptance {asked!r} contradicts draft_length 0: without a draft there is nothing to reject; leave one "
            "of them out"
        )
    return number
