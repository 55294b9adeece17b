"""`specc verify`: does an engine keep its promises? Called `verifier` because `specc.verify` is the function."""

from __future__ import annotations

from .report import Check, Report
from .run import verify

__all__ = ["Check", "Report", "verify"]
