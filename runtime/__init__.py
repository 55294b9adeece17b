"""Load an engine and run it. Needs torch, safetensors and tokenizers only, and imports them at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine, load
    from .generate import Generation, Stats
    from .stream import Stream

__all__ = ["Engine", "Generation", "Stats", "Stream", "load"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import engine, generate, stream

    homes = {"Generation": generate, "Stats": generate, "Stream": stream}
    return getattr(homes.get(name, engine), name)
