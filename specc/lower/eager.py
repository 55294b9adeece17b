"""A bound program to a file that PyTorch runs op by op: the eager back end."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch

from ..errors import BackendError
from ..program import Program
from .exporting import export_lifted


def lower(program: Program, path: Path) -> None:
    """Save a program without its weights; no tensor is in the file.

    `torch.export.load(path).module()` takes the inputs in the order of the program's placeholders, then the weights in
    the order of `program.weight_names()`, returns a tuple in the order of `program.values`, and writes the caches in
    place.

    Args:
        path: the `.pt2` file to write; its folder exists.

    Raises:
        BackendError: the program holds something that `torch.export.save` cannot write.
    """
    exported = export_lifted(program)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.export.save(exported, path)
    except OSError:
        raise
    except Exception as e:
        raise BackendError(
            f"torch.export.save cannot write program {program.name}: {type(e).__name__}: {str(e)[:300]}"
        ) from e
