"""`specc train --init`: a drafter that was trained before is trained on, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from helpers.models import save_tiny
from helpers.training import run, save_target, write_some_answers
from safetensors.torch import load_file

from specc.errors import CaptureError, ConfigError

KEPT = 48


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def data(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_some_answers(target, tmp_path_factory.mktemp("answers"))


def test_a_drafter_is_trained_on(target: Path, data: Path, tmp_path: Path) -> None:
    """It begins as it was, vocabulary and all; a rate of nearly nothing leaves it there, another does not."""
    before = run("eagle3", target, data, tmp_path / "before", draft_vocab=KEPT)
    weights = load_file(before / "model.safetensors")
    still = run("eagle3", target, data, tmp_path / "still", init=str(before), learning_rate=1e-12)
    assert all(torch.equal(w, weights[name]) for name, w in load_file(still / "model.safetensors").items())
    on = load_file(run("eagle3", target, data, tmp_path / "on", init=str(before)) / "model.safetensors")
    assert torch.equal(on["d2t"], weights["d2t"]) and not torch.equal(on["fc.weight"], weights["fc.weight"])
    with pytest.raises(ConfigError, match="belongs to a run with init"):
        run("eagle3", target, data, tmp_path / "more", init=str(tmp_path / "on"), work=str(tmp_path / "on.work"))


def test_a_run_from_a_drafter_is_not_gone_on_with_as_another(target: Path, data: Path, tmp_path: Path) -> None:
    """Its checkpoints are of that drafter's vocabulary; and the folder of the drafter is not written over."""
    before = run("eagle3", target, data, tmp_path / "before", draft_vocab=KEPT)
    run("eagle3", target, data, tmp_path / "on", init=str(before))
    with pytest.raises(ConfigError, match="belongs to a run with init"):
        run("eagle3", target, data, tmp_path / "on")
    run("eagle3", target, data, tmp_path / "new")
    with pytest.raises(ConfigError, match="belongs to a run with init"):
        run("eagle3", target, data, tmp_path / "new", init=str(before))
    with pytest.raises(ConfigError, match="is the drafter of --init, which would be lost"):
        run("eagle3", target, data, before, init=str(before))
    with pytest.raises((CaptureError, ConfigError), match="nowhere"):
        run("eagle3", target, data, before, init=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("name", "value"), [("rope_theta", 5.0), ("rms_norm_eps", 0.1), ("eagle_aux_hidden_state_layer_ids", [1, 2, 4])]
)
def test_settings_of_a_drafter_that_is_trained_on(
    target: Path, data: Path, tmp_path: Path, name: str, value: object
) -> None:
    before = run("eagle3", target, data, tmp_path / "before", draft_vocab=KEPT)
    config = json.loads((before / "config.json").read_text())
    config[name] = value
    config.get("eagle_config", {}).pop(name, None)
    (before / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=f"has {name} "):
        run("eagle3", target, data, tmp_path / "new", init=str(before))


def test_what_cannot_be_trained_on(target: Path, data: Path, tmp_path: Path) -> None:
    before = run("eagle3", target, data, tmp_path / "before", draft_vocab=KEPT)
    other = save_tiny(tmp_path / "wide", num_hidden_layers=7, hidden_size=64)
    speculators = run("eagle3", target, data, tmp_path / "other", draft_vocab=KEPT, layout="speculators")
    for model, changes, said in (
        (target, {"init": str(target)}, "is a whole model and not an EAGLE-3 drafter"),
        (target, {"init": str(tmp_path)}, "holds no weights"),
        (target, {"init": str(tmp_path / "nowhere")}, "nowhere"),
        (target, {"init": str(speculators)}, "midlayer.* is missing.*published layout"),
        (other, {"init": str(before)}, "hidden"),
        (target, {"init": str(before), "draft_vocab": 9}, "has its own"),
    ):
        with pytest.raises((CaptureError, ConfigError), match=said):
            run("eagle3", model, data, tmp_path / "new", **changes)
        assert not (tmp_path / "new").exists()
    with pytest.raises(ConfigError, match="--init .* is for eagle3"):
        run("medusa", target, data, tmp_path / "new", init=str(before))
