"""The inductor back end: packages of native code made by AOTInductor, with the engine's weights lent to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ...errors import EngineFormatError
from ...manifest import ProgramSpec
from ..call import Runner


def open_inductor(path: Path, spec: ProgramSpec, weights: Mapping[str, Tensor], device: torch.device) -> Runner:
    """Open a package without weights and lend it those it reads (no copy).

    Raises:
        EngineFormatError: torch cannot open the package, or it reads a weight that the manifest does not name.
    """
    index = -1 if device.index is None else device.index
    try:
        # What `torch._inductor.aoti_load_package` returns wraps this loader. The wrapper imports the compiler (3 s) and
        # parses its call specification at every call; the loader takes and gives flat lists.
        # Its pool of threads leaves an event behind each call, which may not be asked for while a graph is captured.
        alone = device.type == "cuda"
        loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", alone, 1, index)
        unknown = set(loader.get_constant_fqns()) - set(spec.weights)
        if unknown:
            raise EngineFormatError(f"{path}: reads {min(unknown)}, which the manifest does not name; compile again")
        # A weight that went into the code as a constant is in the manifest, but no longer asked for.
        lent = {name: weights[name] for name in loader.get_constant_fqns()}
        if lent:
            loader.load_constants(lent, False, True, True)  # active ones, check that all are given, keep ours
    except RuntimeError as e:
        message = f"{path}: torch {torch.__version__} cannot open this program ({e}); compile again"
        raise EngineFormatError(message) from e

    def run(arguments: list[Tensor], lent: Mapping[str, Tensor] = lent) -> Sequence[Tensor]:
        # `lent` is bound so that the weights live as long as the package that points at them.
        with torch.no_grad():
            results: Sequence[Tensor] = loader.boxed_run(arguments)
        return results

    return run
