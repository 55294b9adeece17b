"""The inductor back end: packages of native code made by AOTInductor, with the engine's weights lent to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
import torch._inductor
from torch import Tensor

from ...errors import EngineFormatError
from ...manifest import ProgramSpec
from ..state import Runner


def open_inductor(path: Path, spec: ProgramSpec, weights: Mapping[str, Tensor]) -> Runner:
    """Open a package without weights and lend it those it reads (no copy).

    Raises:
        EngineFormatError: torch cannot open the package, or it reads a weight that the manifest does not name.
    """
    lent = {name: weights[name] for name in spec.weights}
    try:
        package = torch._inductor.aoti_load_package(str(path))
        wanted = set(package.get_constant_fqns())
        if not wanted <= set(lent):
            raise EngineFormatError(f"{path}: reads {sorted(wanted - set(lent))[0]}, which is not stored; compile again")
        if wanted:
            given = {name: lent[name] for name in wanted}
            package.load_constants(given, check_full_update=True, user_managed=True)
    except RuntimeError as e:
        raise EngineFormatError(f"{path}: torch {torch.__version__} cannot open this program ({e}); compile again") from e
    # `package(...)` parses its call specification as JSON at every call; the loader under it takes a flat list.
    loader = package.loader

    def run(arguments: list[Tensor], lent: Mapping[str, Tensor] = lent) -> Sequence[Tensor]:
        # `lent` is bound so that the weights live as long as the package that points at them.
        with torch.no_grad():
            results: Sequence[Tensor] = loader.boxed_run(arguments)
        return results

    return run
