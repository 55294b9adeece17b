"""Token automata: what they allow is what leads to a text that `re.fullmatch` matches, and nothing else."""

from __future__ import annotations

import itertools
import re

import pytest
import torch
from helpers.grammars import BYTES, EOS, TEXT, VOCAB, accepts, allowed, walks
from helpers.models import tiny_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from specc.errors import ConfigError
from specc.runtime.grammar import Grammar, compile_json_schema, compile_regex
from specc.runtime.grammar.token_table import TokenTable
from specc.runtime.text import Text

LETTERS = "théA"  # 'th', 'he' and 'h' are tokens, 'é' is two


def grammar(pattern: str, eos: tuple[int, ...] = (EOS,), **options: int) -> Grammar:
    return compile_regex(pattern, TEXT, options.pop("vocab_size", VOCAB), eos, **options)


def token(text: str | bytes) -> int:
    return BYTES.index(text.encode() if isinstance(text, str) else text)


# --- the language

TABLE = [
    ("a|ab", ["a", "ab"], ["", "b", "abb"]),  # a search would stop at the first of them
    ("a*?b??", ["", "a", "aab", "b"], ["ba"]),
    ("^ab$", ["ab"], ["a", "abb"]),
    (r"\Aab\Z|^b", ["ab", "b"], ["a"]),
    ("(^a$|^ab$)", ["a", "ab"], ["b"]),
    ("", [""], ["a"]),
    ("(a?){3}", ["", "a", "aaa"], ["aaaa"]),
    ("(ab){2,}", ["abab", "ababab"], ["ab", "aba"]),
    ("(a{2}|b){1,2}c{0}", ["aa", "b", "aab", "bb"], ["", "a", "bbb"]),
    ("(?i)ab[c-d]", ["abd", "aBC"], ["ab"]),
    ("(?i:a)b", ["Ab", "ab"], ["aB"]),
    ("(?x) a b # c", ["ab"], ["a b"]),
    ("(?P<name>a)(?:b)", ["ab"], ["a"]),
    (r"\d\D\w\W\s\S", ["1a1. é"], ["aa1. é", "1a1.  "]),
    (r"(?a)\w", ["a", "_"], ["é"]),
    ("[^a-z]", ["A", "é", "€", "😀", "\n"], ["a", "", "AA"]),
    ("[]a^-]+", ["]a^-"], ["b"]),
    (r"[\w-]{2}", ["a-", "é_"], ["a."]),
    (".", ["a", "é", "😀"], ["\n", "ab", ""]),
    ("(?s).", ["\n"], []),
    ("[é-€]|😀", ["é", "€", "😀"], ["a"]),
    (r"\.\\\x41\n\u20ac", [".\\A\n€"], [".\\A\n"]),
    ("(a|aa){0,3}b", ["b", "aaaaaab", "aaab"], ["aaaaaaab"]),
]


@pytest.mark.parametrize(("pattern", "inside", "outside"), TABLE, ids=[row[0] for row in TABLE])
def test_texts_as_re_matches_them(pattern: str, inside: list[str], outside: list[str]) -> None:
    made = grammar(pattern)
    for text in [*inside, *outside, "a", "ab", "é", " ", "A1_", "th", "\n"]:
        assert (re.fullmatch(pattern, text) is not None) == accepts(made, text), text
    assert all(accepts(made, text) for text in inside)
    assert not any(accepts(made, text) for text in outside)


@pytest.mark.parametrize("pattern", [row[0] for row in TABLE] + [r'"([^"\\]|\\.){0,20}"', "(th|the|[a-e]+ ?)+€"])
def test_random_walks_spell_matches(pattern: str) -> None:
    for text in walks(grammar(pattern), 40):
        assert re.fullmatch(pattern, text), text


@st.composite
def regexes(draw: st.DrawFn, depth: int = 3) -> tuple[str, int]:
    """A regular expression over LETTERS, and how many letters at most complete anything begun."""
    kind = draw(
        st.sampled_from(["letter", "class"] if not depth else ["letter", "class", "cat", "or", "many", "times"])
    )
    if kind == "letter":
        return draw(st.sampled_from(LETTERS)), 1
    if kind == "class":
        letters = draw(st.sets(st.sampled_from(LETTERS), min_size=1, max_size=3))
        return f"[{''.join(sorted(letters))}]", 1
    left, short = draw(regexes(depth=depth - 1))
    if kind == "many":
        return f"({left}){draw(st.sampled_from(['*', '+', '?', '*?', '??']))}", short
    if kind == "times":
        low = draw(st.integers(0, 2))
        high = draw(st.integers(max(low, 1), 3))
        return f"({left}){{{low},{high}}}", short * max(low, 1)
    right, other = draw(regexes(depth=depth - 1))
    return (f"({left}{right})", short + other) if kind == "cat" else (f"({left}|{right})", max(short, other))


