"""What a drafter's own numbers say of the draft, against what the options say."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .drafter import LOOKAHEAD, MEDUSA, NGRAM, DrafterSpec
from .errors import ConfigError
from .tree import MAX_DEPTH, MAX_NODES, DynamicTree

if TYPE_CHECKING:
    from .config import DraftConfig


def fix_draft(text: str, drafter: DrafterSpec, draft: DraftConfig) -> DraftConfig:
    """The draft that the drafter allows: K of `ngram:n,K`, and G chains of N - 1 of `lookahead:W,N,G`.

    Args:
        text: the drafter as it was given.
        drafter: what it says.
        draft: what the options say.

    Raises:
        ConfigError: they contradict each other, or a number is out of bounds.
    """
    if (drafter.kind == NGRAM or drafter.lookup) and isinstance(draft.shape(), DynamicTree):
        raise ConfigError(
            f"drafter {text!r} finds no scores to grow --tree {draft.tree} by; give widths, as --tree 3,1,1"
        )
    if drafter.kind == MEDUSA and isinstance(draft.shape(), DynamicTree):
        raise ConfigError(
            f"drafter {text!r} says all levels at once, so that --tree {draft.tree} cannot grow; give widths or a "
            "published tree, as --tree medusa_63"
        )
    fixed = _fixed(text, drafter)
    if not fixed:
        return draft
    allowed = {"draft_length": None, "tree": None, "tune": False, **fixed}
    for name, value in allowed.items():
        given = getattr(draft, name)
        if given not in (None, False, value):
            flag = name.replace("_", "-")
            raise ConfigError(f"drafter {text!r} and --{flag} {given} contradict each other; give one of the two")
    return dataclasses.replace(draft, **fixed)


def _fixed(text: str, drafter: DrafterSpec) -> dict[str, Any]:
    if drafter.draft_length is not None:
        if drafter.draft_length > MAX_DEPTH:
            raise ConfigError(f"drafter {text!r}: K is outside 1..{MAX_DEPTH}; try ngram:{drafter.numbers[0]},3")
        return {"draft_length": drafter.draft_length}
    if drafter.kind != LOOKAHEAD:
        return {}
    window, size, guesses = drafter.numbers
    if size - 1 > MAX_DEPTH or max(window, guesses) * (size - 1) >= MAX_NODES:
        raise ConfigError(
            f"drafter {text!r}: N is at most {MAX_DEPTH + 1}, W(N-1) and G(N-1) below {MAX_NODES}; try lookahead:7,5,7"
        )
    return {"tree": ",".join([str(guesses), *["1"] * (size - 2)]), "ladder": None}
