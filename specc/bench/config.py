"""What a bench run measures."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..config import option
from ..errors import ConfigError
from ..manifest import MAX_BATCH
from .synthetic import SyntheticConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchConfig:
    """One run: which prompts, how long, how often, and where the results go."""

    prompts: str | None = option(None, "file of prompts, one a line (default: built-in, several kinds)", metavar="FILE")
    max_new_tokens: int = option(32, "tokens per text", metavar="N")
    repeats: int = option(3, "interleaved repeats; medians are shown", metavar="N")
    json: str | None = option(None, "write every figure to a file", metavar="FILE")
    plot: str | None = option(None, "draw the picture", metavar="FILE.png")
    batch: str | None = option(None, "measure these numbers of rows instead, as 1,2,4,8", metavar="SIZES")
    processors: bool = option(False, "measure what logits processors cost instead")
    pair: SyntheticConfig = field(default_factory=SyntheticConfig)

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "repeats"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} {value!r} must be a whole number of at least 1")
        if not isinstance(self.processors, bool):
            raise ConfigError(f"--processors must be True or False, not {self.processors!r}")
        self.sizes()

    def sizes(self) -> tuple[int, ...]:
        """Batch sizes to measure, ascending."""
        if self.batch is None:
            return ()
        try:
            sizes = sorted({int(part) for part in self.batch.split(",")})
        except (ValueError, AttributeError) as e:
            raise ConfigError(f"--batch {self.batch!r} is not a list of numbers of rows, as 1,2,4,8") from e
        wrong = [size for size in sizes if not 1 <= size <= MAX_BATCH]
        if wrong:
            raise ConfigError(f"--batch {self.batch}: {wrong[0]} is outside 1..{MAX_BATCH} rows")
        return tuple(sizes)
