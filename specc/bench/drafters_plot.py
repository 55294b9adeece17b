"""The picture of a comparison of drafters: measured speed-up over acceptance, with the formula's curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .drafters_summary import FIXED
from .formulas import tokens_per_step
from .plot import new_figure

POINTS = [i / 100 for i in range(101)]


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw a result of several engines into a file of the kind that its ending names.

    Raises:
        BackendError: matplotlib is not installed.
    """
    figure = new_figure(figsize=(6.8, 4.6), layout="constrained")
    axes = figure.subplots()
    rows = {row["system"]: row for row in result["comparison"]["rows"]}
    for i, (name, engine) in enumerate(result["engines"].items()):
        found, color = engine["speculation"], f"C{i}"
        drafter = Path(engine["models"]["drafter"]).name
        label = f"{name}: {drafter}, {engine['draft']}, {found['step_over_plain']:.2f} plain steps"
        axes.plot(POINTS, formula_curve(found), "--", color=color, linewidth=1)
        for how, system in engine["systems"]["drafting"].items():
            marker, text = ("o", label) if how == FIXED else ("D", f"{name}: {how}")
            axes.plot([found["acceptance_rate"]], [rows[system]["against_plain"]], marker, color=color, label=text)
    axes.axhline(1, color="black", linewidth=0.8, linestyle=":")
    axes.set(xlim=(0, 1), xlabel="acceptance rate of the main draft", ylabel="speed-up over the best plain step")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=7, loc="upper left")
    machine, target = result["machine"], result["target"]
    host = f"{machine['processor']}, {machine['threads']} threads"
    figure.suptitle(
        f"{Path(target['source']).name}, {target['dtype']}; {host}; greedy, batch 1\n"
        "dashed: (1-a^(K+1)) / ((1-a) C), with the cost C of a step that was measured",
        fontsize=8,
    )
    figure.savefig(path, dpi=150)


def formula_curve(found: dict[str, Any]) -> list[float]:
    """Speed-up at every acceptance of `POINTS`, for a step of the depth and the cost that an engine's has."""
    cost = found["step_over_plain"]
    return [tokens_per_step(a, found["draft_length"]) / cost if cost else 0.0 for a in POINTS]
