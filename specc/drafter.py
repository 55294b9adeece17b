"""DrafterSpec: what the second argument of `specc compile` says, `eagle3:PATH` or `ngram:4,3` for one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .errors import ConfigError

MODEL, NGRAM, LOOKAHEAD, MEDUSA, EAGLE, EAGLE3, SELF = KINDS = (
    "model",
    "ngram",
    "lookahead",
    "medusa",
    "eagle",
    "eagle3",
    "self",
)
READS_FEATURES = (MEDUSA, EAGLE, EAGLE3)  # what the target computed goes into the next draft
WITH_CACHE = (MODEL, EAGLE, EAGLE3)  # drafters with keys and values of their own
BY_LEVEL = (*WITH_CACHE, SELF)  # a run of their layers drafts each level of the tree
LONGEST = 4  # tokens of the suffix that n-gram lookup begins with
# Tokens of the shortest suffix that is looked up before a drafter is asked. Of the first drafts on texts of
# SmolLM2-135M 0.16 to 0.27 are right behind one token that occurred before, 0.48 to 0.64 behind two, 0.59 to 0.74
# behind three; its EAGLE-3 drafter is right at 0.51.
LEAST = 2
LOOKAHEAD_SIZES = (7, 5, 7)  # window, level, guesses: the paper's README

_NUMBERED = {NGRAM: (1, 2), LOOKAHEAD: (3, 3)}  # how many numbers may stand behind the colon
FORMS = (
    "a hub id, folder or GGUF file, A+B for several, ngram[:n,K], lookahead[:W,N,G], "
    "medusa:PATH, eagle:PATH, eagle3:PATH, self:LAYERS, or ngram,eagle:PATH"
)


@dataclass(frozen=True, slots=True)
class DrafterSpec:
    """How an engine drafts.

    Attributes:
        kind: one of `KINDS`.
        sources: where its weights come from, one for each model; empty where it has none.
        numbers: ngram `(n,)`; lookahead `(W, N, G)`; self: the layers that are kept, ascending.
        draft_length: the K of `ngram:n,K`, None elsewhere.
        lookup: longest suffix (n) of an n-gram lookup that goes first, 0 for none (`ngram,eagle:PATH`).
    """

    kind: str
    sources: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    draft_length: int | None = None
    lookup: int = 0

    @property
    def reads_features(self) -> bool:
        """Whether the target's hidden states are kept for it."""
        return self.kind in READS_FEATURES

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of its models in programs: `drafter`, `drafter2`, ..."""
        if self.kind in (NGRAM, LOOKAHEAD):
            return ()
        return tuple(map(role_of, range(max(1, len(self.sources)))))

    @property
    def by_level(self) -> bool:
        """Whether a run of its layers drafts each level of the tree."""
        return self.kind in BY_LEVEL

    @property
    def longest_suffix(self) -> int:
        """Most tokens of the text's end that are looked up in it; 0 where drafts come from elsewhere alone."""
        return self.numbers[0] if self.kind == NGRAM else self.lookup

    @property
    def has_cache(self) -> bool:
        """Whether it has keys and values of its own, and a prefill."""
        return self.kind in WITH_CACHE


def role_of(place: int) -> str:
    """Name in programs of the model of the drafter at this place, from 0: `drafter`, `drafter2`, ..."""
    return f"drafter{place + 1}" if place else "drafter"


def parse_drafter(text: str) -> DrafterSpec:
    """Read what the user gave as drafter.

    A path that exists is a model, whatever its name looks like.

    Raises:
        ConfigError: it is none of the forms; says which there are.
    """
    if Path(text).expanduser().exists():
        return DrafterSpec(MODEL, (text,))
    first, comma, rest = text.partition(",")
    if comma and first == NGRAM and not rest.replace(",", "").isdigit():
        if not rest:
            raise ConfigError(f"drafter {text!r}: nothing comes behind the comma; give ngram, or ngram,eagle:PATH")
        spec = parse_drafter(rest)
        if spec.kind in (NGRAM, LOOKAHEAD) or spec.lookup:
            raise ConfigError(f"drafter {text!r}: behind ngram, comes a drafter with weights, as ngram,eagle:PATH")
        return DrafterSpec(spec.kind, spec.sources, spec.numbers, spec.draft_length, lookup=LONGEST)
    kind, colon, rest = text.partition(":")
    if kind in _NUMBERED and (colon or kind == text):
        return _numbered(kind, rest, text) if colon else DrafterSpec(kind, numbers=_defaults(kind))
    if kind == SELF and colon:
        return DrafterSpec(SELF, numbers=_layers(rest, text))
    if kind in READS_FEATURES and colon:
        if not rest:
            raise ConfigError(f"drafter {text!r}: names no checkpoint; give {kind}:PATH")
        return DrafterSpec(kind, (rest,))
    sources = tuple(text.split("+"))
    if not all(sources):
        raise ConfigError(f"drafter {text!r} is none of {FORMS}")
    return DrafterSpec(MODEL, sources)


def _defaults(kind: str) -> tuple[int, ...]:
    return (LONGEST,) if kind == NGRAM else LOOKAHEAD_SIZES


def _numbered(kind: str, rest: str, text: str) -> DrafterSpec:
    least, most = _NUMBERED[kind]
    parts = rest.split(",")
    if not least <= len(parts) <= most or not all(re.fullmatch(r"[1-9]\d{0,2}", part) for part in parts):
        form = "ngram:n or ngram:n,K" if kind == NGRAM else "lookahead:W,N,G"
        raise ConfigError(f"drafter {text!r}: expected {form} with whole numbers of at least 1")
    numbers = tuple(map(int, parts))
    if kind == NGRAM:
        return DrafterSpec(NGRAM, numbers=numbers[:1], draft_length=numbers[1] if len(numbers) > 1 else None)
    if numbers[1] < 2:
        raise ConfigError(f"drafter {text!r}: N, the n-grams' size, must be at least 2")
    return DrafterSpec(LOOKAHEAD, numbers=numbers)


def _layers(rest: str, text: str) -> tuple[int, ...]:
    """`4` keeps layers 0 to 3; `0,1,5` and `0-3,8` keep those named."""
    kept: list[int] = []
    if re.fullmatch(r"\d{1,4}", rest):
        kept = list(range(int(rest)))
    elif re.fullmatch(r"\d{1,4}(-\d{1,4})?(,\d{1,4}(-\d{1,4})?)*", rest):
        spans = [part.split("-") for part in rest.split(",")]
        kept = [i for span in spans for i in range(int(span[0]), int(span[-1]) + 1)]
    if not kept or kept != sorted(set(kept)):
        raise ConfigError(
            f"drafter {text!r}: expected how many layers to keep, as self:8, or which, ascending, as self:0-3,8"
        )
    return tuple(kept)
