"""A drafter that was trained before, to be trained on: more answers teach it more."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from ..capture.feature_drafter import load_feature_drafter
from ..capture.load import LoadedModel
from ..drafter import EAGLE3, DrafterSpec
from ..errors import ConfigError
from .eagle3 import Eagle3
from .shape import DrafterShape

CONFIG, WEIGHTS = "config.json", "model.safetensors"
COMPUTES = (
    *("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act", "rms_norm_eps", "rope_theta"),
    *("eagle_aux_hidden_state_layer_ids", "norm_before_residual"),
)


@torch.no_grad()
def trained_before(folder: Path, target: LoadedModel) -> Eagle3:
    """The EAGLE-3 drafter in a folder of the published layout.

    Raises:
        CaptureError: there is none, or it is not this target's; says how that shows.
        ConfigError: it is of another layout.
    """
    load_feature_drafter(DrafterSpec(EAGLE3, (str(folder),)), target, dtype="float32")  # which looks for every fault
    found = load_file(folder / WEIGHTS) if (folder / WEIGHTS).exists() else {}
    if "d2t" not in found:
        raise ConfigError(f"--init {folder}: {WEIGHTS} with d2t is missing; give a drafter that specc train wrote")
    kept = found["d2t"] + torch.arange(len(found["d2t"]))
    embedding = target.model.get_input_embeddings().weight.detach().float()
    model = Eagle3(DrafterShape.of(target.config), embedding, kept)
    for name, own in model.named_parameters():
        if name not in found or found[name].shape != own.shape:
            there = tuple(found[name].shape) if name in found else "missing"
            raise ConfigError(
                f"--init {folder}: {name} is {there}, and one that is trained here has {tuple(own.shape)}; give a "
                "drafter that specc train wrote, in the published layout"
            )
        own.copy_(found[name])
    _check_settings(folder, model, target)
    return model


def _check_settings(folder: Path, model: Eagle3, target: LoadedModel) -> None:
    """The same weights compute something else under other settings.

    Raises:
        ConfigError: a setting is not the one that is trained with here.
    """
    before = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    for name, own in model.files(target.config, model.taps(target.config.num_hidden_layers))[CONFIG].items():
        if name in COMPUTES and before.get(name) != own:
            raise ConfigError(
                f"--init {folder}: {CONFIG} has {name} {before.get(name)}, and a drafter that is trained here has "
                f"{own}; give a drafter that specc train wrote for this target"
            )
