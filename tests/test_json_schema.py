"""JSON schemas: every text that the automaton spells is JSON that fits; what cannot be kept is refused."""

from __future__ import annotations

import datetime
import ipaddress
import json
import re
import uuid
from typing import Any

import pytest
from helpers.grammars import EOS, TEXT, VOCAB, accepts, walks
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.errors import ConfigError
from specc.runtime.grammar import Grammar, compile_json_schema

PERSON = {
    "type": "object",
    "title": "Person",
    "properties": {
        "name": {"type": "string", "description": "first and last", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "th", 'é"\n']}, "minItems": 1, "maxItems": 3},
        "next": {"anyOf": [{"$ref": "#/$defs/point"}, {"type": "null"}]},
    },
    "required": ["name", "next"],
    "additionalProperties": False,
    "$defs": {"point": {"type": "array", "prefixItems": [{"type": "number"}, {"type": "boolean"}], "items": False}},
}
SCHEMAS: list[Any] = [
    PERSON,
    {},
    True,
    {"type": "object"},
    {"type": "object", "additionalProperties": {"type": "integer"}},
    {"properties": {"a": {"const": 1}, "b": {"const": None}, "c": True}},
    {"properties": {}},
    {"properties": {'k"\n\\é': {"type": "boolean"}}, "required": ['k"\n\\é']},
    {"properties": {"no": False, "yes": {"type": "null"}}},
    {"type": "array"},
    {"type": "array", "items": {"type": "array", "items": {"type": "null"}, "maxItems": 0}, "maxItems": 3},
    {"type": "array", "items": {"type": "null"}, "minItems": 2, "maxItems": 2},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": ".{2,}[ab]", "maxLength": 4},
    {"type": ["string", "null", "integer"], "maxLength": 3, "minimum": -5},
    {"enum": [1, 1.5, None, True, "€", [1, {"a": "b"}], {"x": []}]},
    {"type": "integer", "enum": [1, 2.0, "a", True]},
    {"const": {"a": [1, 2]}},
    {"type": "number"},
    {"type": "number", "minimum": -2, "maximum": 3},
    {"allOf": [{"type": "boolean"}]},
    {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
]


def grammar(schema: Any) -> Grammar:
    return compile_json_schema(schema, TEXT, VOCAB, (EOS,))


def fits(value: Any, schema: Any, root: Any) -> bool:
    """What the schemas above mean, by the words of the specification."""
    if isinstance(schema, bool):
        return schema
    number = isinstance(value, int | float) and not isinstance(value, bool)
    kinds = {
        "string": isinstance(value, str),
        "number": number,
        "integer": number and value == int(value),
        "boolean": isinstance(value, bool),
        "null": value is None,
        "array": isinstance(value, list),
        "object": isinstance(value, dict),
    }
    types = schema.get("type", list(kinds))
    checks = [any(kinds[kind] for kind in ([types] if isinstance(types, str) else types))]
    if "$ref" in schema:
        checks.append(fits(value, root["$defs"][schema["$ref"].removeprefix("#/$defs/")], root))
    if "anyOf" in schema:
        checks.append(any(fits(value, part, root) for part in schema["anyOf"]))
    checks += [fits(value, part, root) for part in schema.get("allOf", [])]
    if "enum" in schema or "const" in schema:
        checks.append(any(json.dumps(value) == json.dumps(one) for one in schema.get("enum", [schema.get("const")])))
    if isinstance(value, dict):
        listed, more = schema.get("properties", {}), schema.get("additionalProperties", True)
        checks += [name in value for name in schema.get("required", [])]
        checks += [fits(member, listed.get(name, more), root) for name, member in value.items()]
    if isinstance(value, list):
        first = schema.get("prefixItems", [])
        checks += [fits(item, part, root) for item, part in zip(value, first, strict=False)]
        checks += [fits(item, schema.get("items", True), root) for item in value[len(first) :]]
        checks.append(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 10**9))
    if isinstance(value, str):
        checks.append(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 10**9))
        checks.append(re.search(schema.get("pattern", ""), value) is not None)
    if number:
        checks.append(schema.get("minimum", -1e400) <= value <= schema.get("maximum", 1e400))
    return all(checks)


@pytest.mark.parametrize("schema", SCHEMAS, ids=[json.dumps(schema)[:60] for schema in SCHEMAS])
def test_random_walks_spell_json_that_fits(schema: Any) -> None:
    for text in walks(grammar(schema), 40):
        assert fits(json.loads(text), schema, schema), text


