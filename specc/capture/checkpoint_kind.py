"""Which kind of drafter a checkpoint is, told by the names of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..drafter import EAGLE, EAGLE3, MEDUSA, MODEL
from ..errors import CaptureError
from .checkpoint import Checkpoint, tensor_names

_CALLED = {EAGLE: "an EAGLE drafter", EAGLE3: "an EAGLE-3 drafter", MEDUSA: "Medusa heads", MODEL: "a whole model"}
# Checked in this order: EAGLE-3 in the layout of speculators has EAGLE's names too.
_MARKS = (
    (EAGLE3, re.compile(r"d2t$|t2d$|midlayer\.|layers\.0\.hidden_norm\.")),
    (MEDUSA, re.compile(r"(medusa_heads?\.)?\d+\.\d+\.(linear\.)?weight$")),
    (EAGLE, re.compile(r"fc\.weight$")),
    (MODEL, re.compile(r"(model\.)?embed_tokens\.weight$|model\.layers\.|transformer\.h\.")),
)


def kind_of(names: Iterable[str]) -> tuple[str, str]:
    """The kind (one of `drafter.KINDS`) and the name that tells it; both empty where none does."""
    listed = list(names)
    for kind, mark in _MARKS:
        for name in listed:
            if mark.match(name):
                return kind, name
    return "", ""


def check_kind(checkpoint: Checkpoint, kind: str) -> None:
    """Refuse what is plainly of another kind.

    Raises:
        CaptureError: says which it is, and what to type.
    """
    found, name = kind_of(checkpoint.tensors)
    if found not in ("", kind):
        raise CaptureError(_told(checkpoint.source, found, name, f"{_CALLED[kind]}; type", f"{kind}:"))


def check_whole(source: str, error: CaptureError) -> None:
    """Say better why a drafter could not be loaded as a whole model: it reads the target's hidden states.

    Args:
        error: why it could not.

    Raises:
        CaptureError: it is of another kind; says which, and what to type.
    """
    try:
        found, name = kind_of(tensor_names(source))
    except CaptureError:
        return
    if found not in ("", MODEL):
        raise CaptureError(_told(source, found, name, "a whole model; type", "")) from error


def _told(source: str, found: str, name: str, wanted: str, prefix: str) -> str:
    typed = source if found == MODEL else f"{found}:{source}"
    return f"drafter: {source} holds {name}, so it is {_CALLED[found]} and not {wanted} {typed} for {prefix}{source}"
