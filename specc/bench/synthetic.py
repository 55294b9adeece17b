"""Synthetic: an engine of a model with random weights, made for one run of the bench."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .. import environment
from ..config import DEFAULT_DRAFT_LENGTH, DTYPES, option
from ..driver import compile_config, compile_engine
from ..errors import ConfigError
from ..progress import Report

DEFAULT_ACCEPT = 0.8


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticConfig:
    """A pair to be made, in place of an engine that there is."""

    synthetic: str | None = option(
        None,
        "make a model with random weights of this shape, as llama-1b or llama-8b, in place of ENGINE",
        metavar="SHAPE",
    )
    accept: float | None = option(
        None, f"share of its drafts that shall be accepted (default {DEFAULT_ACCEPT})", metavar="SHARE"
    )
    device: str | None = option(None, "where it runs (default cpu)", metavar="DEVICE")
    dtype: str | None = option(None, "dtype of its weights and caches (default float32)", choices=DTYPES)
    draft_length: int | None = option(None, f"tokens drafted per step (default {DEFAULT_DRAFT_LENGTH})", metavar="K")
    backend: str | None = option(None, "what carries its programs (default inductor)", metavar="BACKEND")

    def __post_init__(self) -> None:
        for name in ("accept", "device", "dtype", "draft_length", "backend"):
            value = getattr(self, name)
            if value is not None and self.synthetic is None:
                flag = f"--{name.replace('_', '-')} {value}"
                raise ConfigError(f"{flag} is of a pair that --synthetic makes; an engine that there is has its own")


@contextmanager
def synthetic_engine(config: SyntheticConfig, rows: int, report: Report) -> Iterator[Path]:
    """The engine, in a folder that is removed in the end; of as many rows as will be measured.

    Raises:
        ConfigError: a shape, share or device that cannot be.
    """
    from ..capture.synthetic import check_synthetic, write_synthetic

    assert config.synthetic is not None
    name, accept = config.synthetic, DEFAULT_ACCEPT if config.accept is None else config.accept
    kept = check_synthetic(name, accept).kept
    options = {k: v for k in ("dtype", "device", "backend", "draft_length") if (v := getattr(config, k)) is not None}
    with tempfile.TemporaryDirectory(prefix="specc-") as made:
        folder = Path(made)
        choices = compile_config(folder / name, f"self:{kept}", folder / "engine", batch=rows, **options)
        environment.check_back_end(choices.backend, choices.devices())  # before minutes go by
        with report.stage(f"make {name}"):
            reached = write_synthetic(name, accept, folder / name, dtype=choices.dtype, device=choices.device)
        report.say(f"{name}: its first layers say what all say at {reached:.0%} of the positions of random text")
        yield compile_engine(choices, report)
