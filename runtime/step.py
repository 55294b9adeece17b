"""One step of several rows: as few calls of programs as their rules allow, one read-back each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import torch

from ..errors import ConfigError, EngineFault
from ..manifest import EngineManifest
from .ahead import Ahead
from .call import Runner
from .flight import Flight, Outcome, Work
from .options import listed, whole
from .parameters import Parameters
from .placed import AnyState, Placed
from .programs import BY_DRAFT, Paths, Programs, StepProgram
from .recorded import Recorder
from .request import Request
from .row import Row
from .state import State


class Apart(NamedTuple):
    """Where a drafter runs that is not on the target's device, and how calls are recorded there."""

    device: torch.device
    recorder: Recorder | None = None


class Machine:
    """The state of an engine, its rows, and the step that advances them.

    Attributes:
        rows: one for each text that can be held.
        last: the row that began last; what `Engine.resume` goes on with.
    """

    def __init__(
        self,
        manifest: EngineManifest,
        runners: Mapping[str, Runner],
        device: torch.device,
        recorder: Recorder | None = None,
        apart: Apart | None = None,
    ) -> None:
        self.programs = Programs(manifest)
        self.context, self.padded_vocab_size = manifest.context, manifest.padded_vocab_size
        self.programs.check()
        self.state = _state(manifest, device, recorder, apart)
        for name, runner in runners.items():
            self.state.bind(name, manifest.programs[name], runner)
        self.parameters = Parameters(self.state)
        self.state.record()
        self._ahead = Ahead(self.state)
        self.rows = [Row(index, self.state, manifest, self.programs) for index in range(manifest.batch)]
        self.last = self.rows[0]

    def begin(
        self, row: Row, request: Request, resume: bool = False, like: Row | None = None, drafts: bool = True
    ) -> int:
        """Make a row ready for the first step of a request.

        Args:
            row: where its text goes; what it holds is forgotten, but for what `request.reuse` may keep.
            resume: the prompt comes behind the text that the row holds.
            like: a row that began with the same prompt, whose caches are copied.
            drafts: false leaves the drafter behind until a step needs it.

        Returns:
            How many tokens of the prompt were in the caches already.
        """
        prompt, kept, self.last = request.prompt, 0, row
        self._ahead.forget()
        if like is not None and like.common(prompt) == len(prompt) - 1:
            kept = len(prompt) - 1
            row.copy(like, kept)
        elif not resume:
            kept = row.common(prompt) if request.reuse else 0
            row.keep(kept)
        row.append(prompt[kept:])
        row.follow(request.grammar)
        if drafts and request.draft_length and row.draftable:
            row.catch_up(self._find(request.rule, [Work(row, request.rule, request.draft_length)]).depth)
        row.limit = min(len(row.ids) + request.max_new_tokens, self.context)
        self.parameters.write(row.index, request, len(row.ids), self.context)
        self.state.set("active", row.index, True)
        return kept

    def forced(self, request: Request, draft: Sequence[int]) -> list[int]:
        """Check tokens that a request wants drafted.

        Raises:
            ConfigError: too many for its draft tree, behind its draft length, none of the model's, or this engine
                cannot be told.
        """
        try:
            tokens = listed(draft)
        except TypeError as e:
            raise ConfigError(f"draft must be a list of token ids, not {draft!r}") from e
        if not tokens:
            return []
        program = self._find(request.rule, [Work(self.rows[0], request.rule, request.draft_length)])
        tokens = [whole(f"draft[{i}]", token, -1, self.padded_vocab_size - 1) for i, token in enumerate(tokens)]
        if len(tokens) >= program.nodes:
            raise ConfigError(f"draft has {len(tokens)} tokens; this request's steps draft {program.nodes - 1}")
        for i, (token, path) in enumerate(zip(tokens, program.paths[1:], strict=False)):
            if token >= 0 and len(path) > request.draft_length:
                raise ConfigError(
                    f"draft[{i}] is at level {len(path)} of the draft tree, and this request has draft_length "
                    f"{request.draft_length}; leave it out (-1), or raise draft_length"
                )
        if not self.programs.reads(program, "forced"):
            raise ConfigError("this engine's programs have no input forced, which draft needs; compile it again")
        return tokens

    def step(self, works: Sequence[Work], more: bool = False) -> list[Outcome]:
        """Advance these rows, each once; the others keep their texts.

        Args:
            more: steps like this one are likely to follow, so that a device may begin the next before this one is read.

        Returns:
            An outcome for each of `works`.

        Raises:
            EngineFault: a program did what none may do.
        """
        flight = self._ahead.take(works)
        calls = [(flight.program, flight.works)] if flight else self._calls(works)
        outcomes: dict[int, Outcome] = {}
        for program, group in calls:  # a call writes where all rows are: those of the one before it must have landed
            flight = flight or self._launch(program, group)
            if more and len(calls) == 1 and self._ahead.may_follow(program, works):
                self._ahead.put(self._launch(program, works, ahead=True))
            outcomes |= self._land(flight, works)
            flight = None
        self._ahead.expect(works)
        return [outcomes[work.row.index] for work in works]

    def _calls(self, works: Sequence[Work]) -> list[tuple[StepProgram, list[Work]]]:
        """Which program serves which rows.

        A row's text must not depend on its neighbours: where it depends on the tree (`BY_DRAFT`), rows that draft by
        different trees are apart; under `coupled` and `greedy` it does not, so the deepest draft serves all. Greedy
        rows go along with rows that sample (their temperature is 0), and rows that do not draft with those that do.
        Forced tokens are meant for one tree.
        """
        groups: dict[tuple[str, Paths | None], list[Work]] = {}
        for work in works:
            bound = work.rule in BY_DRAFT or work.draft
            tree = self._find(work.rule, [work]).paths if bound else None
            groups.setdefault((work.rule, tree), []).append(work)
        greedy = groups.get(("greedy", None))
        for (rule, tree), group in groups.items():
            if greedy and rule != "greedy":
                program = self.programs.find(rule, max(w.length for w in [*group, *greedy]), len(self.rows))
                if program and tree in (None, program.paths):
                    group += greedy
                    del groups["greedy", None]
                    break
        return [(self._find(rule, group), group) for (rule, _), group in groups.items()]

    def _find(self, rule: str, works: Sequence[Work]) -> StepProgram:
        rows = 1 if len(works) == 1 else len(self.rows)
        deepest = max(works, key=lambda work: work.length)
        program = self.programs.find(rule, deepest.length, rows, deepest.tree)
        if program is None:
            raise EngineFault(f"no {rule} program for {len(works)} rows, which a request was granted; please report it")
        return program

    def _launch(self, program: StepProgram, works: Sequence[Work], ahead: bool = False) -> Flight:
        """Begin a call. One that runs `ahead` finds in the state what the call before it leaves there."""
        state, lengths = self.state, {work.row.index: work.length for work in works}
        used = max(max(work.row.target_length, work.row.drafter_length) for work in works)
        if ahead:
            used += program.depth + 1
        else:
            for work in works:
                if work.length:
                    work.row.catch_up(program.depth)
            state.hold("active", [row.index in lengths for row in self.rows])
            state.hold("draft_limit", [lengths.get(row.index, 0) for row in self.rows])
            for name in ("target_length", "drafter_length", "grammar_state"):
                state.hold(name, [getattr(row, name) for row in self.rows])
            used = max(used, *(work.row.drafter_length for work in works))
        alone = works[0].row.index if program.batch < len(self.rows) else None
        with self._forced(works):
            results = state.call(program.name, used, alone)
            return Flight(program, works, alone, results, state.fetch(results["report"]))

    def _land(self, flight: Flight, works: Sequence[Work]) -> dict[int, Outcome]:
        """Wait for a call, and let the rows of `works` that it served take what it emitted; outcomes by row."""
        program, results, reports = flight.program, flight.results, flight.report()
        if self.state.replays and any(work.results for work in works):
            results = {name: tensor.clone() for name, tensor in results.items()}  # before the program's next call
        served = {work.row.index for work in flight.works}
        drafter = [row.caught_up if row.index in served else row.drafter_length for row in self.rows]
        outcomes = {}
        for work in works:
            if work.row.index not in served:
                continue
            place = 0 if flight.alone is not None else work.row.index
            *block, count, accepted, offered = reports[place]
            if not 1 <= count <= len(block):
                raise EngineFault(
                    f"program {program.name} emitted {count} tokens in a block of {len(block)}; please report this bug"
                )
            work.row.take(block[:count], program.depth)
            outcomes[work.row.index] = Outcome(block[:count], accepted, offered, results, place)
        # What the program left in the state need not be written again, unless it is ahead of the rows. (`active` is not
        # known: false where a row ended, which goes on all the same if an interrupt keeps its text from taking this
        # step.)
        if len(outcomes) == len(served) and not self._ahead.under_way:
            told = {name: [getattr(row, name) for row in self.rows] for name in ("target_length", "grammar_state")}
            told["drafter_length"] = drafter
            for name in told.keys() & results.keys():
                self.state.trust(name, told[name])
        return outcomes

    @contextmanager
    def _forced(self, works: Sequence[Work]) -> Iterator[None]:
        forced = [work for work in works if work.draft]
        try:
            for work in forced:
                self.parameters.force(work.row.index, list(work.draft))
            yield
        finally:
            for work in forced:
                self.parameters.force(work.row.index, [])


def _state(manifest: EngineManifest, device: torch.device, recorder: Recorder | None, apart: Apart | None) -> AnyState:
    if apart is None:
        return State(manifest, device, recorder)
    own, drafting = manifest.read_by(drafts=False), manifest.read_by(drafts=True)
    target, drafter = State(manifest, device, recorder, own), State(manifest, *apart, drafting)
    return Placed(manifest, target, drafter)
