"""The picture of a plan: speed-up over the draft length, over the acceptance, and over the texts side by side."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..bench.formulas import tokens_per_step
from ..bench.plot import new_figure

_OTHERS = (0.5, 0.7, 0.8, 0.9)  # acceptances that are drawn beside the one planned for
_BLUE, _GREY = "#1f5f99", "#b0b0b0"


def draw(result: dict[str, Any], path: Path) -> None:
    """Draw a result of `plan` into a file of the kind that its ending names.

    Raises:
        BackendError: matplotlib is not installed.
    """
    panels: list[Callable[[Any, dict[str, Any]], None]] = []
    panels += [_lengths] if _chains(result) else []
    panels += [_acceptances] if result["grid"] else []
    panels += [_batch] if result["batch"] else []
    panels = panels or [_bars]
    figure = new_figure(figsize=(1.0 + 4.4 * len(panels), 4.2), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        panel(axes, result)
        axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
        axes.set_ylim(bottom=0)
        axes.set_ylabel("speed-up over plain steps")
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(result["verdicts"][0], fontsize=8)
    figure.savefig(path, dpi=150)


def _chains(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [draft for draft in result["drafts"] if draft["draft"].startswith("chain")]


def _lengths(axes: Any, result: dict[str, Any]) -> None:
    """What was planned, and the same steps at other acceptances."""
    chains = _chains(result)
    lengths = [draft["draft_length"] for draft in chains]
    for a in _OTHERS:
        speeds = [tokens_per_step(a, draft["draft_length"]) / draft["step_cost"] for draft in chains]
        axes.plot(lengths, speeds, color=_GREY, linewidth=1)
        axes.annotate(f" {a:.0%}", (lengths[-1], speeds[-1]), fontsize=7, color="#6f6f6f", va="center")
    speeds = [draft["speedup"] for draft in chains]
    axes.plot(lengths, speeds, "o-", color=_BLUE, label=f"acceptance {result['acceptance']:.0%}")
    axes.set_xticks(lengths)
    axes.set_xlabel("draft length K")
    axes.legend(frameon=False, fontsize=8)


def _acceptances(axes: Any, result: dict[str, Any]) -> None:
    """The best draft length at every acceptance, a line for each cost."""
    grid, given = result["grid"], f"{result['cost']:g}" if "cost" in result else ""
    for name, column in grid["best"].items():
        color = _BLUE if name == given or not given else _GREY
        label = f"c = {name}" if given else name
        axes.plot(grid["acceptance"], [cell["speedup"] for cell in column], color=color, label=label)
    axes.plot([result["acceptance"]], [result["best"]["speedup"]], "o", color=_BLUE)
    axes.set_xlabel("acceptance of a drafted token")
    axes.legend(frameon=False, fontsize=8)


def _batch(axes: Any, result: dict[str, Any]) -> None:
    sizes = [int(size) for size in result["batch"]]
    axes.plot(sizes, [best["speedup"] for best in result["batch"].values()], "o-", color=_BLUE)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set_xlabel("texts side by side")


def _bars(axes: Any, result: dict[str, Any]) -> None:
    """Trees alone are known: a bar each."""
    drafts = result["drafts"] or result["tuned"]
    axes.bar(range(len(drafts)), [draft["speedup"] for draft in drafts], 0.6, color=_BLUE)
    axes.set_xticks(range(len(drafts)), [draft["draft"] for draft in drafts], rotation=30, fontsize=7)