INSIDE = [
    (PERSON, ['{"name": "x", "next": null}', '{"name":"é€😀","age":130,"tags":["th", "a"],"next":[-1.5e3, true]}']),
    (PERSON, ['{ "name": "\\"\\\\\\n", "age": 7, "next": [0,false] }']),
    ({}, ['{"a": [1, {"b": "c"}]}', "null", "-0", "[]", "{ }", "[[[1]], 2]"]),
    ({"type": "string", "pattern": "^[a-z]+$"}, ['"abc"']),
    ({"type": "number"}, ["0", "-1", "1.50", "2e9", "1E-2"]),
]
OUTSIDE = [
    (PERSON, ['{"name": "x"}', '{"next": null, "name": "x"}', '{"name": "x", "next": null, "other": 1}']),
    (PERSON, ['{"name": "xxxxxxxxxxxxx", "next": null}', '{"name": "x", "age": 131, "next": null}']),
    (
        PERSON,
        ['{"name": "x",  "next": null}', '{"name": "x", "age": 01, "next": null}', '{"name": "a\nb", "next": null}'],
    ),
    (PERSON, ['{"name": "x", "tags": [], "next": null}', '{"name": "x", "next": [1]}', '{"name": "x", "next": null,}']),
    ({}, ["[[[[1]]]]", "", "1e999", "01", "+1", ".5", "nul", '"', "[1,]", '"\n"', "{1: 2}"]),
    ({"type": "string", "pattern": "^[a-z]+$"}, ['"a\\n"', '""', '"A"']),
    ({"type": "number"}, ["1.", "00", "-", "1e", "NaN"]),
]


@pytest.mark.parametrize(("schema", "texts"), INSIDE)
def test_texts_that_can_be_written(schema: Any, texts: list[str]) -> None:
    for text in texts:
        json.loads(text)
        assert accepts(grammar(schema), text), text


@pytest.mark.parametrize(("schema", "texts"), OUTSIDE)
def test_texts_that_cannot_be_written(schema: Any, texts: list[str]) -> None:
    assert [text for text in texts if accepts(grammar(schema), text)] == []


def test_every_choice_of_optional_properties_can_be_written() -> None:
    schema = {"properties": {name: {"const": 1} for name in "abc"}, "required": ["b"]}
    made = grammar(schema)
    for chosen in range(8):
        names = [name for i, name in enumerate("abc") if chosen >> i & 1]
        assert accepts(made, json.dumps(dict.fromkeys(names, 1))) == ("b" in names)


@settings(max_examples=60, deadline=None)
@given(low=st.none() | st.integers(-130, 130), size=st.none() | st.integers(0, 150), extra=st.integers(-300, 300))
def test_bounds_of_whole_numbers(low: int | None, size: int | None, extra: int) -> None:
    high = None if size is None else (low or 0) + size
    made = grammar(
        {"type": "integer", **({} if low is None else {"minimum": low}), **({} if high is None else {"maximum": high})}
    )
    for number in {low, high, 0, 9, 10, 99, 100, extra, *range((low or 0) - 12, (low or 0) + 12)} - {None}:
        expected = (low is None or number >= low) and (high is None or number <= high)
        assert accepts(made, str(number)) == expected, number
    assert not accepts(made, "1.0") and not accepts(made, "007")


@settings(max_examples=60, deadline=None)
@given(low=st.integers(-12, 12), size=st.integers(0, 15), tenths=st.lists(st.integers(-300, 300), min_size=20))
def test_bounds_of_numbers(low: int, size: int, tenths: list[int]) -> None:
    made = grammar({"type": "number", "minimum": low, "maximum": low + size})
    for tenth in (*tenths, 10 * low, 10 * (low + size), 10 * low - 1, 10 * (low + size) + 1):
        text = f"{'-' if tenth < 0 else ''}{abs(tenth) // 10}.{abs(tenth) % 10}"
        assert accepts(made, text) == (10 * low <= tenth <= 10 * (low + size)), text


def test_exclusive_bounds() -> None:
    made = grammar({"type": "integer", "exclusiveMinimum": 9, "exclusiveMaximum": 12, "minimum": 2})
    assert [n for n in range(20) if accepts(made, str(n))] == [10, 11]


