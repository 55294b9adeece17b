"""Regular languages over bytes: terms, and what may follow each first byte of one.

Why not a library: outlines-core 0.2, which was tried, keeps only the first of two alternatives that match (`a|ab`
refuses "ab"), takes exponential time for repeats such as `"([^"\\\\]|\\\\.){0,20}"` and cannot be stopped. Derivatives
cost the same for every state, stop when told to, and give intersections for nothing.

Source: Brzozowski, Derivatives of Regular Expressions (1964); Owens, Reppy, Turon, Regular-expression derivatives
re-examined (2009), whose rules for equal terms keep the number of derivatives finite and small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["byte", "empty", "cat", "alt", "both", "repeat"]
MOST = 1_000_000  # terms and their parts: some seconds
_BOUNDS = (0, 0x80, 0x800, 0xD800, 0xE000, 0x10000, 0x110000)  # where UTF-8 grows longer, and halves of characters


@dataclass(frozen=True, slots=True, eq=False)
class Term:
    """A language. Made by `Languages`, where equal terms are the same object.

    Attributes:
        mask: of `byte`: the set of bytes, byte b as bit b; 0 is the empty language.
        low, high: of `repeat`: how often; None is without end.
        nullable: whether the empty text belongs to it.
    """

    number: int
    kind: Kind
    parts: tuple[Term, ...]
    mask: int
    low: int
    high: int | None
    nullable: bool


class TooLarge(Exception):
    """A search was given up at a limit that the caller set: the message says how much it found."""


class TooComplex(Exception):
    """A language has more terms than are ever searched."""


class Languages:
    """Makes terms and derives them. Any call may raise `TooComplex`.

    Attributes:
        nothing: the empty language.
        empty: the language of the empty text alone.
    """

    def __init__(self) -> None:
        self._terms: dict[tuple[object, ...], Term] = {}
        self._size = 0
        self._edges: dict[Term, dict[Term, int]] = {}
        self.nothing = self.byte(0)
        self.empty = self._term("empty", nullable=True)

    def byte(self, mask: int) -> Term:
        """One byte out of a set."""
        return self._term("byte", mask=mask)

    def chars(self, ranges: Iterable[tuple[int, int]]) -> Term:
        """One character out of ranges of code points, both ends included, in UTF-8."""
        parts = []
        for low, high in ranges:
            for start, end in zip(_BOUNDS, _BOUNDS[1:], strict=False):
                first, last = max(low, start), min(high, end - 1)
                if first <= last and start != 0xD800:
                    parts.append(self._utf8(chr(first).encode(), chr(last).encode()))
        return self.alt(*parts)

    def text(self, text: str) -> Term:
        """This text alone."""
        return self.cat(*(self.byte(1 << byte) for byte in text.encode()))

    def cat(self, *terms: Term) -> Term:
        """One after the other."""
        rest = self.empty
        for term in reversed(terms):
            rest = self._cat(term, rest)
        return rest

    def alt(self, *terms: Term) -> Term:
        """Any of them."""
        parts, mask = set(), 0
        for part in _flat("alt", terms):
            if part.kind == "byte":
                mask |= part.mask
            else:
                parts.add(part)
        if mask or not parts:
            parts.add(self.byte(mask))
        return self._set("alt", parts, any(part.nullable for part in parts))

    def both(self, *terms: Term) -> Term:
        """What belongs to all of them."""
        parts = set(_flat("both", terms))
        return self.nothing if self.nothing in parts else self._set("both", parts, all(p.nullable for p in parts))

    def repeat(self, term: Term, low: int = 0, high: int | None = None) -> Term:
        """It, `low` to `high` times; None is without end."""
        if term is self.empty or high == 0 or (term is self.nothing and not low):
            return self.empty
        endless = term.kind == "repeat" and (term.low, term.high) == (0, None)
        if (low, high) == (1, 1) or term is self.nothing or endless:
            return term
        low = 0 if term.nullable else low
        return self._term("repeat", (term,), low=low, high=high, nullable=not low)

    def edges(self, term: Term) -> dict[Term, int]:
        """What may follow the first byte, with the set of bytes (a mask) after which it does; the sets are disjoint."""
        chain = [term]
        while chain[-1] not in self._edges and chain[-1].kind == "cat":  # from the end, so that no recursion is deep
            chain.append(chain[-1].parts[1])
        for here in reversed(chain):
            if here not in self._edges:
                self._edges[here] = self._derive(here)
        return self._edges[term]

    def _derive(self, term: Term) -> dict[Term, int]:
        if term.kind == "byte":
            return {self.empty: term.mask} if term.mask else {}
        if term.kind == "empty":
            return {}
        if term.kind in ("alt", "both"):
            return self._overlay(term.kind, [self.edges(part) for part in term.parts])
        first = term.parts[0]
        rest = self._less(term) if term.kind == "repeat" else term.parts[1]
        found = _gather((self._cat(after, rest), mask) for after, mask in self.edges(first).items())
        passed = term.kind == "cat" and first.nullable
        return self._overlay("alt", [found, self.edges(rest)]) if passed else found

    def _less(self, term: Term) -> Term:
        """What is left of a repeat after one time."""
        return self.repeat(term.parts[0], max(term.low - 1, 0), None if term.high is None else term.high - 1)

    def _overlay(self, kind: Kind, many: list[dict[Term, int]]) -> dict[Term, int]:
        """Edges of the union or the intersection of terms, from the edges of each."""
        pieces: list[tuple[int, list[Term]]] = []  # sets of bytes, disjoint, and what may follow each
        for edges in many:
            for after, mask in edges.items():
                split = []
                for piece, afters in pieces:
                    if outside := piece & ~mask:
                        split.append((outside, [*afters] if piece & mask else afters))
                    if inside := piece & mask:
                        afters.append(after)
                        split.append((inside, afters))
                    mask &= ~piece
                if mask:
                    split.append((mask, [after]))
                pieces = split
        if kind == "alt":
            return _gather((self.alt(*afters), piece) for piece, afters in pieces)
        shared = ((self.both(*afters), piece) for piece, afters in pieces if len(afters) == len(many))
        return _gather((after, piece) for after, piece in shared if after is not self.nothing)

    def _cat(self, first: Term, rest: Term) -> Term:
        if self.nothing in (first, rest):
            return self.nothing
        heads = []
        while first.kind == "cat":  # always leaning to the right, so that equal texts are equal terms
            heads.append(first.parts[0])
            first = first.parts[1]
        for head in (first, *reversed(heads)):
            if rest is self.empty:
                rest = head
            elif head is not self.empty:
                rest = self._term("cat", (head, rest), nullable=head.nullable and rest.nullable)
        return rest

    def _set(self, kind: Kind, parts: set[Term], nullable: bool) -> Term:
        ordered = sorted(parts, key=lambda part: part.number)
        return ordered[0] if len(ordered) == 1 else self._term(kind, tuple(ordered), nullable=nullable)

    def _utf8(self, first: bytes, last: bytes) -> Term:
        """The byte strings between two of one length, where every byte but the first is a continuation (80..BF)."""
        head, tail, least, most = first[0], len(first) - 1, b"\x80", b"\xbf"
        if not tail:
            return self.byte(_span(head, last[0]))
        if head == last[0]:
            return self.cat(self.byte(1 << head), self._utf8(first[1:], last[1:]))
        parts, end = [], last[0]
        if first[1:] != least * tail:
            parts.append(self._utf8(first, bytes([head]) + most * tail))
            head += 1
        if last[1:] != most * tail:
            parts.append(self._utf8(bytes([end]) + least * tail, last))
            end -= 1
        if head <= end:
            parts.append(self.cat(self.byte(_span(head, end)), *[self.byte(_span(0x80, 0xBF))] * tail))
        return self.alt(*parts)

    def _term(
        self,
        kind: Kind,
        parts: tuple[Term, ...] = (),
        mask: int = 0,
        low: int = 0,
        high: int | None = None,
        nullable: bool = False,
    ) -> Term:
        key = (kind, parts, mask, low, high)
        if key not in self._terms:
            self._size += 1 + len(parts)
            if self._size > MOST:
                raise TooComplex(f"it unfolds into more than {MOST} terms")
            self._terms[key] = Term(len(self._terms), kind, parts, mask, low, high, nullable)
        return self._terms[key]


def _span(low: int, high: int) -> int:
    return (1 << high + 1) - (1 << low)


def _flat(kind: Kind, terms: Iterable[Term]) -> Iterator[Term]:
    for term in terms:
        yield from term.parts if term.kind == kind else (term,)


def _gather(pairs: Iterable[tuple[Term, int]]) -> dict[Term, int]:
    found: dict[Term, int] = {}
    for after, mask in pairs:
        found[after] = found.get(after, 0) | mask
    return found
