"""What a generation gives: text, ids, log-probabilities, and what it cost."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..manifest import LOSSY


@dataclass(slots=True)
class Stats:
    """Counts and seconds of one generation.

    Attributes:
        prompt_tokens: ids given; `reused_tokens` of them were in the caches already and were not computed again.
        tokens: ids emitted. A stop string takes back those it began in; the counts below keep them.
        steps: passes of the target after prefill; `plain_steps` of them without a draft.
        drafted: levels offered, before anything was cut; accepted: levels taken.
        drafted_per_position, accepted_per_position: the same by depth in the draft, first level first; they sum to
            `drafted` and `accepted`.
        prefill_s, decode_s: seconds before the first step; seconds in steps, those of the other rows included.
    """

    prompt_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    plain_steps: int = 0
    drafted: int = 0
    accepted: int = 0
    drafted_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    prefill_s: float = 0.0
    decode_s: float = 0.0
    reused_tokens: int = 0

    @property
    def acceptance_rate(self) -> float:
        """Share of the drafted levels that were accepted; 0 where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def block_efficiency(self) -> float:
        """Tokens per pass of the target."""
        return self.tokens / self.steps if self.steps else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second in steps; prefill is not counted."""
        return self.tokens / self.decode_s if self.decode_s else 0.0

    def count(self, accepted: int, offered: int, plain: bool) -> None:
        """Take in one step."""
        self.steps += 1
        self.plain_steps += plain
        self.drafted += offered
        self.accepted += accepted
        for i in range(offered):
            self.drafted_per_position[i] += 1
            self.accepted_per_position[i] += i < accepted


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probabilities at one new token.

    Attributes:
        token: the token that was emitted.
        logprob: its own natural logarithm of probability.
        top: the likeliest ids with theirs, best first; as many as `logprobs` asked for, without impossible ones.
    """

    token: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one generation gave.

    Attributes:
        text: the new text; empty where the engine has no tokenizer.
        token_ids: new ids only, the end-of-text id included; up to a stop string, the shortest run that spells `text`
            (its last token may spell more).
        finish_reason: `stop` (an end-of-text id or a stop string), `length` (`max_new_tokens`), `context` (the
            engine's is full), `cancelled` (`Session.cancel`) or `step` (`Engine.step` makes one only).
        seed: the one used, also where none was given; None if greedy.
        sample: which of the `n` samples it is, from 0.
        logprobs: one entry per id of `token_ids`; None where they were not asked for.
        acceptance: the rule by which drafts were accepted.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: Stats
    seed: int | None = None
    sample: int = 0
    logprobs: list[TokenLogprob] | None = None
    acceptance: str = "greedy"

    @property
    def lossy(self) -> bool:
        """Whether the text does not follow the target's law: under `typical` acceptance, which has to be asked for."""
        return self.acceptance in LOSSY
