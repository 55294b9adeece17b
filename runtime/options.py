"""Options: what may be asked for beside the prompt, and the range of each value."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping, Set
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypedDict

from ..errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

MAX_EOS = 8  # columns of the programs' `eos`
MAX_STOPS = 16
MAX_TOP_LOGPROBS = 20
MAX_PENALTY = 1000.0
MAX_BIAS = 1e6  # far from where logits / temperature would leave float32
MAX_TEMPERATURE = 3e38  # float32 ends there
MIN_TEMPERATURE = 1e-5  # below it logits / temperature may leave float32


class Grammar(Protocol):
    """A token automaton, as `runtime.grammar` builds it.

    Attributes:
        token_class: `[V]` int32, the class of every token.
        next: `[states * classes]` int32, the state after a token of that class; -1 where it may not follow.
        classes: number of classes.
        start: the state before the first token.
    """

    @property
    def token_class(self) -> Tensor: ...
    @property
    def next(self) -> Tensor: ...
    @property
    def classes(self) -> int: ...
    @property
    def start(self) -> int: ...
    def next_state(self, state: int, token: int) -> int:
        """The state after a token; -1 if it may not follow."""
        ...


class Options(TypedDict, total=False):
    """What may be asked for beside the prompt; `Engine.generate` says what each means.

    The notes are the help of the command line, which has a flag for every option with one.
    """

    max_new_tokens: Annotated[int, "the most tokens to emit (default 256)"]
    min_new_tokens: Annotated[int, "no end-of-text id comes before so many tokens"]
    temperature: Annotated[float, "0 is greedy; above, tokens are drawn (default 0)"]
    top_k: Annotated[int | None, "draw from the N likeliest tokens only; 0 is all"]
    top_p: Annotated[float | None, "draw from the likeliest tokens that together reach this probability"]
    min_p: Annotated[
        float | None, "draw from tokens at least this likely, as a share of the likeliest one's probability"
    ]
    repetition_penalty: Annotated[
        float, "above 1 makes tokens of the prompt and of the new text less likely (default 1)"
    ]
    presence_penalty: Annotated[float, "taken off the logits of tokens of the new text, -2..2"]
    frequency_penalty: Annotated[float, "the same for each time that a token came, -2..2"]
    logit_bias: Annotated[Mapping[int, float] | None, "add to the logit of a token id; -inf bans it"]
    bad_token_ids: Annotated[Iterable[int] | None, "ids that may not come"]
    allowed_token_ids: Annotated[Iterable[int] | None, "the only ids that may come"]
    stop: Annotated[str | Iterable[str] | None, "the text ends before this one"]
    eos_token_id: Annotated[int | Iterable[int] | None, "ids that end the text, '' for none (default: the model's)"]
    grammar: Grammar | None
    regex: Annotated[str | None, "regular expression that the whole new text must match"]
    json_schema: Annotated[str | Mapping[str, Any] | None, "JSON schema that the whole new text must follow"]
    logprobs: Annotated[int | None, "report the log-probability of every new token, and N alternatives, 0..20"]
    logprobs_mode: Annotated[str, "of the model's own distribution (raw) or of the one drawn from (processed)"]
    n: Annotated[int, "samples of the prompt, at most the engine's rows"]
    seed: Annotated[int | None, "the same seed gives the same text (default: a new one)"]
    acceptance: Annotated[str | None, "greedy, coupled, rejection or typical, which is lossy (default: the engine's)"]
    draft_length: Annotated[int | None, "tokens to draft per step; 0 does not speculate (default: chosen step by step)"]
    reuse: bool


def whole(name: str, value: object, low: int, high: int | None = None, hint: str = "") -> int:
    """A whole number (numpy's and torch's too, but no bool) in `low..high`."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)  # type: ignore[arg-type]  # whatever has __index__ is welcome
    except TypeError as e:
        raise ConfigError(f"{name} must be a whole number, not {value!r}") from e
    if number < low or (high is not None and number > high):
        allowed = f"at least {low}" if high is None else f"in {low}..{high}"
        raise ConfigError(f"{name} {number} must be {allowed}{hint}")
    return number


def real(name: str, value: object, low: float, high: float, hint: str = "") -> float:
    """A number in `low..high`, never NaN."""
    number = _number(name, value)
    if not low <= number <= high:  # false for NaN too
        raise ConfigError(f"{name} {number} must be in {low:g}..{high:g}{hint}")
    return number