@pytest.mark.parametrize(
    ("name", "parse"),
    [
        ("date", datetime.date.fromisoformat),
        ("time", datetime.time.fromisoformat),
        ("date-time", datetime.datetime.fromisoformat),
        ("uuid", uuid.UUID),
        ("ipv4", ipaddress.IPv4Address),
        ("email", re.compile(r"[^@\s\"\\]+@[^@\s\"\\]+\.[a-zA-Z]+").fullmatch),
    ],
)
def test_formats(name: str, parse: Any) -> None:
    for text in walks(grammar({"type": "string", "format": name}), 60):
        assert parse(json.loads(text)), text


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("{", "json_schema must be JSON text.*Expecting property name"),
        ({"a": {1, 2}}, "json_schema must be JSON text.*not JSON serializable"),
        ([], r"at #: expected a schema, found \[\]"),
        ({"type": "text"}, "at #/type: 'text' is not one of object, array, string"),
        ({"type": []}, "at #/type"),
        ({"type": [["string"]]}, "at #/type"),
        (
            {"type": "string", "minimum": 1},
            "at #: minimum cannot be kept beside type string; known there: format, maxL",
        ),
        ({"type": "number", "multipleOf": 2}, "multipleOf cannot be kept"),
        ({"type": "number", "exclusiveMinimum": 0}, "exclusiveMinimum cannot be kept beside type number"),
        ({"type": "number", "minimum": 0.5}, "at #/minimum: 0.5 is not a whole number"),
        ({"type": "integer", "minimum": 3, "maximum": 2}, "no integer is at least 3 and at most 2"),
        ({"type": "array", "uniqueItems": True}, "uniqueItems cannot be kept"),
        ({"type": "object", "minProperties": 1}, "minProperties cannot be kept"),
        ({"type": "object", "patternProperties": {}}, "patternProperties cannot be kept"),
        ({"not": {}}, "at #: not cannot be kept beside a schema without a type"),
        ({"oneOf": [{}]}, "oneOf cannot be kept.*write anyOf"),
        ({"allOf": [{}, {}]}, "at #/allOf: only one schema"),
        ({"anyOf": []}, "at #/anyOf: expected a list that is not empty"),
        ({"anyOf": [{}], "type": "string"}, "type cannot be kept beside anyOf"),
        ({"enum": "ab"}, "at #/enum: expected a list"),
        ({"type": "string", "enum": [1, 2]}, r"at #/enum: none of \[1, 2\] is of type string"),
        ({"properties": {"a": {}}, "additionalProperties": 5}, "at #/additionalProperties: expected a schema, found 5"),
        ({"enum": [float("nan")]}, "at #/enum: nan cannot be written as JSON"),
        ({"const": "\ud800"}, "at #/const: .* cannot be written as JSON"),
        (
            {"properties": {"a": {"type": "array", "items": {"format": "uri"}}}},
            "at #/properties/a/items/format: 'uri' is",
        ),
        ({"properties": []}, r"at #: expected properties as an object and required as a list, found \[\]"),
        ({"properties": {"a": {}}, "required": ["b"]}, "at #/required: 'b' is not among the properties"),
        ({"type": "object", "required": ["b"]}, "at #/required: 'b' is not among the properties"),
        ({"type": "string", "pattern": "("}, r"regex '\(' does not compile"),
        ({"type": "string", "pattern": 3}, "regex must be a text"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "minLength 3 is above maxLength 2"),
        ({"type": "string", "minLength": -1}, "whole numbers from 0 on, not -1"),
        ({"type": "string", "maxLength": "3"}, "whole numbers from 0 on, not '3'"),
        ({"type": "string", "pattern": '[\\\\"\n]'}, "vocabulary cannot spell any text"),
        (False, "vocabulary cannot spell any text"),
        ({"type": "array", "prefixItems": [{}], "minItems": 2}, "at #/prefixItems: expected a list of as many"),
        ({"$ref": "#/$defs/a"}, "at #/\\$ref: '#/\\$defs/a' is not found"),
        ({"$ref": "http://a.b/c"}, "is not found in this schema; references look like"),
        ({"$ref": 3}, "3 is not found"),
        ({"properties": {"a": {"$ref": "#"}}}, "at #/properties/a/\\$ref: '#' holds itself"),
    ],
)
def test_what_cannot_be_kept_is_refused(schema: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grammar(schema)


def test_a_schema_that_nests_too_deep_is_refused() -> None:
    schema: Any = {"type": "null"}
    for _ in range(700):
        schema = {"type": "array", "items": schema}
    with pytest.raises(ConfigError, match="nests too deep|JSON text"):
        grammar(schema)


def test_references_are_read_once() -> None:
    twice = {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 2} for i in range(60)}
    made = grammar({"$ref": "#/$defs/a0", "$defs": {**twice, "a60": {"type": "null"}}})
    assert set(walks(made, 3)) == {"null"}


WORDS = ["type", "properties", "required", "items", "enum", "const", "anyOf", "allOf", "$ref", "minLength", "minimum"]
WORDS += ["maxItems", "prefixItems", "pattern", "format", "additionalProperties", "title"]
LEAVES = (
    st.none() | st.booleans() | st.integers(-2, 3) | st.sampled_from(["string", "object", "#", "#/items", "date", "a"])
)
ANY = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=300, deadline=None)
@given(schema=ANY)
def test_whatever_is_given_is_built_or_refused(schema: Any) -> None:
    try:
        made = compile_json_schema(json.dumps(schema), TEXT, VOCAB, (EOS,))
    except ConfigError:
        return
    for text in walks(made, 3):
        json.loads(text)
