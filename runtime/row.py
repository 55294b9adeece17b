"""Row: one text in one row of an engine's state. Prefill, catch-up, truncation; tokens in, lengths right."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import reduce
from itertools import takewhile

import torch

from ..drafter import READS_FEATURES, WITH_CACHE
from ..errors import ConfigError, EngineFault
from ..manifest import EngineManifest
from .options import Grammar, whole
from .placed import AnyState
from .programs import Programs


class Row:
    """A text, and how much of it each model's cache holds.

    These numbers are the truth, and are written to the state before a step that finds others there: so a step that was
    interrupted, or that this row sat out, leaves nothing behind.

    Attributes:
        index: of the row in the state.
        ids: every token known, prompt first.
        target_length, drafter_length: L_t and L_d, tokens in the caches. Between steps L_t is `len(ids) - 1`, the last
            token being the root of the next step. Several drafters have one L_d, since each is shown all.
        grammar, grammar_state: the automaton that the text follows, and where it stands; None and 0 without.
    """

    def __init__(self, index: int, state: AnyState, manifest: EngineManifest, programs: Programs) -> None:
        self.index, self.state, self.manifest = index, state, manifest
        self.slack = max(2 * (programs.depth + 1), manifest.chunk)  # two steps may have written: one ran ahead
        self.limit = 0  # tokens that the text will have at most
        self.has_drafter = manifest.drafter_kind in WITH_CACHE
        self.shift = 1 if manifest.drafter_kind in READS_FEATURES else 0
        own = [manifest.drafter, *manifest.more_drafters] if self.has_drafter else []
        self._positions = min((one.max_positions for one in own if one is not None), default=sys.maxsize)
        self.ids: list[int] = []
        self.target_length = self.drafter_length = self._used = 0
        self.grammar: Grammar | None = None
        self.grammar_state = 0
        self._remembered = 0  # tokens that other texts may draft from
        self._given = 0  # tokens in front of those that the grammar rules

    def truncate(self, total: int) -> None:
        """Keep the first `total` tokens; what comes next goes on from there.

        Raises:
            ConfigError: fewer than one, or more than there are.
        """
        total = whole("truncate: total", total, 0)
        if not self.ids:
            raise ConfigError(f"cannot truncate to {total} tokens: there is no text yet; generate one first")
        if not 1 <= total <= len(self.ids):
            raise ConfigError(
                f"cannot truncate to {total} tokens: the text has {len(self.ids)}; give 1..{len(self.ids)}"
            )
        self.target_length = min(self.target_length, total - 1)
        self.drafter_length = min(self.drafter_length, self.drafted_before(total - 1))
        del self.ids[total:]
        self._remembered = min(self._remembered, total)
        if self.grammar is not None:
            self.grammar_state = reduce(self.grammar.next_state, self.ids[self._given :], self.grammar.start)

    def common(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt need not be computed, since the target's cache holds them."""
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(self.ids, prompt, strict=False)))
        return min(same, self.target_length, len(prompt) - 1)

    def keep(self, total: int) -> None:
        """Forget all but the first `total` tokens, which the target's cache holds; `append` comes next."""
        # Slots last: an interrupt must not leave a text that claims what was cleared.
        self.target_length, self.drafter_length = total, min(self.drafter_length, self.drafted_before(total))
        del self.ids[total:]
        self._remembered = min(self._remembered, total)
        self.state.clear(self.index, total, min(self._used + self.slack, self.manifest.slots))
        self._used = total
        if not total:
            self.state.forget(self.index)

    def copy(self, other: Row, total: int) -> None:
        """Become a copy of another row's first `total` tokens, which its target's cache holds; `append` comes next."""
        self.keep(0)
        self._used = total
        self.state.copy(other.index, self.index, total)
        self.ids += other.ids[:total]
        self.target_length, self.drafter_length = total, min(other.drafter_length, self.drafted_before(total))

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens and bring the target's cache up to them, all but the last, which is the next root."""
        self.ids += tokens
        self.state.set("history", self.index, self.ids)
        end = len(self.ids) - 1
        self.drafter_length = min(self.drafter_length, self.drafted_before(end))
        self.target_length = self._prefill("prefill_target", min(self.target_length, end), end)

    def remember(self) -> None:
        """The text has ended: others may draft from it, where the engine was compiled for that."""
        self.state.remember(self.ids[self._remembered :])
        self._remembered = len(self.ids)

    def catch_up(self, depth: int) -> None:
        """Fill the drafter's cache until a step of this depth takes the rest: after prefill, plain steps, a cut."""
        if self.has_drafter and self.pending > depth + 1:
            end = self.drafted_before(self.target_length)
            for name in self.manifest.drafter_prefills:
                self._prefill(name, self.drafter_length, end, self.shift)
            self.drafter_length = max(self.drafter_length, end)

    def follow(self, grammar: Grammar | None) -> None:
        """What comes next follows this automaton from its start, or none."""
        self.grammar, self.grammar_state = grammar, 0 if grammar is None else grammar.start
        self._given = len(self.ids)

    def drafted_before(self, length: int) -> int:
        """Slots of the drafter in front of the one that it drafts from, for a root that stands at `length`."""
        return max(0, length - self.shift)

    @property
    def caught_up(self) -> int:
        """What the drafter's cache holds behind a step of which it was a part."""
        return self.target_length + 1 - self.shift

    @property
    def draftable(self) -> bool:
        """Whether the drafter has a position for the root; behind its last one every step is plain."""
        return self.draftable_behind(0)

    def draftable_behind(self, tokens: int) -> bool:
        """Whether it has one for a root that stands so many tokens further on."""
        return self.drafted_before(self.target_length + tokens) < self._positions

    @property
    def pending(self) -> int:
        """Tokens that the drafter has not seen, the root included."""
        return self.caught_up - self.drafter_length

    def take(self, tokens: Sequence[int], depth: int) -> None:
        """Take in what a step of this depth emitted.

        Raises:
            EngineFault: a token that the grammar does not allow.
        """
        drafter_length = self.drafter_length
        if depth and self.has_drafter and self.pending <= depth + 1:
            drafter_length = self.caught_up  # all that was pending is in its cache now
        state = self.grammar_state
        for token in tokens if self.grammar else ():
            assert self.grammar is not None
            state = self.grammar.next_state(state, token)
            if state < 0:
                raise EngineFault(f"token {token} came where the grammar does not allow it; please report this bug")
        self.state.emitted(self.index, len(self.ids), tokens)
        self.ids += tokens  # first: an interrupt between these lines must not leave lengths past the text
        self.grammar_state = state
        self.drafter_length = drafter_length
        self.target_length = len(self.ids) - 1
        self._used = max(self._used, self.target_length)

    def _prefill(self, name: str, length: int, end: int, shift: int = 0) -> int:
        """Fill a model's slots `length..end - 1` from the ids `shift` places on, in chunks, the last one padded.

        Returns:
            The cache's new length.
        """
        chunk = self.manifest.chunk
        while length < end:
            part = self.ids[length + shift : min(length + chunk, end) + shift]
            self._used = max(self._used, length + len(part))
            tokens = torch.tensor([part + [0] * (chunk - len(part))])
            self.state.call(name, length, self.index, tokens=tokens, start=torch.tensor([length]))
            length += len(part)
        return length
