"""One step of several rows: as few calls of programs as their rules allow, one read-back each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ConfigError, EngineFault
from ..manifest import EngineManifest
from .options import whole
from .parameters import Parameters
from .programs import BY_DRAFT, Paths, Programs, StepProgram
from .request import Request
from .row import Row
from .state import Runner, State


@dataclass(frozen=True, slots=True)
class Work:
    """What a row wants of a step: its rule, levels to draft, tokens to draft instead of the drafter's own, and the tree
    that it would have of those that are deep enough."""

    row: Row
    rule: str
    length: int
    draft: Sequence[int] = ()
    tree: Paths | None = None


class Outcome(NamedTuple):
    """What a step gave a row.

    Attributes:
        block: tokens emitted, at least one.
        accepted, offered: levels of its draft.
        results: outputs of the program, of which `place` is this row's.
    """

    block: list[int]
    accepted: int
    offered: int
    results: Mapping[str, Tensor]
    place: int


class Machine:
    """The state of an engine, its rows, and the step that advances them.

    Attributes:
        rows: one for each text that can be held.
        last: the row that began last; what `Engine.resume` goes on with.
    """

    def __init__(self, manifest: EngineManifest, runners: Mapping[str, Runner], device: torch.device) -> None:
        self.programs = Programs(manifest)
        self.context, self.padded_vocab_size = manifest.context, manifest.padded_vocab_size
        self.programs.check()
        self.state = State(manifest, device)
        for name, runner in runners.items():
            self.state.bind(name, manifest.programs[name], runner)
        self.parameters = Parameters(self.state)
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
        self.parameters.write(row.index, request, len(row.ids), self.context)
        self.state.set("active", row.index, True)
        return kept

    def forced(self, request: Request, draft: Sequence[int]) -> list[int]:
        """Check tokens that a request wants drafted.

        Raises:
            ConfigError: too many for its draft tree, behind its draft length, none of the model's, or this engine
                cannot be told.
        """
        if isinstance(draft, str | bytes) or not isinstance(draft, Iterable):
            raise ConfigError(f"draft must be a list of token ids, not {draft!r}")
        tokens = list(draft)
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

    def step(self, works: Sequence[Work]) -> list[Outcome]:
        """Advance these rows, each once; the others keep their texts.

        Returns:
            An outcome for each of `works`.

        Raises:
            EngineFault: a program did what none may do.
        """
        outcomes: dict[int, Outcome] = {}
        for program, group in self._calls(works):
            outcomes |= self._call(program, group)
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

    def _call(self, program: StepProgram, works: Sequence[Work]) -> dict[int, Outcome]:
        """One call and one read-back; outcomes by row."""
        state, lengths = self.state, {work.row.index: work.length for work in works}
        for work in works:
            if work.length:
                work.row.catch_up(program.depth)
        state.hold("active", [row.index in lengths for row in self.rows])
        state.hold("draft_limit", [lengths.get(row.index, 0) for row in self.rows])
        for name in ("target_length", "drafter_length", "grammar_state"):
            state.hold(name, [getattr(row, name) for row in self.rows])
        used = max(max(work.row.target_length, work.row.drafter_length) for work in works)
        alone = works[0].row.index if program.batch < len(self.rows) else None
        with self._forced(works):
            results = state.call(program.name, used, alone)
            reports: list[list[int]] = results["report"].tolist()
        drafter = [row.caught_up if row.index in lengths else row.drafter_length for row in self.rows]
        outcomes = {}
        for work in works:
            place = 0 if alone is not None else work.row.index
            *block, count, accepted, offered = reports[place]
            if not 1 <= count <= len(block):
                raise EngineFault(
                    f"program {program.name} emitted {count} tokens in a block of {len(block)}; please report this bug"
                )
            work.row.take(block[:count], program.depth)
            outcomes[work.row.index] = Outcome(block[:count], accepted, offered, results, place)
        # What the program left in the state need not be written again. (`active` is not known: false where a row ended,
        # which goes on all the same if an interrupt keeps its text from taking this step.)
        told = {name: [getattr(row, name) for row in self.rows] for name in ("target_length", "grammar_state")}
        told["drafter_length"] = drafter
        for name in told.keys() & results.keys():
            state.trust(name, told[name])
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
