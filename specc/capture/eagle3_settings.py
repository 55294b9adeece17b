"""What an EAGLE-3 configuration says of the layers that are read and of the norms in front of `fc`."""

from __future__ import annotations

import json
from typing import Any

from ..errors import CaptureError
from .checkpoint import Checkpoint

LAYERS = "eagle_aux_hidden_state_layer_ids"


def setting(checkpoint: Checkpoint, name: str) -> Any:
    """A setting of `config.json`, which some checkpoints have in a part of its own; None where it is not set."""
    value = checkpoint.config.get(name)
    return value if value is not None else (checkpoint.config.get("eagle_config") or {}).get(name)


def flag(checkpoint: Checkpoint, name: str) -> bool:
    """A setting that is true or false; false where it is not set.

    Raises:
        CaptureError: it is neither.
    """
    value = setting(checkpoint, name)
    if value not in (None, True, False) or isinstance(value, int) and not isinstance(value, bool):
        raise CaptureError(f"drafter: {checkpoint.source}: {name} is {value!r} in config.json; make it true or false")
    return bool(value)


def tapped(checkpoint: Checkpoint, layers: int) -> tuple[tuple[int, ...], list[str]]:
    """Layers of the target whose input is read: those that are named, else 2, the middle, the third from the end.

    Args:
        layers: that the target has.

    Returns:
        They, and a note where all of them are one beside the usual ones: some programs count outputs, not inputs.

    Raises:
        CaptureError: the target has no such layers, or none are to be read.
    """
    if setting(checkpoint, "use_aux_hidden_state") is False:
        raise CaptureError(
            f"drafter: {checkpoint.source} sets use_aux_hidden_state: false, a variant that reads the last hidden "
            "state alone, which is not built; give a checkpoint that reads three layers"
        )
    named, usual = setting(checkpoint, LAYERS), (2, layers // 2, layers - 3)
    taps = usual if named is None else tuple(named) if isinstance(named, list) else (named,)
    whole = all(isinstance(i, int) and not isinstance(i, bool) for i in taps)
    if not whole or list(taps) != sorted(set(taps)) or not taps or not 0 <= taps[0] <= taps[-1] < layers:
        past = whole and taps and taps[-1] == layers  # the output of the last layer, counted as an input
        hint = f"subtract 1 from each {LAYERS}" if past else f"correct {LAYERS}"
        raise CaptureError(
            f"drafter: {checkpoint.source} reads what enters the layers {json.dumps(list(taps))} of the target, and "
            f"expected are ascending numbers in 0..{layers - 1}; {hint} in its config.json, or give the drafter of "
            "this target"
        )
    for step in (-1, 1):
        if taps == tuple(i + step for i in usual):
            return taps, [
                f"it reads what enters the layers {list(taps)}, each one {'before' if step < 0 else 'behind'} the "
                f"usual {list(usual)}; if few drafts are accepted, set {LAYERS} to {list(usual)} in its config.json"
            ]
    return taps, []


def norm_before(checkpoint: Checkpoint) -> str:
    """The norm in front of `fc`: `each` (one a hidden state), `all` (one over all) or none.

    Raises:
        CaptureError: the configuration and the file disagree.
    """
    found = {
        "fc_norm": any(name.startswith("fc_norm.") for name in checkpoint.tensors),
        "norm_before_fc": "input_norm.weight" in checkpoint.tensors,
    }
    for name, tensors in {"fc_norm": "fc_norm.0.weight", "norm_before_fc": "input_norm.weight"}.items():
        said = setting(checkpoint, name)
        if said is not None and bool(said) != found[name]:
            raise CaptureError(
                f"drafter: config.json of {checkpoint.source} says {name}: {json.dumps(said)}, and its file holds "
                f"{'a' if found[name] else 'no'} {tensors}; correct config.json, or fetch the drafter again"
            )
    if all(found.values()):
        raise CaptureError(
            f"drafter: {checkpoint.source} has both norm_before_fc and fc_norm; no such variant is known"
        )
    return "each" if found["fc_norm"] else "all" if found["norm_before_fc"] else ""
