"""The proof that a captured graph is the model."""

from __future__ import annotations

from typing import Any

from ..program import Model


def prove(loaded: Any, model: Model) -> None:
    """To be written: greedy decoding of the graph against the model's own."""
