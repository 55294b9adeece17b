"""Graph to graph: the contract, the manager and the list of passes."""

from .contract import Pass
from .manager import PassReport, run
from .pipeline import prefill_passes, step_passes

__all__ = ["Pass", "PassReport", "prefill_passes", "run", "step_passes"]
