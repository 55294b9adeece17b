"""What is wrong with a drafter's files is named, with what to do."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import checkpoints
from helpers.imported import LAYERS, Config, Tensors, made, read, target
from torch import Tensor

from specc.errors import CaptureError


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Callable[[Config, Tensors], None]:
    return lambda config, tensors: tensors.update({name: change(tensors[name]).contiguous()})


def without(*names: str) -> Callable[[Config, Tensors], None]:
    return lambda config, tensors: [tensors.pop(name) for name in names] and None


def setting(**values: Any) -> Callable[[Config, Tensors], None]:
    return lambda config, tensors: config.update(values)


def absolute(config: Config, tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(80)


def doubled(config: Config, tensors: Tensors) -> None:
    """Two rows of the head mean one id."""
    tensors["d2t"][5] = tensors["d2t"][4] - 1
    del tensors["t2d"]


def all_of(*steps: Callable[[Config, Tensors], None]) -> Callable[[Config, Tensors], None]:
    return lambda config, tensors: [step(config, tensors) for step in steps] and None


FAULTS = {
    "eagle: vocabulary": ("eagle", setting(vocab_size=100), ["vocabulary of 100", "tiny has 128"]),
    "eagle: hidden size": ("eagle", setting(hidden_size=64), ["hidden size 64", "tiny has 32"]),
    "eagle: other head": (
        "eagle",
        all_of(lambda c, t: t.update({"lm_head.weight": torch.randn(128, 32)})),
        ["lm_head.weight", "not the target's", "delete lm_head.weight"],
    ),
    "eagle: head of another size": (
        "eagle",
        lambda c, t: t.update({"lm_head.weight": torch.zeros(99, 32)}),
        ["lm_head.weight", "[99, 32]", "expected [128, 32]"],
    ),
    "eagle: no bias": ("eagle", without("fc.bias"), ["bias: true", "no fc.bias", "correct config.json"]),
    "eagle: bias": ("eagle", setting(bias=False), ["bias: false", "an fc.bias", "correct config.json"]),
    "eagle: embedding": (
        "eagle",
        lambda c, t: t.update({"embed_tokens.weight": torch.zeros(100, 32)}),
        ["embed_tokens.weight", "[100, 32]", "expected [128, 32]", "another target"],
    ),
    "eagle: fewer layers": ("eagle", setting(num_hidden_layers=2), ["no tensor layers.1.", "fetch"]),
    "eagle: more layers": (
        "eagle",
        lambda c, t: t.update({"layers.1.mlp.up_proj.weight": torch.zeros(2)}),
        ["layers.1.mlp.up_proj.weight", "does not have"],
    ),
    "eagle: lacks a size": (
        "eagle",
        lambda c, t: c.pop("intermediate_size"),
        ["config.json", "lacks intermediate_size"],
    ),
    "eagle: dynamic rotary": (
        "eagle",
        setting(rope_scaling={"rope_type": "dynamic", "factor": 2.0}),
        ["rotary positions", "longest text seen"],
    ),
    "eagle: window": ("eagle", setting(use_sliding_window=True, sliding_window=64), ["window of 64", "not built"]),
    "eagle3: no head": ("eagle3", without("lm_head.weight"), ["no tensor lm_head.weight", "head of its own"]),
    "eagle3: head of another size": (
        "eagle3",
        changed("lm_head.weight", lambda w: w[:, :16]),
        ["lm_head.weight", "[80, 16]", "[80, 32]"],
    ),
    "eagle3: draft_vocab_size": ("eagle3", setting(draft_vocab_size=70), ["[80, 32]", "[70, 32]", "draft_vocab_size"]),
    "eagle3: two heads": (
        "eagle3",
        lambda c, t: t.update({"model.lm_head.weight": torch.zeros(2)}),
        ["model.lm_head.weight", "does not have"],
    ),
    "eagle3: hidden size": ("eagle3", setting(target_hidden_size=48), ["hidden size 48", "tiny has 32"]),
    "eagle3: narrow, no embedding": (
        "eagle3",
        all_of(
            setting(hidden_size=16, target_hidden_size=32, num_attention_heads=4),
            changed("fc.weight", lambda w: w[:16]),
            changed("lm_head.weight", lambda w: w[:, :16]),
        ),
        ["hidden size 16", "no embed_tokens.weight"],
    ),
    "eagle3: absolute ids": ("eagle3", absolute, ["target ids where offsets", "subtract arange(len(d2t))"]),
    "eagle3: absolute ids alone": ("eagle3", all_of(absolute, without("t2d")), ["d2t", "offsets", "subtract arange"]),
    "eagle3: a flag that is a word": (
        "eagle3",
        setting(norm_before_residual="true"),
        ["norm_before_residual", "'true'"],
    ),
    "eagle3: a flag that is a number": ("eagle3", setting(norm_before_residual=1), ["make it true or false"]),
    "eagle3: zeros": ("eagle3", changed("d2t", torch.zeros_like), ["all zeros", "80 ids", "export it again"]),
    "eagle3: doubled": ("eagle3", doubled, ["80 ids to 79 different", "offsets"]),
    "eagle3: no map": ("eagle3", without("d2t", "t2d"), ["80 ids of the target's 128", "no d2t"]),
    "eagle3: map past the end": ("eagle3", all_of(changed("d2t", lambda d: d + 100), without("t2d")), ["below 128"]),
    "eagle3: maps disagree": ("eagle3", changed("t2d", lambda t: t.roll(1)), ["d2t and t2d", "disagree"]),
    "eagle3: map of another size": ("eagle3", changed("t2d", lambda t: t[:99]), ["t2d", "[99]", "expected [128]"]),
    "eagle3: layers past the end": (
        "eagle3",
        setting(**{LAYERS: [0, 1, 7]}),
        ["[0, 1, 7]", "0..2", f"correct {LAYERS}"],
    ),
    "eagle3: layers counted from 1": (
        "eagle3",
        setting(**{LAYERS: [1, 2, 3]}),
        ["0..2", f"subtract 1 from each {LAYERS}"],
    ),
    "eagle3: layers doubled": ("eagle3", setting(**{LAYERS: [1, 1, 2]}), ["[1, 1, 2]", "ascending"]),
    "eagle3: layers are words": ("eagle3", setting(**{LAYERS: ["low"]}), ['["low"]', "ascending"]),
    "eagle3: two layers": (
        "eagle3",
        setting(**{LAYERS: [0, 2]}),
        ["fc.weight", "[32, 96]", "[32, 64]", "2 hidden states"],
    ),
    "eagle3: the usual layers": ("eagle3", lambda c, t: c.pop(LAYERS), ["[2, 1, 0]", f"correct {LAYERS}"]),
    "eagle3: no three layers": (
        "eagle3",
        setting(eagle_config={"use_aux_hidden_state": False}),
        ["use_aux_hidden_state", "not built"],
    ),
    "eagle3: norm that is missing": ("eagle3", setting(norm_before_fc=True), ["norm_before_fc: true", "no input_norm"]),
    "eagle3: norms that are missing": ("eagle3", setting(fc_norm=True), ["fc_norm: true", "no fc_norm.0.weight"]),
    "eagle3: norm that is not named": (
        "eagle3",
        all_of(setting(norm_before_fc=False), lambda c, t: t.update({"input_norm.weight": torch.ones(96)})),
        ["norm_before_fc: false", "a input_norm"],
    ),
    "eagle3: unused": (
        "eagle3",
        lambda c, t: t.update({"mask_hidden": torch.zeros(2)}),
        ["mask_hidden", "does not have"],
    ),
    "medusa: not finite": ("medusa", changed("1.0.linear.bias", lambda b: b / 0), ["1.0.linear.bias", "not finite"]),
    "eagle3: not finite": ("eagle3", changed("fc.weight", lambda w: w * math.nan), ["fc.weight", "not finite"]),
    "medusa: a head is missing": ("medusa", without("1.0.linear.weight", "1.0.linear.bias", "1.1.weight"), ["[0, 2]"]),
    "medusa: other names": (
        "medusa",
        lambda c, t: t.update({"head.weight": torch.zeros(2)}),
        ["head.weight", "0.0.linear"],
    ),
    "medusa: hidden size": (
        "medusa",
        changed("0.0.linear.weight", lambda w: w[:16, :16]),
        ["0.0.linear.weight", "[16, 16]", "[32, 32]", "hidden size 32"],
    ),
    "medusa: vocabulary": ("medusa", changed("2.1.weight", lambda w: w[:99]), ["2.1.weight", "[99, 32]", "[128, 32]"]),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(tmp_path: Path, name: str) -> None:
    kind, spoil, told = FAULTS[name]
    config, tensors = made(kind, **({"draft_vocab": 80} if kind == "eagle3" else {}))
    spoil(config, tensors)
    with pytest.raises(CaptureError) as caught:
        read(tmp_path, kind, config, tensors)
    message = str(caught.value)
    assert message.startswith("drafter: ") and all(part in message for part in told), message
    assert str(tmp_path) in message or name == "eagle: dynamic rotary"


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa"])
@pytest.mark.parametrize("given", ["eagle", "eagle3", "speculators", "medusa", "model"])
def test_another_kind_is_recognised(tmp_path: Path, kind: str, given: str) -> None:
    if given == "model":
        made_as: tuple[Config, Tensors] = {}, {n: p.detach().clone() for n, p in target().named_parameters()}
    else:
        made_as = made("eagle3" if given == "speculators" else given)
    if given == "speculators":
        made_as = checkpoints.speculators(*made_as)
        given = "eagle3"
    if given == kind:
        return
    with pytest.raises(CaptureError) as caught:
        read(tmp_path, kind, *made_as)
    called = {"eagle": "an EAGLE drafter", "eagle3": "an EAGLE-3 drafter", "medusa": "Medusa heads"}
    assert f"so it is {called.get(given, 'a whole model')}" in str(caught.value)
    typed = str(tmp_path) if given == "model" else f"{given}:{tmp_path}"
    assert f"type {typed} for {kind}:{tmp_path}" in str(caught.value)
