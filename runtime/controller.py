"""Controller: how the drafts of one text fare, what trying them has cost it, and what more it may cost.

It decides by counts and by the engine's stored cost table, never by a clock: the same request makes the same calls
again. Two promises, in seconds of that table, for a text of which T seconds of plain steps would be made:
- a drafter that is never right, and was seen to be so at compile time, costs it at most SHARE T;
- whatever its drafts do, it takes at most (1 + SHARE) T, `LOSS` plain steps, and the step that goes beyond them.

A try is paid for in advance, out of the share that plain steps earn. A drafter must first see what it missed, and that
may cost more a token than the share earns: so what speculation has gained pays for it too, which keeps both promises.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .acceptance import Acceptance
from .flight import Outcome
from .programs import Paths, StepProgram
from .row import Row
from .suffixes import Suffixes

SHARE = 0.02  # of the time of plain steps, what trying speculation again may cost
TRIES = 4  # steps of such a try; half of them, if none of its drafts is taken
FADED = 2.0  # steps that all earlier ones count for in a try
LOSS = 3.0  # plain steps that speculation may lose before it is ended
MOST_PATIENCE = 64.0


class Case:
    """How drafts fare at some places of a text.

    A run is what lies between two plain steps at such places. After one that has lost, the next try must wait for more.

    Attributes:
        blind: nothing can be drafted here.
        running: whether the last step here speculated; `lost` are the seconds that this run has lost so far.
        tries: steps left of a try; `hits` tells whether one of its drafts was taken.
        reserve: seconds that were put aside for the rest of a try.
        patience: how many times the cost of its steps a try must have earned.
    """

    def __init__(self, known: Mapping[Paths, Acceptance], blind: bool = False) -> None:
        self._known, self.blind = known, blind
        self.lost, self.reserve, self.patience = 0.0, 0.0, 1.0
        self.running = self.hits = False
        self.tries = 0

    def tokens(self, step: StepProgram) -> float:
        """What a step is expected to emit here."""
        return 1.0 if self.blind or not step.depth else self._known[step.family].tokens(step.depth)

    def begin(self, tries: int) -> None:
        """A run begins."""
        self.running, self.hits, self.tries, self.lost = True, False, tries, 0.0
        for acceptance in self._known.values() if tries else ():
            acceptance.fade(FADED)

    def end(self) -> None:
        """A plain step comes next."""
        if self.running:
            self.patience = min(2 * self.patience, MOST_PATIENCE) if self.lost > 0 else 1.0
        self.running, self.tries = False, 0

    def see(self, step: StepProgram, outcome: Outcome) -> None:
        """Take in what came of a draft."""
        self._known[step.family].see(outcome.accepted, outcome.offered, step.depth)
        if self.tries:
            self.hits |= outcome.accepted > 0
            self.tries -= 1
            if self.tries <= TRIES // 2 and not self.hits:
                self.tries = 0


class Controller:
    """One text.

    Where its drafts are looked up in the text, how long a suffix occurred before says how well they will fare, so there
    is a case for each length; else there is one.

    Attributes:
        row: where the text is; `end` is the most tokens that it will have.
        case: that of the step which is made now.
        credit: seconds that trying may cost; below 0 they are owed.
        gained: seconds that speculation has gained, less those that it has lost since.
    """

    def __init__(self, row: Row, rule: str, end: int, cases: Sequence[Case]) -> None:
        self.row, self.rule, self.end = row, rule, end
        self.credit = self.gained = 0.0
        self._cases, self._suffixes = cases, Suffixes(len(cases) - 1)
        self.look()

    @property
    def undecided(self) -> bool:
        """Whether the next step may well be of another kind: one of a try, or one that hangs on what this one emits."""
        return self.case.tries > 0 or (len(self._cases) > 1 and any(case.running for case in self._cases))

    def look(self) -> None:
        """See where the text is now."""
        self.case = self._cases[self._suffixes.match(self.row.ids)]

    def owing(self, caught: float) -> float:
        """Seconds that would be owed once the drafter had caught up in so many."""
        return max(0.0, max(0.0, caught - self.gained) - self.credit)

    def speculate(self, caught: float, tries: int, reserve: float) -> None:
        """A step that drafts comes next, once the drafter has caught up in so many seconds.

        Args:
            tries: steps of the try that begins with it, if it begins a run; 0 for none.
            reserve: seconds put aside for them.
        """
        given = min(self.gained, caught)
        self.gained, self.credit = self.gained - given, self.credit - (caught - given)
        if self.case.blind:
            return
        if not self.case.running:
            self.case.begin(tries)
            self.credit, self.case.reserve = self.credit - reserve, reserve
        self.case.lost += caught

    def rest(self) -> None:
        """A plain step comes next."""
        self.case.end()
        self._give_back()

    def take(self, step: StepProgram, outcome: Outcome, lost: float, plain: float) -> None:
        """Take in a step that lost so many seconds against plain ones, each of which takes `plain`."""
        if not step.depth:
            self.credit += SHARE * plain
            return
        case = self.case
        case.lost += lost
        if lost > 0:  # paid for by what was put aside, by what plain steps have earned, then by what was gained
            aside = min(case.reserve, lost)
            earned = min(max(0.0, self.credit), lost - aside)
            given = min(self.gained, lost - aside - earned)
            case.reserve -= aside
            self.gained, self.credit = self.gained - given, self.credit - (lost - aside - given)
        else:
            repaid = min(max(0.0, -self.credit), -lost)
            self.gained, self.credit = self.gained - lost - repaid, self.credit + repaid
        if not case.blind:
            case.see(step, outcome)
        if not case.tries:
            self._give_back()

    def _give_back(self) -> None:
        """What a try did not need."""
        self.credit, self.case.reserve = self.credit + self.case.reserve, 0.0
