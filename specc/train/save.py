"""The drafter's folder: written aside, and put in place file by file."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from ..errors import ConfigError

LOG = "training.json"  # in every folder that was written here


def speculators_layout(files: dict[str, Any], name: str, architecture: str) -> dict[str, Any]:
    """An EAGLE-3 folder as the speculators library reads it: other names, Llama's settings one level down.

    Args:
        files: the published layout, of `Drafter.files`.
        name: what the target is called.
        architecture: class name of the target.
    """
    settings = dict(files["config.json"])
    own = {name: settings.pop(name) for name in ("draft_vocab_size", "norm_before_residual")}
    taps = settings.pop("eagle_aux_hidden_state_layer_ids")
    for more in ("eagle_config", "target_hidden_size", "architectures"):
        settings.pop(more)
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.1.0",
        **own,
        "eagle_aux_hidden_state_layer_ids": taps,
        "transformer_layer_config": settings,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": name, "architectures": [architecture]},
        },
        "torch_dtype": "bfloat16",
    }
    weights = {key.replace("midlayer.", "layers.0."): w for key, w in files["model.safetensors"].items()}
    return {"config.json": config, "model.safetensors": weights}


def check_folder(out: Path, target: str) -> None:
    """Check, before any work, that a drafter can be written.

    Args:
        target: what the user gave as target.

    Raises:
        ConfigError: the place is no folder, or holds a model that this command did not train.
    """
    if out.exists() and not out.is_dir():
        raise ConfigError(f"-o {out}: is a file; give the name of a folder")
    if Path(target).exists() and out.exists() and out.samefile(target):
        raise ConfigError(f"-o {out}: is the target itself, which would be lost; give another folder")
    if (out / "config.json").exists() and not (out / LOG).exists():
        raise ConfigError(f"-o {out}: holds a model that was not trained by this command; give another folder")
    parent = next(place for place in out.resolve().parents if place.exists())
    if not os.access(parent, os.W_OK) or not parent.is_dir():
        raise ConfigError(f"-o {out}: {parent} is not a folder that can be written; give another")


def write_folder(out: Path, files: dict[str, Any], tokenizer: Any = None) -> None:
    """Write a folder; other files that are in it stay.

    Args:
        out: the folder.
        files: a name to tensors (`*.safetensors`) or to settings.
        tokenizer: saved along, where the drafter is a model of its own.
    """
    aside = out.with_name(out.name + ".part")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for name, content in files.items():
        if name.endswith(".safetensors"):
            save_file(content, aside / name, {"format": "pt"})
        else:
            (aside / name).write_text(json.dumps(content, indent=2) + "\n")
    if tokenizer is not None:
        tokenizer.save_pretrained(aside)
    out.mkdir(parents=True, exist_ok=True)
    for path in aside.iterdir():
        os.replace(path, out / path.name)
    aside.rmdir()
