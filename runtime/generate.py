"""Session: one text in an engine's state. Prefill, steps, stop, statistics; tokens in, tokens out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch

from ..errors import ConfigError, EngineFault, EngineFormatError
from ..manifest import EngineManifest
from ..tree import DraftTree
from .request import MAX_EOS, Request, whole
from .state import Runner, State


@dataclass(slots=True)
class Stats:
    """Counts and seconds of one generation.

    Attributes:
        prompt_tokens, tokens: ids given; ids emitted.
        steps: passes of the target after prefill; `plain_steps` of them without a draft.
        drafted: levels offered, before anything was cut; accepted: levels taken.
        drafted_per_position, accepted_per_position: the same by depth in the draft, first level first; they sum to
            `drafted` and `accepted`.
        prefill_s, decode_s: seconds before the first step; seconds in steps.
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

    def count(self, tokens: int, accepted: int, offered: int) -> None:
        """Take in one step."""
        self.tokens += tokens
        self.steps += 1
        self.drafted += offered
        self.accepted += accepted
        for i in range(offered):
            self.drafted_per_position[i] += 1
            self.accepted_per_position[i] += i < accepted


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one generation gave.

    Attributes:
        text: the new text; empty where the engine has no tokenizer.
        token_ids: new ids only, the end-of-text id included.
        finish_reason: `stop` (an end-of-text id), `length` (`max_new_tokens`) or `context` (the engine's is full).
        seed: the one used, also where none was given; None if greedy.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: Stats
    seed: int | None = None


class Session:
    """The text in one row of the engine's state, and the host's knowledge of it.

    The host's numbers are the truth between generations: they are written to the state before the first step, so an
    interrupted one leaves nothing behind. `L_t` and `L_d` are how many tokens each model's cache holds;
    `L_t == len(ids) - 1` between steps, the last token being the root of the next one.

    Attributes:
        ids: every token known, prompt first.
        finish_reason: why the last generation ended; None while it runs, or if it was cut short.
        stats: of the last generation.
    """

    def __init__(self, manifest: EngineManifest, programs: Mapping[str, Runner], device: torch.device) -> None:
        self.manifest, self.row = manifest, 0
        self.depth = DraftTree(manifest.tree_paths).depth
        _check_slack(manifest, self.depth)
        self.state = State(manifest, device)
        for name, runner in programs.items():
            self.state.bind(name, manifest.programs[name], runner)
        self.has_drafter = manifest.drafter_kind == "model"
        self.ids: list[int] = []
        self.target_length = self.drafter_length = self._used = 0
        self.finish_reason: str | None = None
        self.stats = Stats()

    def reset(self) -> None:
        """Forget the text."""
        self.state.clear(self.row, min(self._used + self._slack(), self.manifest.slots))
        self.ids, self.target_length, self.drafter_length, self._used = [], 0, 0, 0

    def truncate(self, total: int) -> None:
        """Keep the first `total` tokens; the next generation goes on from there.

        Raises:
            ConfigError: fewer than one, or more than there are.
        """
        total = whole("truncate: total", total, 0)
        if not 1 <= total <= len(self.ids):
            raise ConfigError(
                f"cannot truncate to {total} tokens: the text has {len(self.ids)}; give 1..{len(self.ids)}"
            )
        self.target_length = min(self.target_length, total - 1)
        self.drafter_length = min(self.drafter_length, total - 1)
        del self.ids[total:]
        self._write_lengths()

    def blocks(self, request: Request) -> Iterator[list[int]]:
        """Append the request's prompt to the text, then generate; yields the tokens of each step.

        Closing it early leaves the text as far as it was yielded.
        """
        self.begin(request)
        limit = len(self.ids) + request.max_new_tokens
        while self.finish_reason is None:
            start = perf_counter()
            block = self.step(request, speculative=request.draft_length > 0)
            self.stats.decode_s += perf_counter() - start
            if block[-1] in request.eos_token_ids:
                self.finish_reason = "stop"
            elif len(self.ids) >= limit:
                self.finish_reason = "length"
            elif len(self.ids) >= self.manifest.context:
                self.finish_reason = "context"
            yield block

    def begin(self, request: Request) -> None:
        """Append the prompt and bring the state up to it, all but the last token, which is the first root."""
        start, depth = perf_counter(), request.draft_length
        self.finish_reason = None
        self.stats = Stats(len(request.prompt), drafted_per_position=[0] * depth, accepted_per_position=[0] * depth)
        state, row = self.state, self.row
        self.ids += request.prompt
        state.set("history", row, self.ids)
        self.target_length = self._prefill("prefill_target", self.target_length, len(self.ids) - 1)
        if request.draft_length:
            self._catch_up()
        self._write_lengths()
        state.set("active", row, True)
        state.set("limit", row, min(len(self.ids) + request.max_new_tokens, self.manifest.context))
        state.set("eos", row, [*request.eos_token_ids, *[-1] * (MAX_EOS - len(request.eos_token_ids))])
        state.set("draft_limit", row, request.draft_length)
        state.set("seed", row, request.seed or 0)
        state.set("sample", row, 0)
        state.set("temperature", row, request.temperature or 1.0)
        state.set("top_k", row, request.top_k)
        state.set("top_p", row, request.top_p)
        if state.tensors["bucket"].device.type == "cuda":
            torch.cuda.synchronize()  # so that prefill is not timed as part of the first step
        self.stats.prefill_s = perf_counter() - start

    def step(self, request: Request, speculative: bool) -> list[int]:
        """One call of a program and one read-back; returns the tokens it emitted, at least one."""
        name = request.step_program if speculative else request.plain_program
        if speculative:
            self._catch_up()
        results = self.state.call(name, max(self.target_length, self.drafter_length))
        report: list[int] = results["report"].tolist()[self.row]
        *block, count, accepted, offered = report
        if not 1 <= count <= len(block):
            raise EngineFault(
                f"program {name} emitted {count} tokens in a block of {len(block)}; please report this bug"
            )
        self.ids += block[:count]  # first: an interrupt between these lines must not leave lengths past the text
        if speculative and self.has_drafter:
            self.drafter_length = self.target_length + 1  # all that was pending is in its cache now
        self.target_length = len(self.ids) - 1
        self._used = max(self._used, self.target_length)
        self.stats.plain_steps += not speculative
        self.stats.count(count, accepted, offered)
        return block[:count]

    def _catch_up(self) -> None:
        """Fill the drafter's cache until what is pending fits a step: after prefill, plain steps, truncation."""
        pending = self.target_length + 1 - self.drafter_length
        if self.has_drafter and pending > self.depth + 1:
            self.drafter_length = self._prefill("prefill_drafter", self.drafter_length, self.target_length)
            self._write_lengths()

    def _prefill(self, name: str, length: int, end: int) -> int:
        """Run `ids[length:end]` through one model in chunks, the last one padded; returns the cache's new length."""
        chunk, device = self.manifest.chunk, self.state.tensors["bucket"].device
        while length < end:
            part = self.ids[length : min(length + chunk, end)]
            self._used = max(self._used, length + len(part))
            tokens = torch.tensor([part + [0] * (chunk - len(part))], device=device)
            start = torch.tensor([length], device=device)
            self.state.call(name, length, self.row, tokens=tokens, start=start)
            length += len(part)
        return length

    def _write_lengths(self) -> None:
        self.state.set("target_length", self.row, self.target_length)
        self.state.set("drafter_length", self.row, self.drafter_length)

    def _slack(self) -> int:
        return max(self.depth + 1, self.manifest.chunk)


def _check_slack(manifest: EngineManifest, depth: int) -> None:
    """Native code does not check where it writes, so the room it needs behind the context is checked here."""
    needed = manifest.context + max(depth + 1, manifest.chunk)
    short: Sequence[str] = [
        f"{spec.name} {spec.shape}"
        for spec in manifest.tensors
        if spec.role == "cache" and spec.shape[2 if len(spec.shape) == 4 else 1] != manifest.slots
    ]
    if manifest.slots < needed or short:
        raise EngineFormatError(
            f"caches of {manifest.slots} slots ({', '.join(short) or 'all'}) do not fit a context of "
            f"{manifest.context} with {needed - manifest.context} slots behind it; compile the engine again"
        )
