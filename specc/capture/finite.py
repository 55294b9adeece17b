"""Weights are numbers: one that is not finite makes every logit NaN, and the text a row of the same token."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ..errors import CaptureError


def check_finite(weights: Iterable[tuple[str, Tensor]], source: str, role: str) -> None:
    """Check that all weights are finite.

    Args:
        weights: by name; those that hold no floating-point numbers are passed over.
        source: what the user gave, and `role` (`target`, `drafter`), for messages.

    Raises:
        CaptureError: names the first that is not.
    """
    for name, weight in weights:
        if weight.is_floating_point() and not (finite := torch.isfinite(weight)).all():
            first = (~finite).nonzero()[0].tolist()
            raise CaptureError(
                f"{role}: {name} of {source} holds {int((~finite).sum())} values that are not finite (the first at "
                f"{first}); the file is damaged or its training failed: fetch or export it again"
            )
