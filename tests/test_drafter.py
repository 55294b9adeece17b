"""The drafter argument: every form, and what is said to what is none."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from specc.config import CompileConfig, DraftConfig
from specc.drafter import DrafterSpec, parse_drafter
from specc.errors import ConfigError
from specc.tree import DraftTree


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("org/small", DrafterSpec("model", ("org/small",))),
        ("a+b", DrafterSpec("model", ("a", "b"))),
        ("ngram", DrafterSpec("ngram", numbers=(4,))),
        ("ngram:3", DrafterSpec("ngram", numbers=(3,))),
        ("ngram:3,5", DrafterSpec("ngram", numbers=(3,), draft_length=5)),
        ("lookahead", DrafterSpec("lookahead", numbers=(7, 5, 7))),
        ("lookahead:15,5,15", DrafterSpec("lookahead", numbers=(15, 5, 15))),
        ("medusa:x", DrafterSpec("medusa", ("x",))),
        ("eagle:x/y", DrafterSpec("eagle", ("x/y",))),
        ("eagle3:C:/x", DrafterSpec("eagle3", ("C:/x",))),
        ("self:3", DrafterSpec("self", numbers=(0, 1, 2))),
        ("self:0-2,5", DrafterSpec("self", numbers=(0, 1, 2, 5))),
        ("self:0,4", DrafterSpec("self", numbers=(0, 4))),
        ("ngram,eagle:x", DrafterSpec("eagle", ("x",), lookup=4)),
        ("ngram,a", DrafterSpec("model", ("a",), lookup=4)),
    ],
)
def test_forms(text: str, spec: DrafterSpec) -> None:
    assert parse_drafter(text) == spec


@pytest.mark.parametrize(
    "text",
    ["ngram:", "ngram:0", "ngram:a", "ngram:1,2,3", "lookahead:7,5", "lookahead:7,1,7", "medusa:", "eagle:", "eagle3:"]
    + [
        "self:",
        "self:0",
        "self:x",
        "self:3-1",
        "self:2,1",
        "self:1,1",
        "self:1-2-9",
        "self: 4",
        "ngram,",
        "a+",
        "+",
        "ngram,ngram",
        "ngram,ngram,a",
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="drafter"):
        parse_drafter(text)


def test_a_path_that_exists_is_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a+b").mkdir()
    assert parse_drafter("a+b") == DrafterSpec("model", ("a+b",))


def config(drafter: str, **draft: object) -> CompileConfig:
    return CompileConfig(target="t", drafter=drafter, output="o", draft=DraftConfig(**draft))


@pytest.mark.parametrize("draft", [{"draft_vocab": 60}, {"draft_quant": "int8"}])
def test_what_the_target_shares_is_not_cut(draft: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"--draft-(vocab|quant).*self:2 reads the target's own"):
        config("self:2", **draft)


def test_lookup_before_a_drafter_drafts_trees_of_fixed_shape() -> None:
    assert config("ngram,a", tree="2,1").drafting().lookup == 4
    with pytest.raises(ConfigError, match=r"'ngram,a' finds no scores to grow --tree dynamic:8,3,3 by"):
        config("ngram,a", tree="dynamic:8,3,3")


@pytest.mark.parametrize(
    "text, draft, name",
    [
        ("a+b", {"tune": True}, "--tune"),
        ("a+b", {"tree": "dynamic:8,3,3"}, "--tree dynamic:8,3,3"),
        ("ngram,a+b", {}, "ngram,"),
    ],
)
def test_what_several_drafters_cannot_do(text: str, draft: dict[str, object], name: str) -> None:
    with pytest.raises(ConfigError, match=f"^{name} is for one drafter, and '{re.escape(text)}' names 2"):
        config(text, **draft)


def test_several_drafters_have_a_tree_each() -> None:
    assert config("a+b").drafting().roles == ("drafter", "drafter2")
    (tree,) = config("a+b", tree="2,1").shapes()
    assert tree.paths == ((), (0,), (1,), (2,), (3,), (0, 0), (1, 0), (2, 0), (3, 0))
    assert tree.share(1, 2) == (config("a", tree="2,1").shapes()[0], (0, 3, 4, 7, 8))
    with pytest.raises(ConfigError, match="more than 128"):
        config("a+b", tree="70")


@pytest.mark.parametrize("draft", [{"draft_length": 4}, {"tree": "2,1"}, {"tune": True}, {"ladder": "1,5"}])
def test_lookahead_says_what_is_drafted(draft: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="'lookahead:3,4,2' and --(draft-length|tree|tune|ladder) .* contradict"):
        config("lookahead:3,4,2", **draft)
    made = config("lookahead:3,4,2")
    assert made.draft.shape() == DraftTree.from_widths((2, 1, 1)) and dataclasses.replace(made) == made


@pytest.mark.parametrize("pool", [-1, 2**21, True, "many"])
def test_the_pool_has_bounds(pool: object) -> None:
    with pytest.raises(ConfigError, match="--ngram-pool .* must be a whole number in 0"):
        CompileConfig(target="t", drafter="ngram", output="o", ngram_pool=pool)


def test_only_lookup_has_a_pool() -> None:
    with pytest.raises(ConfigError, match="--ngram-pool 64 is searched by the drafter ngram alone, not by 'lookahead'"):
        CompileConfig(target="t", drafter="lookahead", output="o", ngram_pool=64)


@pytest.mark.parametrize("text", ["lookahead:7,18,7", "lookahead:65,3,1", "lookahead:1,3,64"])
def test_lookahead_has_bounds(text: str) -> None:
    with pytest.raises(ConfigError, match="N is at most 17"):
        config(text)


@pytest.mark.parametrize("draft", [{"draft_length": 4}, {"tree": "2,1"}, {"tune": True}])
def test_the_length_of_lookup_is_given_once(draft: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="'ngram:3,5' and --(draft-length|tree|tune) .* contradict"):
        config("ngram:3,5", **draft)


def test_the_length_of_lookup_is_that_of_the_draft() -> None:
    made = config("ngram:3,5")
    assert made.draft.shape().depth == 5 and dataclasses.replace(made) == made
    with pytest.raises(ConfigError, match="outside 1..16"):
        config("ngram:3,17")
