"""Load an engine and run it. Needs torch, safetensors and tokenizers only, and imports them at first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .chat import Chat
    from .engine import Engine
    from .loading import load
    from .result import Generation, Stats, TokenLogprob
    from .session import Job, Session
    from .stream import Stream

__all__ = ["Chat", "Engine", "Generation", "Job", "Session", "Stats", "Stream", "TokenLogprob", "load"]
_HOMES = {"Chat": "chat", "Generation": "result", "Stats": "result", "TokenLogprob": "result", "Job": "session"}
_HOMES |= {"Session": "session", "Stream": "stream", "load": "loading"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES.get(name, 'engine')}", __name__), name)
