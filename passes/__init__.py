"""Graph to graph: the contract, the manager and the list of passes."""

from .contract import Pass
from .manager import PassReport, run
from .pipeline import bound_passes, prefill_passes, step_passes

__all__ = ["Pass", "PassReport", "bound_passes", "prefill_passes", "run", "step_passes"]
