"""From bytes to tokens: what each token does to the states of an automaton, and the table of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .byte_automaton import ByteAutomaton
from .languages import TooLarge

Moves = tuple[tuple[int, int], ...]  # (state, next state) wherever something is allowed, by state


class Stuck(Exception):
    """No text can be spelled, or a text ends where nothing is allowed: the message says which."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A deterministic automaton over tokens; it starts in state 0.

    Attributes:
        token_class: the class of each token.
        classes: of each class: where it leads each state; states without a pair do not allow it.
        states: how many.
    """

    token_class: list[int]
    classes: list[Moves]
    states: int

    @classmethod
    def of(
        cls, automaton: ByteAutomaton, spelled: Sequence[bytes | None], eos_ids: Sequence[int], limit: int
    ) -> TokenTable:
        """The automaton of all token sequences that spell a text of `automaton`, with an EOS after it if there is one.

        Only states are kept that tokens reach and from which they can reach an end: where nothing can end the text
        any more, nothing is allowed on the way there. EOS leads to a state of its own that allows EOS alone.

        Args:
            spelled: the bytes of each token; None: never allowed.
            eos_ids: ids among those.
            limit: the most (state, next state) pairs that a search may hold.

        Raises:
            TooLarge: more pairs than that.
            Stuck: nothing can be spelled, or there is no EOS for a text that nothing may follow.
        """
        moves, kinds = _token_moves(automaton, spelled, limit)
        rows: list[dict[int, int]] = [{} for _ in automaton.edges]
        for kind in sorted(set(kinds)):
            for state, after in moves[kind]:
                rows[state][kind] = after
        number = {state: i for i, state in enumerate(_states(rows, automaton.accepting))}
        columns: dict[int, list[tuple[int, int]]] = {kind: [] for kind in sorted(set(kinds))}
        for state in number:
            row = {kind: number[after] for kind, after in rows[state].items() if after in number}
            if not row and not eos_ids:
                raise Stuck("a text of it may end where nothing can follow; give eos_token_id")
            for kind, after in row.items():
                columns[kind].append((number[state], after))
        classes: dict[Moves, int] = {}
        class_of = {kind: classes.setdefault(tuple(column), len(classes)) for kind, column in columns.items()}
        token_class = [class_of[kind] for kind in kinds]
        if not eos_ids:
            return cls(token_class, list(classes), len(number))
        end = len(number)
        ended = [i for state, i in number.items() if automaton.accepting[state]]
        for token in eos_ids:
            token_class[token] = len(classes)
        return cls(token_class, [*classes, tuple((i, end) for i in (*ended, end))], end + 1)


def _token_moves(
    automaton: ByteAutomaton, spelled: Iterable[bytes | None], limit: int
) -> tuple[list[Moves], list[int]]:
    """What tokens do to the states, every different thing once, and which of these each token does.

    What was done up to a byte, and that byte, decide what is done next: so the work grows with the number of different
    things, hardly with the vocabulary. Number 0 is what is allowed nowhere.
    """
    class_of, columns = automaton.columns()
    whole = tuple((state, state) for state in range(len(automaton.edges)))
    moves: list[Moves] = [(), whole]
    numbers = {(): 0, whole: 1}
    known: dict[tuple[int, int], int] = {}
    kinds, pairs = [], 0
    for token in spelled:
        here = 0 if token is None else 1
        for byte in token or b"":
            key = here, class_of[byte]
            if key not in known:
                column = columns[key[1]]
                after = tuple((state, column[at]) for state, at in moves[here] if at in column)
                known[key] = numbers.setdefault(after, len(moves))
                if known[key] == len(moves):
                    moves.append(after)
                    pairs += len(after)
                    if pairs > limit:
                        raise TooLarge(f"its tokens make more than {limit} different steps")
            here = known[key]
            if not here:
                break
        kinds.append(here)
    return moves, kinds


def _states(rows: Sequence[dict[int, int]], accepting: Sequence[bool]) -> list[int]:
    """States that are reached from the start and from which an accepting one is reached, the start first."""
    reached = _walk([0], [set(row.values()) for row in rows])
    back: list[set[int]] = [set() for _ in rows]
    for state in reached:
        for after in rows[state].values():
            back[after].add(state)
    live = set(_walk([state for state in reached if accepting[state]], back))
    if 0 not in live:
        raise Stuck("this vocabulary cannot spell any text of it; allow other characters")
    return [state for state in reached if state in live]


def _walk(start: Iterable[int], edges: Sequence[set[int]]) -> list[int]:
    """All that can be reached, in the order of reaching it."""
    found = dict.fromkeys(start)
    queue = list(found)
    for here in queue:  # grows while it is read
        new = [after for after in edges[here] if after not in found]
        found.update(dict.fromkeys(new))
        queue += new
    return queue
