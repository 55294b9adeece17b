"""Host: the machine and the versions that a run was made with."""

from __future__ import annotations

from typing import Any

import torch

from .. import __version__, environment


def machine() -> dict[str, Any]:
    """Processor and threads."""
    processor = environment.processor()
    return {"processor": processor["name"], "isa": processor["isa"], "threads": torch.get_num_threads()}


def versions() -> dict[str, str]:
    """By name; transformers only where it is installed."""
    found = {"specc": __version__, "torch": torch.__version__}
    try:
        from importlib.metadata import version

        found["transformers"] = version("transformers")
    except ImportError:  # PackageNotFoundError is one
        pass
    return found
