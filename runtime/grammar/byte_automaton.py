"""The smallest automaton of a regular language, byte by byte."""

from __future__ import annotations

from dataclasses import dataclass

from .languages import Languages, Term, TooLarge


@dataclass(frozen=True, slots=True)
class ByteAutomaton:
    """A deterministic automaton over bytes that starts in state 0; a byte without an edge is not allowed.

    Attributes:
        edges: of each state: next state -> set of bytes (a mask; byte b is bit b).
        accepting: of each state: whether the text may end here.
    """

    edges: tuple[dict[int, int], ...]
    accepting: tuple[bool, ...]

    @classmethod
    def of(cls, languages: Languages, term: Term, limit: int) -> ByteAutomaton:
        """Every derivative is a state; states that accept the same texts become one.

        Raises:
            TooLarge: more than `limit` derivatives.
        """
        states, edges = {term: 0}, []
        queue = [term]
        for here in queue:  # grows while it is read
            found = {}
            for after, mask in languages.edges(here).items():
                if after not in states:
                    states[after] = len(states)
                    queue.append(after)
                found[states[after]] = mask
            edges.append(found)
            if len(states) > limit:
                raise TooLarge(f"its automaton has more than {limit} states")
        return _merge(edges, [here.nullable for here in queue])

    def columns(self) -> tuple[list[int], list[dict[int, int]]]:
        """A class for each byte 0..255, and for each class: state -> next state."""
        masks = list({mask for found in self.edges for mask in found.values()})
        classes: dict[tuple[int, ...], int] = {}
        members: list[list[int]] = [[] for _ in masks]  # the classes that make up each mask
        class_of = []
        for byte in range(256):
            holds = tuple(i for i, mask in enumerate(masks) if mask >> byte & 1)
            if holds not in classes:
                for i in holds:
                    members[i].append(len(classes))
            class_of.append(classes.setdefault(holds, len(classes)))
        parts = dict(zip(masks, members, strict=True))
        columns: list[dict[int, int]] = [{} for _ in classes]
        for state, found in enumerate(self.edges):
            for after, mask in found.items():
                for number in parts[mask]:
                    columns[number][state] = after
        return class_of, columns


def _merge(edges: list[dict[int, int]], accepting: list[bool]) -> ByteAutomaton:
    """Split blocks of states, by what they accept and into which blocks they lead, until none splits."""
    into: list[set[int]] = [set() for _ in edges]
    for state, found in enumerate(edges):
        for after in found:
            into[after].add(state)
    block = [int(accepts) for accepts in accepting]
    members = [{state for state, b in enumerate(block) if b == number} for number in (0, 1)]

    def leads(state: int) -> tuple[tuple[int, int], ...]:
        to: dict[int, int] = {}
        for after, mask in edges[state].items():
            to[block[after]] = to.get(block[after], 0) | mask
        return tuple(sorted(to.items()))

    dirty = set(range(len(edges)))  # those that lead into a block that was split since they were looked at
    while dirty:
        mates = members[block[next(iter(dirty))]]
        groups: dict[object, set[int]] = {}
        looked = mates & dirty
        for state in looked:
            groups.setdefault(leads(state), set()).add(state)
        dirty -= looked
        other = next((state for state in mates if state not in looked), None)  # the others lead where they led
        stay = leads(other) if other is not None else max(groups, key=lambda key: len(groups[key]))
        for key, group in groups.items():
            if key != stay:
                mates -= group
                for state in group:
                    block[state] = len(members)
                    dirty |= into[state]
                members.append(group)

    first: dict[int, int] = {}
    for state, b in enumerate(block):
        first.setdefault(b, state)
    number = {b: i for i, b in enumerate(first)}  # the start's is 0
    merged = tuple({number[b]: mask for b, mask in leads(state)} for state in first.values())
    return ByteAutomaton(merged, tuple(accepting[state] for state in first.values()))