def temperature_of(value: object) -> float:
    """0 (greedy), or what keeps logits / temperature in float32."""
    number = _number("temperature", value)
    if not (number == 0 or MIN_TEMPERATURE <= number <= MAX_TEMPERATURE):  # false for NaN too
        raise ConfigError(f"temperature {number} must be 0 (greedy) or in {MIN_TEMPERATURE:g}..{MAX_TEMPERATURE:g}")
    return number + 0.0  # -0.0 is 0.0


def top_p_of(value: object) -> float:
    """Above 0, at most 1; None is 1."""
    number = 1.0 if value is None else _number("top_p", value)
    if not 0 < number <= 1:
        raise ConfigError(f"top_p {number} must be above 0 and at most 1; 1 leaves every token in")
    return max(number, math.ldexp(1.0, -126))  # the least normal float32: in the program 0 would mean no token at all


def token_ids(name: str, value: object, vocab: int) -> tuple[int, ...]:
    """A list of ids of the vocabulary, without repetition."""
    try:
        items = listed(value, ordered=False)
    except TypeError as e:
        raise ConfigError(f"{name} must be a list of token ids, not {value!r}") from e
    return tuple(dict.fromkeys(whole(f"{name}[{i}]", item, 0, vocab - 1) for i, item in enumerate(items)))


def eos_of(value: object, vocab: int) -> tuple[int, ...]:
    """The ids that end a text: one, or a list of at most 8."""
    try:
        if isinstance(value, bool):
            raise TypeError
        single = not isinstance(value, Iterable) or getattr(value, "ndim", 1) == 0  # numpy's and torch's have __iter__
        items = [operator.index(value)] if single else listed(value, ordered=False)  # type: ignore[arg-type]
    except TypeError as e:
        raise ConfigError(f"eos_token_id must be a token id, a list of them, or () for none, not {value!r}") from e
    if len(items) > MAX_EOS:
        raise ConfigError(f"eos_token_id lists {len(items)} ids; at most {MAX_EOS} can be watched")
    return tuple(dict.fromkeys(whole("eos_token_id", item, 0, vocab - 1) for item in items))


def bias_of(value: object, vocab: int) -> dict[int, float]:
    """`logit_bias`: what is added to the logits of ids; -inf bans one."""
    if not isinstance(value, Mapping):
        raise ConfigError(f"logit_bias must be a dict of token id to number, not {value!r}")
    bias = {}
    for key, number in value.items():
        token = whole("logit_bias: token id", key, 0, vocab - 1)
        try:
            least = -math.inf if bool(number == -math.inf) else -MAX_BIAS
        except (ValueError, RuntimeError):  # an array of several: `real` says what is wrong
            least = -MAX_BIAS
        bias[token] = real(f"logit_bias[{token}]", number, least, MAX_BIAS, "; -inf bans the token")
    return bias


def stops_of(value: object) -> tuple[str, ...]:
    """Strings that end a text: one, or a list of at most 16, none of them empty."""
    try:
        items = [value] if isinstance(value, str) else listed(value, ordered=False)
        if not all(isinstance(item, str) for item in items):
            raise TypeError
    except TypeError as e:
        raise ConfigError(f"stop must be a text or a list of texts, not {value!r}") from e
    for item in items:
        if any("\ud800" <= character <= "\udfff" for character in item):
            raise ConfigError(f"stop {item!r} has a broken character, which no text has; give UTF-8")
    if "" in items:
        raise ConfigError("stop '' is empty, and would end every text at once; leave it out")
    if len(items) > MAX_STOPS:
        raise ConfigError(f"stop lists {len(items)} texts; at most {MAX_STOPS} can be watched")
    return tuple(dict.fromkeys(items))


def listed(value: object, *, ordered: bool = True) -> list[Any]:
    """The items of what is a list in any form (numpy's and torch's too); without `ordered` of a set as well.

    Raises:
        TypeError: it has none, or iterates and is no list: a text, bytes (as numbers), a dictionary.
    """
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or (ordered and isinstance(value, Set)):
        raise TypeError
    if getattr(value, "ndim", 1) == 0:
        raise TypeError
    return list(value)  # type: ignore[call-overload]


def _number(name: str, value: object) -> float:
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        return float(value)  # type: ignore[arg-type]  # whatever has __float__ is welcome
    except OverflowError as e:
        raise ConfigError(f"{name} is larger than any number of 64 bits") from e
    except (TypeError, ValueError) as e:
        raise ConfigError(f"{name} must be a number, not {value!r}") from e
