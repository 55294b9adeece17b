"""The picture of a bench run: a panel or two for each thing that was measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from ..errors import BackendError, ConfigError
from .systems import AS_RUN, ASSISTED, EAGER, PLAIN, SPECULATIVE

_WIDTHS = {"_speed": 2.6, "_acceptance": 1.0}
_SHADES = ("#b0b0b0", "#7fb2d9", "#1f5f99")
_COLORS = {EAGER: "#b0b0b0", ASSISTED: "#6f6f6f", PLAIN: "#7fb2d9", SPECULATIVE: "#1f5f99", AS_RUN: "#0b2f4f"}


def check_plot(path: Path) -> None:
    """Check, before anything is measured, that a picture can be drawn into `path`.

    Raises:
        BackendError: matplotlib is not installed.
        ConfigError: matplotlib draws no pictures of this ending.
    """
    known = new_figure().canvas.get_supported_filetypes()
    if path.suffix.lower().removeprefix(".") not in known:
        better = shlex.quote(str(path.parent / f"{path.stem or 'bench'}.png"))
        raise ConfigError(
            f"--plot {path}: {path.suffix or 'a name without an ending'} is no format of pictures; type "
            f"--plot {better} (known: {', '.join(sorted(known))})"
        )


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw a result of `bench` into a PNG (or what matplotlib makes of the file's ending).

    Raises:
        BackendError: matplotlib is not installed.
    """
    panels = {"systems": (_speed, _acceptance), "batch": (_batch,), "processors": (_processors,)}
    draws = [draw for name, drawn in panels.items() if name in result for draw in drawn]
    widths = [_WIDTHS.get(draw.__name__, 1.8) for draw in draws]
    figure = new_figure(figsize=(2.2 + 2.45 * sum(widths), 4.2), layout="constrained")
    for axes, draw in zip(figure.subplots(1, len(draws), width_ratios=widths, squeeze=False)[0], draws, strict=True):
        draw(axes, result)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(length=0)
    models, machine = result["models"], result["machine"]
    pair = f"{Path(models['target']).name} with {Path(models['drafter']).name}, {models['dtype']}"
    host = f"{machine['processor']}, {machine['threads']} threads"
    title = f"{pair}; {host}; greedy, batch 1" if "systems" in result else f"{pair}\n{host}"
    figure.suptitle(title, fontsize=10 if "systems" in result else 8)
    figure.savefig(path, dpi=150)


def new_figure(**options: Any) -> Any:
    """An empty figure of matplotlib.

    Raises:
        BackendError: matplotlib is not installed.
    """
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


def _acceptance(axes: Any, result: dict[str, Any]) -> None:
    alphas = result["speculation"]["acceptance_per_position"]
    positions = range(1, len(alphas) + 1)
    bars = axes.bar(positions, [100 * alpha for alpha in alphas], 0.6, color=_COLORS[SPECULATIVE])
    axes.bar_label(bars, fmt="%.0f", fontsize=8, padding=1)
    axes.set_xticks(list(positions))
    axes.set_ylim(0, 105)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("accepted, % of the steps that reach it")


def _batch(axes: Any, result: dict[str, Any]) -> None:
    """A line for each system: speed by the number of rows."""
    sizes = result["batch"]["sizes"]
    for system in (PLAIN, SPECULATIVE):
        speeds = [found[system]["tokens_per_second"] for found in sizes.values()]
        axes.plot([int(size) for size in sizes], speeds, "o-", label=system, color=_COLORS[system])
    axes.set_xticks([int(size) for size in sizes])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows side by side")
    axes.set_ylabel("tokens per second of all rows, greedy")
    axes.legend(frameon=False, fontsize=8)


def _processors(axes: Any, result: dict[str, Any]) -> None:
    """Groups of bars: one group per rule, one bar per what is switched on."""
    rules = result["processors"]["rules"]
    cases = list(next(iter(rules.values())))
    width = 0.8 / len(cases)
    for i, case in enumerate(cases):
        places = [k + (i - (len(cases) - 1) / 2) * width for k in range(len(rules))]
        times = [found[case]["ms_per_step"] for found in rules.values()]
        bars = axes.bar(places, times, width * 0.94, label=case, color=_SHADES[i])
        axes.bar_label(bars, fmt="%.1f", fontsize=7, padding=1)
    axes.set_xticks(range(len(rules)), list(rules))
    axes.set_ylabel("ms per speculative step")
    axes.margins(y=0.3)
    axes.legend(frameon=False, fontsize=8)