@settings(max_examples=120, deadline=None)
@given(made=regexes().filter(lambda made: made[1] <= 5), data=st.data())
def test_a_token_is_allowed_where_a_match_goes_on(made: tuple[str, int], data: st.DataObject) -> None:
    """The oracle: all texts of LETTERS that match, as long as the walk can have become and can need."""
    pattern, short = made
    automaton, state, prefix = grammar(pattern), 0, b""
    longest = min(short + 2, 7)
    texts = ("".join(t) for n in range(longest + 1) for t in itertools.product(LETTERS, repeat=n))
    matches = [text.encode() for text in texts if re.fullmatch(pattern, text)]
    while len(prefix.decode(errors="replace")) + short <= longest:
        expected = [
            t for t, spelled in enumerate(BYTES) if spelled and any(m.startswith(prefix + spelled) for m in matches)
        ]
        ends = [EOS] if prefix in matches else []
        room = [
            t
            for t in allowed(automaton, state)
            if t == EOS or len((prefix + BYTES[t]).decode(errors="replace")) + short <= longest
        ]
        assert set(expected) <= set(allowed(automaton, state))
        assert set(room) <= {*expected, *ends}
        assert (EOS in allowed(automaton, state)) == bool(ends)
        if not room or (choice := data.draw(st.sampled_from(room))) == EOS:
            break
        prefix += BYTES[choice]
        state = automaton.next_state(state, choice)


# --- tokens


def test_a_character_may_be_split_over_tokens() -> None:
    made = grammar("é|€|😀")
    assert allowed(made, 0) == sorted({token("é".encode()[:1]), token("€".encode()[:1]), token("😀".encode()[:1])})
    state = made.next_state(0, token(b"\xf0"))
    assert allowed(made, state) == [token(b"\x9f")]  # a character that was begun is finished; no EOS before
    assert {text for text in walks(made, 60)} == {"é", "€", "😀"}


def test_long_tokens_go_as_far_as_their_bytes() -> None:
    made = grammar("the[rn]")
    assert allowed(made, 0) == sorted([token("t"), token("th")])
    after_t = made.next_state(0, token("t"))
    assert allowed(made, after_t) == sorted([token("h"), token("he")])
    assert made.next_state(made.next_state(0, token("th")), token("er")) == made.next_state(
        made.next_state(after_t, token("he")), token("n")
    )


def test_special_and_padded_ids_are_never_allowed() -> None:
    made = grammar(r"(?s).*", vocab_size=VOCAB + 5)
    assert made.token_class.shape == (VOCAB + 5,) and made.token_class.dtype == made.next.dtype == torch.int32
    assert set(allowed(made, 0)) == {EOS, *range(3, VOCAB)} - {
        t for t in range(3, VOCAB) if b"\x80" <= BYTES[t] < b"\xc0"
    }
    assert made.next_state(-1, EOS) == -1


def test_ids_beyond_the_models_vocabulary_do_not_exist() -> None:
    made = grammar("[a-z]+", vocab_size=token("th"))
    assert made.token_class.shape == (token("th"),)
    assert token("a") in allowed(made, 0)


def test_no_way_leads_where_the_vocabulary_cannot_go_on() -> None:
    made = grammar("abÿ|ac|xyÿ*")  # no token has the bytes of ÿ
    assert allowed(made, 0) == [token("a"), token("x")]
    assert allowed(made, made.next_state(0, token("a"))) == [token("c")]
    assert set(walks(made, 40)) == {"ac", "xy"}


def test_no_way_leads_through_an_eos() -> None:
    assert allowed(grammar("a\nb|c", eos=(token("\n"),)), 0) == [token("c")]
    with pytest.raises(ConfigError, match="vocabulary cannot spell any text"):
        grammar("a\nb", eos=(token("\n"),))


@pytest.mark.parametrize("pattern", ["ÿ", "aÿ+", "(aÿ)*bÿ"])
def test_what_the_vocabulary_cannot_spell_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="vocabulary cannot spell any text"):
        grammar(pattern)


def test_tokens_that_do_the_same_share_a_class_and_no_others() -> None:
    for pattern in ("[0-9]{3}-[0-9]{4}", r"\w+( \w+)*", "(th|he)+"):
        made = grammar(pattern)
        table = made.next.view(made.states, made.classes)
        assert len({tuple(column) for column in table.T.tolist()}) == made.classes
        assert made.token_class.max() == made.classes - 1
    assert grammar("[0-9]{3}-[0-9]{4}").classes == 4  # digits, the hyphen, all others, EOS


def test_states_that_allow_the_same_are_one() -> None:
    assert grammar("(ab|cb)d|abd|(a|c)bd").states == grammar("[ac]bd").states == 5
    assert grammar("a{2}(b|c){1,40}").states == 2 + 41 + 1


def test_a_table_by_hand() -> None:
    made = grammar("ab|b")
    other, a, b, end = (int(made.token_class[t]) for t in (token("c"), token("a"), token("b"), EOS))
    table = made.next.view(made.states, made.classes).tolist()
    assert (made.start, made.states, made.classes) == (0, 4, 4)
    after_a, after_b, done = table[0][a], table[0][b], table[made.next_state(0, token("b"))][end]
    assert sorted([0, after_a, after_b, done]) == [0, 1, 2, 3]
    expected = {0: {a: after_a, b: after_b}, after_a: {b: after_b}, after_b: {end: done}, done: {end: done}}
    for state, row in expected.items():
        assert table[state] == [row.get(number, -1) for number in range(4)]
    assert sorted([other, a, b, end]) == [0, 1, 2, 3]


