"""JSON schemas as regular languages (`languages.py`): every text of the language is JSON that fits the schema.

Not every fitting text: properties stand in the schema's order, unlisted ones only where none is listed, a `pattern`
matches the whole string, the only white space is one optional space, and where anything may stand, it nests three
deep at most. What cannot be kept is refused by name, never dropped.

Source: JSON Schema 2020-12; RFC 8259 (JSON), RFC 3339 (dates).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from ...errors import ConfigError
from .decimals import number
from .languages import Languages, Term
from .regex import regex

DEPTH = 3  # the table doubles with each
_NOTES = {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "discriminator"}
_NOTES |= {"$schema", "$id", "$comment", "$defs", "definitions"}  # all these allow every value
_BOUNDS = {"minimum", "maximum"}
_KEYWORDS: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {*_BOUNDS, "exclusiveMinimum", "exclusiveMaximum"},
    "number": _BOUNDS,
    "boolean": set(),
    "null": set(),
}
_PLAIN = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0x10FFFF))  # what a string holds as it is
_DAY = "(0[1-9]|1[0-2])-(0[1-9]|1[0-9]|2[0-8])|(0[13-9]|1[0-2])-(29|30)|(0[13578]|1[02])-31"
_DATE = f"[1-9][0-9]{{3}}-({_DAY})"  # every date but 29 February
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "email": r"[A-Za-z0-9]+([._+-][A-Za-z0-9]+)*@[A-Za-z0-9]+([.-][A-Za-z0-9]+)*\.[A-Za-z]{2,16}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
}


def json_schema(languages: Languages, schema: Any) -> Term:
    """The texts that are JSON and fit a schema (as `json.loads` reads it).

    Raises:
        ConfigError: it is no schema, or has what no automaton can keep; says where.
    """
    return _Reader(languages, schema).value(schema, "#", ())


class _Reader:
    """Each method makes the language of one form of schema; `at` is its place, `inside` the references around it."""

    def __init__(self, languages: Languages, root: Any) -> None:
        self.make = languages
        self.root = root
        self.read: dict[str, Term] = {}  # by reference: schemas that refer twice to ones that refer twice grow fast
        self.space = languages.repeat(languages.text(" "), 0, 1)
        self.plain = languages.chars(_PLAIN)
        self.char = languages.alt(self.plain, regex(languages, r'\\["\\/bfnrt]'))

    def value(self, schema: Any, at: str, inside: tuple[str, ...]) -> Term:
        if isinstance(schema, bool):
            return self.anything(DEPTH) if schema else self.make.nothing
        if not isinstance(schema, Mapping):
            _refuse(at, f"expected a schema, found {schema!r}")
        types = schema.get("type", [kind for kind, words in _KEYWORDS.items() if words & set(schema)])
        types = [types] if isinstance(types, str) else types
        if "type" in schema and not (
            types and isinstance(types, list) and all(kind in list(_KEYWORDS) for kind in types)
        ):
            _refuse(f"{at}/type", f"{schema['type']!r} is not one of {', '.join(_KEYWORDS)}, or a list of them")
        for form in ("$ref", "anyOf", "allOf", "const", "enum"):
            if form in schema:
                self.only(schema, {form, "type"} if form in ("const", "enum") else {form}, form, at)
                return self.form(form, schema, types or list(_KEYWORDS), f"{at}/{form}", inside)
        known = {"type"}.union(*(_KEYWORDS[kind] for kind in types))
        self.only(schema, known, f"type {' or '.join(types)}" if types else "a schema without a type", at)
        if not types:
            return self.anything(DEPTH)
        kinds: dict[str, Callable[..., Term]] = {"object": self.object, "array": self.array}
        return self.make.alt(
            *(kinds[kind](schema, at, inside) if kind in kinds else self.scalar(kind, schema, at) for kind in types)
        )

    def only(self, schema: Mapping[str, Any], known: set[str], what: str, at: str) -> None:
        """Nothing that is asked for is left out."""
        for word in schema:
            if word not in known | _NOTES:
                hint = "; write anyOf, which does not ask that only one fits" if word == "oneOf" else ""
                _refuse(at, f"{word} cannot be kept beside {what}{hint}; known there: {', '.join(sorted(known))}")

    def form(self, form: str, schema: Mapping[str, Any], types: list[str], at: str, inside: tuple[str, ...]) -> Term:
        given = schema[form]
        if form == "$ref":
            if given in inside:
                _refuse(at, f"{given!r} holds itself, and a table cannot nest without end; write out as deep as needed")
            found = self.lookup(given, at)
            if given not in self.read:
                self.read[given] = self.value(found, given, (*inside, given))
            return self.read[given]
        if form == "const":
            given = [given]
        if not isinstance(given, list) or not given:
            _refuse(at, f"expected a list that is not empty, found {given!r}")
        if form in ("const", "enum"):
            kept = [value for value in given if any(_is(value, kind) for kind in types)]
            if not kept:
                _refuse(at, f"none of {given!r} is of type {' or '.join(types)}")
            return self.make.alt(*(self.literal(value, at) for value in kept))
        if form == "allOf" and len(given) > 1:
            _refuse(at, "only one schema can be kept in allOf; write their keywords into one")
        return self.make.alt(*(self.value(part, f"{at}/{i}", inside) for i, part in enumerate(given)))

    def lookup(self, reference: Any, at: str) -> Any:
        found = self.root
        path = reference.split("/") if isinstance(reference, str) else [""]
        try:
            if path.pop(0) != "#":
                raise LookupError
            for part in path:
                part = part.replace("~1", "/").replace("~0", "~")
                found = found[int(part) if isinstance(found, list) else part]
        except (LookupError, TypeError, ValueError):
            _refuse(at, f"{reference!r} is not found in this schema; references look like '#/$defs/name'")
        return found

    def anything(self, depth: int) -> Term:
        scalars = [self.scalar(kind, {}, "") for kind in ("string", "number", "boolean", "null")]
        if not depth:
            return self.make.alt(*scalars)
        inner = self.anything(depth - 1)
        return self.make.alt(*scalars, self.listed("[", inner, "]"), self.listed("{", self.member(inner), "}"))

    def inner(self, schema: Mapping[str, Any], word: str, at: str, inside: tuple[str, ...]) -> Term:
        """Any number of values, which may be anything if the schema does not say."""
        given = schema.get(word, True)
        return self.anything(DEPTH - 1) if given is True else self.value(given, f"{at}/{word}", inside)

    def member(self, value: Term, name: Term | None = None) -> Term:
        name = name or self.scalar("string", {}, "")
        return self.make.cat(name, self.make.text(":"), self.space, value)

    def listed(self, left: str, item: Term, right: str, low: int = 0, high: int | None = None) -> Term:
        """`low` to `high` items between brackets."""
        more = self.make.cat(self.comma(), item)
        rest = self.make.repeat(more, max(low - 1, 0), None if high is None else max(high - 1, 0))
        some = self.make.nothing if high == 0 else self.make.cat(self.space, item, rest, self.space)
        inside = some if low else self.make.alt(self.space, some)
        return self.make.cat(self.make.text(left), inside, self.make.text(right))

    def comma(self) -> Term:
        return self.make.cat(self.make.text(","), self.space)

    def object(self, schema: Mapping[str, Any], at: str, inside: tuple[str, ...]) -> Term:
        listed, required = schema.get("properties"), schema.get("required", [])
        if not isinstance(listed, Mapping | None) or not isinstance(required, list):
            _refuse(at, f"expected properties as an object and required as a list, found {listed!r} and {required!r}")
        if missing := [name for name in required if name not in list(listed or {})]:
            _refuse(f"{at}/required", f"{missing[0]!r} is not among the properties; say there what it holds")
        if listed is None:
            more = self.inner(schema, "additionalProperties", at, inside)
            return self.listed("{", self.member(more), "}")
        if "additionalProperties" in schema:  # none are written, which every schema of them admits; but it must be one
            self.inner(schema, "additionalProperties", at, inside)
        first = rest = self.make.empty  # what may follow, from the last property on: with none before it, and with some
        for name, value in reversed([*listed.items()]):
            member = self.member(
                self.value(value, f"{at}/properties/{name}", inside), self.literal(name, f"{at}/properties")
            )
            here, after = self.make.cat(member, rest), self.make.cat(self.comma(), member, rest)
            needed = name in required
            first = here if needed else self.make.alt(here, first)
            rest = after if needed else self.make.alt(after, rest)
        return self.make.cat(self.make.text("{"), self.space, first, self.space, self.make.text("}"))

    def array(self, schema: Mapping[str, Any], at: str, inside: tuple[str, ...]) -> Term:
        low, high = self.counts(schema, "Items", at)
        if "prefixItems" not in schema:
            return self.listed("[", self.inner(schema, "items", at, inside), "]", low, high)
        given = schema["prefixItems"]
        if not isinstance(given, list) or not given or not low <= len(given) <= (len(given) if high is None else high):
            _refuse(f"{at}/prefixItems", "expected a list of as many schemas as minItems and maxItems allow")
        parts = [self.value(part, f"{at}/prefixItems/{i}", inside) for i, part in enumerate(given)]
        inner = [parts[0], *(self.make.cat(self.comma(), part) for part in parts[1:])]
        return self.make.cat(self.make.text("["), self.space, *inner, self.space, self.make.text("]"))

    def scalar(self, kind: str, schema: Mapping[str, Any], at: str) -> Term:
        match kind:
            case "string":
                return self.string(schema, at)
            case "boolean":
                return regex(self.make, "true|false")
            case "null":
                return self.make.text("null")
        return self.number(kind, schema, at)

    def string(self, schema: Mapping[str, Any], at: str) -> Term:
        low, high = self.counts(schema, "Length", at)
        asked = []
        if "pattern" in schema:
            asked.append(regex(self.make, schema["pattern"]))
        if "format" in schema:
            if schema["format"] not in list(_FORMATS):
                _refuse(f"{at}/format", f"{schema['format']!r} is not one of {', '.join(_FORMATS)}; give a pattern")
            asked.append(regex(self.make, _FORMATS[schema["format"]]))
        quote = self.make.text('"')
        inner = self.make.repeat(self.plain if asked else self.char, low, high)
        return self.make.cat(quote, self.make.both(inner, *asked), quote)

    def number(self, kind: str, schema: Mapping[str, Any], at: str) -> Term:
        low, high = self.bound(schema, "inimum", at, 1), self.bound(schema, "aximum", at, -1)
        if low is not None and high is not None and low > high:
            _refuse(at, f"no {kind} is at least {low} and at most {high}")
        return number(self.make, low, high, whole=kind == "integer")

    def bound(self, schema: Mapping[str, Any], name: str, at: str, step: int) -> int | None:
        """The least (or largest) whole number that `minimum` and `exclusiveMinimum` allow."""
        found = []
        for word, shift in ((f"m{name}", 0), (f"exclusiveM{name}", step)):
            if word in schema:
                if not _is(schema[word], "integer"):
                    _refuse(f"{at}/{word}", f"{schema[word]!r} is not a whole number, and only those can be kept")
                found.append(int(schema[word]) + shift)
        return (max if step > 0 else min)(found) if found else None

    def counts(self, schema: Mapping[str, Any], what: str, at: str) -> tuple[int, int | None]:
        low, high = schema.get(f"min{what}", 0), schema.get(f"max{what}")
        for count in (low, 0 if high is None else high):
            if not _is(count, "integer") or count < 0:
                _refuse(at, f"min{what} and max{what} must be whole numbers from 0 on, not {count!r}")
        if high is not None and low > high:
            _refuse(at, f"min{what} {low} is above max{what} {high}")
        return int(low), None if high is None else int(high)

    def literal(self, value: Any, at: str) -> Term:
        try:
            return self.make.text(json.dumps(value, ensure_ascii=False, allow_nan=False))
        except (ValueError, TypeError) as e:
            _refuse(at, f"{value!r} cannot be written as JSON ({e})")


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "integer" | "number":
            whole = isinstance(value, int) or (isinstance(value, float) and (kind == "number" or value.is_integer()))
            return whole and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "boolean":
            return isinstance(value, bool)
        case "array":
            return isinstance(value, list)
        case "object":
            return isinstance(value, Mapping)
    return value is None


def _refuse(at: str, why: str) -> NoReturn:
    raise ConfigError(f"json_schema, at {at}: {why}")
