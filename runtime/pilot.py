"""Pilot: what each step of an engine drafts, chosen by the tokens a second that its controllers expect."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

from ..drafter import NGRAM
from ..manifest import EngineManifest
from .acceptance import Acceptance
from .controller import LOSS, TRIES, Case, Controller
from .cost import CostTable, Trial
from .flight import Outcome, Work
from .programs import BY_DRAFT, Paths, Programs, StepProgram
from .row import Row


class Choice(NamedTuple):
    """What a group of texts may do next.

    Attributes:
        step: the draft's one-row program; depth 0 is a plain step.
        seconds: of the call that would be made.
        caught: seconds to catch up each text's drafter before it.
        rate: tokens per second that it promises; catching up is spread over the rest of the text.
    """

    step: StepProgram
    seconds: float
    caught: tuple[float, ...]
    rate: float


class Decision(NamedTuple):
    """What was decided, and for whom: places among the works of the step."""

    choice: Choice
    plain: Choice
    group: tuple[tuple[int, Controller], ...]


class Pilot:
    """Chooses for the texts of an engine. Those that are stepped together share a call: it chooses for all of them."""

    def __init__(self, manifest: EngineManifest, programs: Programs, table: CostTable) -> None:
        self._programs, self._table = programs, table
        self._rows, self._chunk, self._main = manifest.batch, manifest.chunk, manifest.tree_paths[-1]
        self._needed, self._longest = set(manifest.drafter_prefills), manifest.lookup
        self._lookup_alone = manifest.drafter_kind == NGRAM and manifest.lookup > 0

    @classmethod
    def of(cls, manifest: EngineManifest, programs: Programs) -> Pilot | None:
        """For an engine that was measured; others draft what they were compiled for.

        Raises:
            EngineFormatError: the manifest's cost is damaged.
        """
        table = CostTable.read(manifest.cost)
        return None if table is None else cls(manifest, programs, table)

    def serves(self, rule: str) -> bool:
        """Whether all programs of a rule were timed, and there is something to choose."""
        steps = [step for step in self._programs.steps if step.rule == rule]
        timed = all(name in self._table for name in {step.name for step in steps} | self._needed)
        return timed and len({step.depth > 0 for step in steps}) == 2

    def step_cost(self) -> float | None:
        """What a greedy step of the main tree costs in plain steps, at the first length that was timed."""
        steps = [self._programs.find("greedy", length, 1) for length in (len(self._main), 0)]
        seconds = [self._table.seconds(step.name, 0) for step in steps if step and step.name in self._table]
        return seconds[0] / seconds[1] if len(seconds) == 2 else None

    def join(self, row: Row, rule: str, new: int) -> Controller:
        """The controller of a text that begins: its rule is served, and at most `new` tokens will come.

        Its drafter sees the prompt now if the first step, alone, would speculate, else not before it must.
        """
        shapes = sorted((step for step in self._programs.shapes(rule) if step.depth), key=lambda step: step.depth)
        depths = {step.family: step.depth for step in shapes}
        cases = []
        for match in range(self._longest + 1):
            known = {family: Acceptance(depth, *self._trials(family, match)) for family, depth in depths.items()}
            cases.append(Case(known, blind=self._lookup_alone and match == 0))
        controller = Controller(row, rule, len(row.ids) + new, cases)
        plain, best = self._choices([controller], rule, 1, 0)
        if best.rate > plain.rate and row.draftable:
            row.catch_up(best.step.depth)
        return controller

    def steer(
        self, works: Sequence[Work], controllers: Sequence[Controller | None]
    ) -> tuple[list[Work], Decision | None]:
        """The works of a step with the drafts chosen for those texts that leave it to us: that are told no tokens, and
        are not past what their drafter was made for."""
        both = enumerate(zip(controllers, works, strict=True))
        group = [(i, c) for i, (c, work) in both if c and c.row.draftable and not work.draft]
        if not group:
            return list(works), None
        for _, controller in group:
            controller.look()
        ours = {i for i, _ in group}
        others = [w for i, w in enumerate(works) if i not in ours and w.rule not in BY_DRAFT and not w.draft]
        choice, plain = self._choose([c for _, c in group], others)
        new = [
            dataclasses.replace(work, length=choice.step.depth, tree=choice.step.paths) if i in ours else work
            for i, work in enumerate(works)
        ]
        return new, Decision(choice, plain, tuple(group))

    def learn(self, decision: Decision, outcomes: Sequence[Outcome]) -> None:
        """Take in what came of a decision; `outcomes` are of all works of the step."""
        (choice, plain, group), rows = decision, len(decision.group)
        tokens = sum(len(outcomes[i].block) for i, _ in group) / rows
        lost = (choice.seconds - tokens * plain.seconds) / rows
        for i, controller in group:
            controller.take(choice.step, outcomes[i], lost, plain.seconds / rows)

    def _choose(self, group: Sequence[Controller], others: Sequence[Work]) -> tuple[Choice, Choice]:
        """What these texts do next beside `others`, whose drafts are fixed; and what a plain step would be."""
        rules = [*(each.rule for each in group), *(work.rule for work in others)]
        rule = next((name for name in rules if name != "greedy"), "greedy")
        if not self.serves(rule):  # those that sample are in a call of their own
            rule, others = group[0].rule, ()
        floor = max((work.length for work in others), default=0)
        rows = 1 if len(group) + len(others) == 1 else self._rows
        plain, best = self._choices(group, rule, rows, floor)
        wins, tries, credit = best.rate > plain.rate, 0, sum(c.credit for c in group)
        cases = [c.case for c in group if not c.case.blind]
        patience = max((case.patience for case in cases), default=1.0)
        owed = sum(c.owing(caught) for c, caught in zip(group, best.caught, strict=True))
        dear, trying = TRIES * (best.seconds - plain.seconds), any(case.tries for case in cases)
        if not cases or (owed > LOSS * plain.seconds and not trying):
            speculate = False
        elif any(case.running for case in cases):
            lost = sum(case.lost for case in cases if case.running)
            speculate = trying or (wins and lost <= LOSS * plain.seconds)
        elif wins and patience == 1:
            speculate = True
        else:  # an estimate that has lost before is not trusted without a try
            missed = sum(max(0.0, caught - c.gained) for c, caught in zip(group, best.caught, strict=True))
            speculate, tries = credit >= patience * dear + missed, TRIES
        for controller, caught in zip(group, best.caught, strict=True):
            if speculate:
                controller.speculate(caught, tries, dear / len(group) if tries else 0.0)
            else:
                controller.rest()
        return best if speculate else plain, plain

    def _choices(self, group: Sequence[Controller], rule: str, rows: int, floor: int) -> tuple[Choice, Choice]:
        """The plain step, and the draft that promises most; neighbours make the call draft `floor` levels anyway."""
        used = max(c.row.target_length for c in group)
        choices = []
        for step in self._programs.shapes(rule):
            program = self._programs.find(rule, max(step.depth, floor), rows, step.paths)
            assert program is not None
            seconds = self._table.seconds(program.name, used)
            caught = tuple(self._catch_up(c.row, program.depth) if step.depth else 0.0 for c in group)
            left = [max(1, c.end - len(c.row.ids)) for c in group]
            tokens = [min(n, c.case.tokens(step)) for n, c in zip(left, group, strict=True)]
            spread = sum(s * n / rest for s, n, rest in zip(caught, tokens, left, strict=True))
            choices.append(Choice(step, seconds, caught, sum(tokens) / (seconds + spread)))
        plain = next(choice for choice in choices if not choice.step.depth)
        return plain, max((choice for choice in choices if choice.step.depth), key=lambda choice: choice.rate)

    def _catch_up(self, row: Row, depth: int) -> float:
        """Seconds until the drafter has seen what a step of this depth does not show it."""
        if not row.has_drafter or row.pending <= depth + 1:
            return 0.0
        chunks = -(-(row.target_length - row.drafter_length) // self._chunk)
        return chunks * sum(self._table.seconds(name, row.target_length) for name in self._needed)

    def _trials(self, family: Paths, match: int) -> tuple[Trial | None, Trial | None]:
        """The trial of a tree (of chains, that of the longest that was tried) where such a suffix occurred before, and
        that at all places, which the first may be small against."""
        steps = {step.name: step for step in self._programs.steps}
        tried = [name for name in self._table.trials if name in steps and steps[name].family == family]
        name = max(tried, key=lambda name: steps[name].depth, default="")
        whole, by_match = self._table.trials.get(name), self._table.by_match.get(name, ())
        return (by_match[match], whole) if match < len(by_match) else (whole, None)
