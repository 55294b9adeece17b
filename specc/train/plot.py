"""The picture of a training run: loss, and acceptance on held-out text, over the steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plot_training(log: list[dict[str, Any]], path: Path) -> bool:
    """Draw the log of a run.

    Args:
        log: entries of `Trainer.log`.
        path: of the picture.

    Returns:
        Whether it was drawn: not without matplotlib, and not of an empty log.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    if not log:
        return False
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    steps = [entry["step"] for entry in log]
    left.plot(steps, [entry["loss"] for entry in log], color="#1f5f99", marker=".")
    left.set(title="loss", xlabel="step")
    for i in range(len(log[-1]["held"]["steps"])):
        held = [entry["held"]["steps"][i] for entry in log]
        right.plot(steps, held, marker=".", label=f"draft {i + 1}")
    right.set(title="acceptance on held-out answers", xlabel="step", ylim=(0, 1))
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    return True
