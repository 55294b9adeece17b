"""Request: what one generation was asked for, checked against the engine that is to honour it."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypedDict

from ..errors import ConfigError
from ..manifest import EngineManifest
from ..tree import DraftTree

MAX_EOS = 8  # columns of the programs' `eos`
MIN_TEMPERATURE = 1e-5  # below it logits / temperature may leave float32
RULES = ("coupled", "rejection")


class Options(TypedDict, total=False):
    """What may be asked for beside the prompt; `Engine.generate` says what each means."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    seed: int | None
    acceptance: str | None
    draft_length: int | None
    eos_token_id: int | Iterable[int] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A valid request, every default filled in.

    Attributes:
        prompt: token ids; for a text that goes on, those to be added (possibly none).
        temperature: 0 is greedy.
        top_k, top_p: 0 and 1.0 leave every token in.
        seed: a new one where the caller gave none, so that it can be reported and used again; None if greedy.
        acceptance: `greedy`, `coupled` or `rejection`.
        draft_length: 0 is the plain step.
        eos_token_ids: at most 8.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int | None
    acceptance: str
    draft_length: int
    eos_token_ids: tuple[int, ...]

    @classmethod
    def make(cls, manifest: EngineManifest, prompt: Iterable[int], known: int = 0, **options: Any) -> Request:
        """Check everything and fill in the engine's defaults.

        Args:
            manifest: of the engine that is asked.
            prompt: token ids.
            known: tokens that the engine holds already, when a text goes on.
            options: as in `Options`.

        Raises:
            ConfigError: an option is unknown, out of range, contradicts another, or cannot be honoured by this engine.
        """
        unknown = sorted(set(options) - set(Options.__annotations__))
        if unknown:
            raise ConfigError(f"unknown option {', '.join(unknown)}; known are {', '.join(Options.__annotations__)}")
        ids = _prompt(manifest, prompt, known)
        temperature = _temperature(options.get("temperature", 0.0))
        acceptance = _acceptance(manifest, options.get("acceptance"), temperature)
        seed = options.get("seed")
        seed = whole("seed", seed, 0, 2**63 - 1) if seed is not None else int.from_bytes(os.urandom(8), "little") >> 1
        request = cls(
            prompt=ids,
            max_new_tokens=whole("max_new_tokens", options.get("max_new_tokens", 256), 1),
            temperature=temperature,
            top_k=_top_k(manifest, options.get("top_k")),
            top_p=_top_p(options.get("top_p")),
            seed=seed if temperature else None,
            acceptance=acceptance,
            draft_length=_draft_length(manifest, options.get("draft_length")),
            eos_token_ids=_eos(manifest, options.get("eos_token_id")),
        )
        program = request.step_program if request.draft_length else request.plain_program
        if program not in manifest.programs:
            raise ConfigError(f"this engine has no program {program}, which this request needs; compile it again")
        return request

    @property
    def plain_program(self) -> str:
        """Name of the program for a step without a draft."""
        return "plain_sampled" if self.temperature else "plain"

    @property
    def step_program(self) -> str:
        """Name of the program for a speculative step."""
        return f"step_{self.acceptance}" if self.temperature else "step"


