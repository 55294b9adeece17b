"""The picture of a bench run: tokens per second by kind and system, acceptance by position."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ..errors import BackendError, ConfigError

_COLORS = {
    "transformers eager": "#b0b0b0",
    "transformers assisted": "#6f6f6f",
    "compiled plain": "#7fb2d9",
    "compiled speculative": "#1f5f99",
}


def check_plot(path: Path) -> None:
    """Check, before anything is measured, that a picture can be drawn into `path`.

    Raises:
        BackendError: matplotlib is not installed.
        ConfigError: matplotlib draws no pictures of this ending.
    """
    known = _figure().canvas.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        better = shlex.quote(str(path.parent / f"{path.stem or 'bench'}.png"))
        raise ConfigError(
            f"--plot {path}: {path.suffix or 'a name without an ending'} is no format of pictures; type --plot {better} "
            f"(known: {', '.join(sorted(known))})"
        )


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw a result of `bench` into a PNG (or what matplotlib makes of the file's ending).

    Raises:
        BackendError: matplotlib is not installed.
    """
    figure = _figure(figsize=(11, 4.2), layout="constrained")
    speed, acceptance = figure.subplots(1, 2, width_ratios=[2.6, 1])
    _speed(speed, result)
    _acceptance(acceptance, result["speculation"])
    models, machine = result["models"], result["machine"]
    pair = f"{Path(models['target']).name} with {Path(models['drafter']).name}, {models['dtype']}"
    figure.suptitle(f"{pair}; {machine['processor']}, {machine['threads']} threads; greedy, batch 1", fontsize=10)
    figure.savefig(path, dpi=150)


def _figure(**options: Any) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as e:
        raise BackendError("--plot needs matplotlib; install it with pip install 'specc[bench]'") from e
    return Figure(**options)


def _speed(axes: Any, result: dict[str, Any]) -> None:
    """Groups of bars: one group per kind of prompt, one bar per system."""
    kinds, systems = result["kinds"], list(result["systems"])
    width = 0.8 / len(systems)
    for i, system in enumerate(systems):
        places = [k + (i - (len(systems) - 1) / 2) * width for k in range(len(kinds))]
        speeds = [found[system]["tokens_per_second"] for found in kinds.values()]
        bars = axes.bar(places, speeds, width * 0.94, label=system, color=_COLORS.get(system))
        axes.bar_label(bars, fmt="%.0f", fontsize=7, padding=1)
    axes.set_xticks(range(len(kinds)), list(kinds))
    axes.set_xlabel("kind of prompt")
    axes.set_ylabel("tokens per second after prefill")
    axes.margins(y=0.18)
    axes.legend(frameon=False, fontsize=8, ncols=2, loc="upper left")
    _bare(axes)


def _acceptance(axes: Any, found: dict[str, Any]) -> None:
    alphas = found["acceptance_per_position"]
    positions = range(1, len(alphas) + 1)
    bars = axes.bar(positions, [100 * alpha for alpha in alphas], 0.6, color=_COLORS["compiled speculative"])
    axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
    axes.set_xticks(list(positions))
    axes.set_ylim(0, 105)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted, % of the steps that reach it")
    _bare(axes)


def _bare(axes: Any) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(length=0)