# --- the end


def test_eos_where_the_text_may_end_and_alone_after_it() -> None:
    made = grammar("ab?", eos=(EOS, 0))
    assert allowed(made, 0) == [token("a")]
    state = made.next_state(0, token("a"))
    assert allowed(made, state) == sorted([EOS, 0, token("b")])
    done = made.next_state(state, token("b"))
    assert allowed(made, done) == [0, EOS]
    for end in (0, EOS):
        assert allowed(made, made.next_state(state, end)) == [0, EOS]
        assert made.next_state(made.next_state(state, end), end) == made.next_state(state, end)


def test_an_eos_that_spells_something_is_an_end_and_no_text() -> None:
    made = grammar("a\n?", eos=(token("\n"),))
    state = made.next_state(0, token("a"))
    assert allowed(made, state) == [token("\n")]
    assert allowed(made, made.next_state(state, token("\n"))) == [token("\n")]


def test_without_eos_a_text_must_be_able_to_go_on() -> None:
    assert allowed(grammar("a*", eos=()), 0) == [token("a")]
    with pytest.raises(ConfigError, match="regex 'a|ab': a text of it may end where nothing can follow; give eos_tok"):
        grammar("a|ab", eos=())


@pytest.mark.parametrize("eos", [-1, VOCAB])
def test_an_eos_outside_the_vocabulary_is_refused(eos: int) -> None:
    with pytest.raises(ConfigError, match=f"eos_token_id {eos} must be in 0..127"):
        grammar("a", eos=(eos,))


# --- what is refused


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("(", "does not compile: missing \\), unterminated subpattern at position 0"),
        ("a{2,1}", "does not compile: min repeat greater than max"),
        ("*", "does not compile: nothing to repeat"),
        ("(?=a)b", "look-around"),
        ("(?<!a)b", "look-around"),
        (r"(a)\1", "has groupref, which no automaton has"),
        ("(?L)a", "does not compile"),
        (r"(a)?(?(1)b|c)", "has groupref exists"),
        (r"\bword", "a border inside it"),
        ("a^b", r"\^, \$ or a border"),
        ("a$b", r"\^, \$ or a border"),
        ("(c|a$)b", r"\^, \$ or a border"),
        ("(a$)?b", r"\^, \$ or a border"),
        ("(^a)*", r"\^, \$ or a border"),
        ("(?>a)", "has atomic group"),
        ("a++", "has possessive repeat"),
        ("(" * 3000 + "a" + ")" * 3000, "does not compile|nests too deep"),
        ("a?" * 3000, "more than 1000000 terms"),
    ],
)
def test_patterns_that_cannot_be_kept_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        grammar(pattern)


def test_a_pattern_must_be_text() -> None:
    with pytest.raises(ConfigError, match="regex must be a text, not bytes"):
        grammar(b"a")  # type: ignore[arg-type]


def test_a_table_above_the_limit_is_refused_with_its_size() -> None:
    made = grammar("[a-c]{20}d")
    size = made.states * made.classes
    assert made.next.shape == (size,)
    assert grammar("[a-c]{20}d", limit=size).next.shape == (size,)
    with pytest.raises(ConfigError, match=rf"{size} entries, above the {size - 1} of this engine.*--grammar {size}$"):
        grammar("[a-c]{20}d", limit=size - 1)


@pytest.mark.parametrize("pattern", ["a{100000}", "([ab]*a[ab]{40})", r"\w{1,9999}", "(.*a.{9}){9}"])
def test_a_search_that_would_not_end_is_given_up(pattern: str) -> None:
    with pytest.raises(ConfigError, match="too many for a table of 20000 entries; ask for less.*--grammar above it"):
        grammar(pattern, limit=20_000)


def test_a_search_through_ever_larger_terms_is_given_up_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specc.runtime.grammar.languages.MOST", 10_000)
    with pytest.raises(ConfigError, match="unfolds into more than 10000 terms; ask for less [^-]*$"):
        grammar("(a{1,99}){1,99}")


def test_pairs_of_states_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specc.runtime.grammar.build._PAIRS", 0)
    with pytest.raises(ConfigError, match="different steps, too many"):
        grammar("[a-f]{3}[d-h]")


# --- the cache


def test_the_same_grammar_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = grammar("cached{3}")
    schema = compile_json_schema({"type": "null"}, TEXT, VOCAB, [EOS])
    other = Text(tiny_tokenizer(th="ÃŁ").backend_tokenizer)
    monkeypatch.setattr(TokenTable, "of", None)
    assert grammar("cached{3}") is first
    assert compile_json_schema('{"type": "null"}', TEXT, VOCAB, (EOS,)) is schema
    for changed in ({"eos": (0,)}, {"vocab_size": 120}, {"limit": 999}):
        with pytest.raises(TypeError):
            grammar("cached{3}", **changed)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        compile_regex("cached{3}", other, VOCAB, (EOS,))