def whole(name: str, value: object, low: int, high: int | None = None) -> int:
    """A whole number (numpy's and torch's too, but no bool) in `low..high`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # whatever has __index__ is welcome
    except TypeError as e:
        raise ConfigError(f"{name} must be a whole number, not {value!r}") from e
    if number < low or (high is not None and number > high):
        allowed = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ConfigError(f"{name} {number} must be {allowed}")
    return number


def _real(name: str, value: object) -> float:
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        return float(value)  # type: ignore[arg-type]  # whatever has __float__ is welcome
    except (TypeError, ValueError, OverflowError) as e:
        raise ConfigError(f"{name} must be a number, not {value!r}") from e


def _prompt(manifest: EngineManifest, prompt: Iterable[int], known: int) -> tuple[int, ...]:
    try:
        if isinstance(prompt, str | bytes):  # both iterate, bytes even as numbers
            raise TypeError
        items = list(prompt)
    except TypeError as e:
        raise ConfigError(f"prompt must be text or a list of token ids, not {type(prompt).__name__}") from e
    ids = tuple(whole(f"prompt[{i}]", item, 0, manifest.vocab_size - 1) for i, item in enumerate(items))
    if not ids and not known:
        raise ConfigError("prompt is empty; give at least one token")
    if known + len(ids) > manifest.context - 1:
        held = f"{known} tokens known and {len(ids)} more" if known else f"prompt has {len(ids)} tokens,"
        raise ConfigError(
            f"{held} leave no room in the engine's context of {manifest.context}; "
            f"at most {manifest.context - 1} fit: shorten it, or compile with a larger --context"
        )
    return ids


def _temperature(value: object) -> float:
    number = _real("temperature", value)
    if not (number == 0 or MIN_TEMPERATURE <= number <= 3e38):  # false for NaN too
        raise ConfigError(f"temperature {number} must be 0 (greedy) or a finite number of at least {MIN_TEMPERATURE}")
    return number + 0.0  # -0.0 is 0.0


def _top_k(manifest: EngineManifest, value: object) -> int:
    number = 0 if value is None else whole("top_k", value, 0)
    return number if number < manifest.vocab_size else 0


def _top_p(value: object) -> float:
    number = 1.0 if value is None else _real("top_p", value)
    if not 0 < number <= 1:
        raise ConfigError(f"top_p {number} must be above 0 and at most 1; 1 leaves every token in")
    return max(number, math.ldexp(1.0, -126))  # the least normal float32: in the program 0 would mean no token at all


def _acceptance(manifest: EngineManifest, value: object, temperature: float) -> str:
    compiled = [rule for rule in RULES if f"step_{rule}" in manifest.programs]
    if value not in (None, "greedy", *RULES):
        raise ConfigError(f"acceptance {value!r} is not one of greedy, {', '.join(RULES)}")
    if not temperature:
        if value not in (None, "greedy"):
            raise ConfigError(f"acceptance {value!r} needs a temperature above 0; at temperature 0 it is 'greedy'")
        return "greedy"
    if value == "greedy":
        raise ConfigError(
            f"acceptance 'greedy' contradicts temperature {temperature}; use temperature=0, or leave it out"
        )
    if value is None and compiled:
        return compiled[0]
    if value not in compiled:
        rules = ",".join([*compiled, str(value or RULES[0])])
        raise ConfigError(
            f"this engine has no program for acceptance {value or RULES[0]!r} (it has: greedy"
            f"{''.join(', ' + rule for rule in compiled)}); compile it with --acceptance {rules}"
        )
    return str(value)


def _draft_length(manifest: EngineManifest, value: object) -> int:
    depth = DraftTree(manifest.tree_paths).depth
    if value is None:
        return depth
    number = whole("draft_length", value, 0)
    if number > depth:
        raise ConfigError(
            f"draft_length {number} is above {depth}, the most this engine was compiled for; "
            f"compile it with --draft-length {number}"
        )
    return number


def _eos(manifest: EngineManifest, value: int | Iterable[int] | None) -> tuple[int, ...]:
    if value is None:
        value = manifest.eos_token_ids
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        single = not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0  # numpy's and torch's have __iter__
        items = [operator.index(value)] if single else list(value)  # type: ignore[arg-type]
    except TypeError as e:
        raise ConfigError(f"eos_token_id must be a token id, a list of them, or () for none, not {value!r}") from e
    if len(items) > MAX_EOS:
        raise ConfigError(f"eos_token_id lists {len(items)} ids; at most {MAX_EOS} can be watched")
    return tuple(dict.fromkeys(whole("eos_token_id", item, 0, manifest.vocab_size - 1) for item in items))
