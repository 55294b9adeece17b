"""The kinds of drafter that can be trained, and what each asks of a target."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from ..capture.load import LoadedModel
from ..errors import CaptureError
from .config import DRAFT, EAGLE, EAGLE3, MEDUSA
from .draft import Draft
from .drafter import Drafter
from .eagle import Eagle
from .eagle3 import Eagle3
from .medusa import Medusa

KINDS: dict[str, type[Drafter]] = {EAGLE3: Eagle3, EAGLE: Eagle, MEDUSA: Medusa, DRAFT: Draft}
INSTEAD = "train an independent model: specc train draft"


def check_target(family: str, loaded: LoadedModel) -> tuple[int, ...]:
    """Layers of the target whose input a drafter of this kind reads.

    Raises:
        CaptureError: the target is built otherwise than the drafter, or its training, can read.
    """
    inside, whose = loaded.model.base_model, f"target: {loaded.source} ({loaded.architecture})"
    if not _head_alone(loaded.model):
        raise CaptureError(
            f"{whose} scales or caps what its LM head gives, and training reads the head alone; "
            "specc compile takes drafters that were trained elsewhere"
        )
    if family == DRAFT:
        return Draft.taps(loaded.config.num_hidden_layers)
    if not (hasattr(inside, "layers") and hasattr(inside, "norm")):
        raise CaptureError(f"{whose} has no layers and norm where a {family} drafter reads it; {INSTEAD}")
    if family in (EAGLE, EAGLE3) and not _plain_norm(inside.norm, loaded.config):
        raise CaptureError(
            f"{whose} ends in a norm that is not x / rms(x) * weight, as that of an {family} drafter is; {INSTEAD}"
        )
    layers = KINDS[family].taps(loaded.config.num_hidden_layers)
    if layers and (list(layers) != sorted(set(layers)) or min(layers) < 1):
        raise CaptureError(
            f"target: {loaded.source} has {loaded.config.num_hidden_layers} layers and a {family} drafter reads what "
            f"enters layers {', '.join(map(str, layers))}; train an eagle drafter instead"
        )
    return layers


@torch.inference_mode()
def _head_alone(model: Any) -> bool:
    """Whether the logits are what the LM head makes of the last state, nothing behind it."""
    ids = torch.arange(4)[None]
    state = model.base_model(input_ids=ids, use_cache=False)[0]
    found = model(input_ids=ids, use_cache=False).logits
    return torch.allclose(model.get_output_embeddings()(state), found, rtol=1e-3, atol=1e-3)


@torch.inference_mode()
def _plain_norm(norm: Any, config: Any) -> bool:
    size, eps, weight = config.hidden_size, getattr(config, "rms_norm_eps", None), getattr(norm, "weight", None)
    if eps is None or weight is None:
        return False
    x = torch.linspace(-2, 3, size, dtype=weight.dtype)
    return torch.allclose(norm(x), F.rms_norm(x, (size,), weight, eps), rtol=1e-3, atol=1e-4)
