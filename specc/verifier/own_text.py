"""The target's own text: what transformers writes with the model that went into the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError, SpeccError
from ..manifest import EngineManifest
from .lab import Lab
from .modes import GREEDY
from .report import Check
from .same_texts import conclude
from .texts import Comparison, spread

NAME = "transformers"
# Of the largest logit: eager kernels round otherwise than ours.
TOLERANCE = {"float32": 2e-3, "float16": 3e-2, "bfloat16": 8e-2}


def check_target(manifest: EngineManifest, target: str) -> None:
    """Check, before anything is compared, that a model is the one that went into the engine.

    Raises:
        ConfigError: it is another, or transformers is not installed.
        CaptureError: there is none.
    """
    try:
        from ..capture import digest_source
    except ImportError as e:
        raise ConfigError(f"--target {target} needs transformers ({e}); pip install 'specc[compile]'") from e
    if digest_source(target, role="target") != manifest.target.digest:
        raise ConfigError(
            f"--target {target}: is not the model that this engine was compiled from (digest "
            f"{manifest.target.digest[:12]}, {manifest.target.source}); give that one, or leave --target out"
        )


def transformers_text(lab: Lab, target: str | None) -> Check:
    """Greedy text of the plain step against the model's own `generate`.

    Args:
        target: where the model is now, as `check_target` found it; None looks where it was at compile time.
    """
    spec = lab.engine.manifest.target
    source = target or spec.source
    if quant := lab.engine.manifest.config.get("quant"):
        return Check.skipped(NAME, f"the engine's weights are {quant}, so its text is not that of the model as it is")
    if target is None and not Path(source).exists():
        return Check.skipped(NAME, f"the model is not at {source}; give --target PATH")
    try:
        from ..capture import digest_source, load_model
        from ..capture.proof import own_text
    except ImportError as e:
        return Check.skipped(NAME, f"transformers is not installed ({e}); pip install 'specc[compile]'")
    try:
        if digest_source(source, role="target") != spec.digest:
            return Check.skipped(NAME, f"the model at {source} was changed since the engine was compiled")
        model = load_model(source, role="target", dtype=lab.engine.manifest.dtype).model
    except SpeccError as e:
        if target is not None:
            raise
        return Check.skipped(NAME, f"the model cannot be loaded: {e}")
    found = Comparison()
    for number, prompt in enumerate(lab.prompts):
        text = own_text(model, torch.tensor([prompt]), lab.tokens)[0]
        _compare(lab, found, model, prompt, text, f"prompt {number + 1}")
    return conclude(NAME, found, f"{found.tokens} greedy tokens with generate of the model at {source}", lab.dtype)


def _compare(lab: Lab, found: Comparison, model: Any, prompt: list[int], text: torch.Tensor, where: str) -> None:
    """Hold the plain text against the model's, up to the first difference: a float tie, or a fault."""
    with torch.no_grad():
        logits = model(input_ids=text[None, :-1], use_cache=False).logits[0, len(prompt) - 1 :].float()
    allowed = TOLERANCE[lab.engine.manifest.dtype] * logits.abs().max().item()
    plain = lab.plain(prompt, GREEDY, lab.tokens)
    for place, (token, row, own) in enumerate(zip(plain.tokens, logits, text[len(prompt) :].tolist(), strict=True)):
        found.tokens += 1
        scores = {i: row[i].item() for i in token.top}
        noise = spread(token.top, scores)
        found.noise = max(found.noise, noise)
        here = f"{where}: new token {place + 1}"
        if noise > allowed:
            found.faults.append(f"{here}: logits differ from the model's by {noise:.3g}, allowed {allowed:.3g}")
            return
        if token.token != own:
            gap = (row[own] - row[token.token]).item()
            told = f"{here}: {token.token} instead of the model's {own}; gap {gap:.3g}, logits differ by {noise:.3g}"
            (found.ties if gap <= 2 * noise else found.faults).append(told)
            return
