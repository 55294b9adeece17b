"""Load an engine and run it. Needs torch, safetensors and tokenizers only, and imports them at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine, Stream, load
    from .generate import Generation, Stats

__all__ = ["Engine", "Generation", "Stats", "Stream", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import engine, generate

    return getattr(engine if name in ("Engine", "Stream", "load") else generate, name)
