"""Models whose files are damaged, truncated or not whole: one line that says which file, and exit code 2."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch
from helpers.gguf_file import write_gguf
from helpers.models import save_tiny, tiny_model
from safetensors.torch import load_file, save_file

from specc.cli import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "model")


@pytest.fixture(scope="module")
def gguf_bytes(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    pytest.importorskip("gguf")
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, tiny_model(tie_word_embeddings=True))
    return path.read_bytes()


def refusal(place: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What a compile of the model says; it must say it in one line, with exit code 2."""
    capsys.readouterr()
    assert main(["compile", str(place), "ngram", "-o", str(place.parent / "engine"), "--backend", "eager"]) == 2
    told = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert not any("Traceback" in line for line in told)
    assert told[-1].startswith("specc: target: ") and str(place) in told[-1]
    assert not (place.parent / "engine").exists()
    return told[-1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[1]", "config.json holds a list where a model has named settings"),
        ('"llama"', "config.json holds a str"),
        ("", "config.json is not JSON"),
        ('{"model_type": "lla', "config.json is not JSON"),
        ("[" * 100_000, "config.json is not JSON"),
        ("{}", "model_type"),
    ],
    ids=["list", "text", "empty", "truncated", "deep", "no settings"],
)
def test_config(folder: Path, text: str, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "config.json").write_text(text)
    line = refusal(folder, capsys)
    assert told in line and "fetch the model again" in line


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999])
def test_truncated_safetensors(folder: Path, share: float, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    line = refusal(folder, capsys)
    assert "deserializing header" in line and "fetch the model again" in line


def test_weights_that_are_not_there_are_not_made_up(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers fills them with random numbers, and an engine of those would be proved right."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    save_file({}, path)
    assert f"lacks {len(weights)} weights of its model" in refusal(folder, capsys)
    lost = weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, path, {"format": "pt"})
    assert "lacks 1 weights of its model (model.layers.1.mlp.up_proj.weight)" in refusal(folder, capsys)
    save_file({**weights, "model.layers.1.mlp.up_proj.weight": lost, "model.norm.weight": torch.ones(5)}, path)
    assert "holds model.norm.weight as (5,), and its config.json asks for (32,)" in refusal(folder, capsys)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_no_numbers(folder: Path, capsys: pytest.CaptureFixture[str], value: float) -> None:
    """One makes every logit NaN, and a text of NaN is the same in the engine and in the model."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    weights["model.layers.1.mlp.down_proj.weight"][3, 5] = value
    save_file(weights, path, {"format": "pt"})
    line = refusal(folder, capsys)
    assert (
        "model.layers.1.mlp.down_proj.weight" in line and "1 values that are not finite (the first at [3, 5])" in line
    )


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.02, 0.5, 0.9999])
def test_truncated_gguf(gguf_bytes: bytes, share: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    size = max(4, int(share * len(gguf_bytes)))
    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes[:size])
    line = refusal(path, capsys)
    assert f"tiny.gguf ({size} bytes) is truncated or damaged" in line and "fetch the file again" in line


def test_the_whole_files_load(gguf_bytes: bytes, folder: Path, tmp_path: Path) -> None:
    from specc.capture import load_model

    path = tmp_path / "tiny.gguf"
    path.write_bytes(gguf_bytes)
    for place in (path, folder, shutil.copytree(folder, tmp_path / "copy")):
        assert load_model(str(place), role="target", dtype="float32").vocab_size == 128
