"""What a bench run measures."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import option
from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """One run: which prompts, how long, how often, and where the results go."""

    prompts: str | None = option(None, "file of prompts, one a line (default: built-in, several kinds)", metavar="FILE")
    max_new_tokens: int = option(32, "tokens per text", metavar="N")
    repeats: int = option(3, "interleaved repeats; medians are shown", metavar="N")
    json: str | None = option(None, "write every figure to a file", metavar="FILE")
    plot: str | None = option(None, "draw the picture", metavar="FILE.png")

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "repeats"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value!r} must be a whole number of at least 1")
