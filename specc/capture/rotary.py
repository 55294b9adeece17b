"""Rotary scaling that looks at the data: frozen where the context allows it, else refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from ..errors import CaptureError

DEFAULT_POSITIONS = 2048  # for a model whose configuration names no limit


def rope_kinds(config: Any) -> dict[str, dict[str, Any]]:
    """Rotary parameters by kind of layer (`""` where all layers share them); empty without rotary positions."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = {kind: item for kind, item in parameters.items() if isinstance(item, dict)}
    return nested or ({"": parameters} if "rope_type" in parameters else {})


def positions_limit(config: Any) -> int:
    """Tokens of context an engine may have: the model's own, with longrope those of its short factors.

    Longrope takes long factors for every row as soon as one position of the call is past the original length, so a
    rejected draft would change the text; below that length the short factors are the model itself.
    """
    limit: int = getattr(config, "max_position_embeddings", None) or DEFAULT_POSITIONS
    for item in rope_kinds(config).values():
        if item["rope_type"] == "longrope":
            limit = min(limit, item["original_max_position_embeddings"])
    return limit


@contextlib.contextmanager
def frozen_rotary(model: Any) -> Iterator[None]:
    """The model with longrope held at its short factors.

    Raises:
        CaptureError: dynamic scaling, whose frequencies depend on the longest text seen so far.
    """
    changed = []
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds = [str(k) for k in kind.values()] if isinstance(kind, dict) else [str(kind)]
        if any("dynamic" in k for k in kinds):
            raise CaptureError(
                f"{type(model).__name__} scales its rotary positions dynamically, by the longest text seen; "
                'load it with rope_type "default" or "yarn" in config.json'
            )
        if "longrope" in kinds:
            changed.append((module, kind))
            module.rope_type = (
                {k: _freeze(v) for k, v in kind.items()} if isinstance(kind, dict) else _freeze(str(kind))
            )
    try:
        yield
    finally:
        for module, kind in changed:
            module.rope_type = kind


def _freeze(kind: str) -> str:
    return "frozen" if kind == "longrope" else kind
