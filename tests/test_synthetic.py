"""Synthetic pairs: random weights whose first layers agree with the whole as often as asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from specc.bench.config import BenchConfig
from specc.bench.run import bench
from specc.bench.synthetic import SyntheticConfig
from specc.capture.synthetic import SHAPES, write_synthetic
from specc.errors import ConfigError, SpeccError
from specc.flags import build_config


@pytest.mark.parametrize("accept", [0.5, 0.9])
def test_it_agrees_as_often_as_asked(tmp_path: Path, accept: float) -> None:
    """On other text than it was made with."""
    reached = write_synthetic("llama-tiny", accept, tmp_path, dtype="float32")
    assert reached == pytest.approx(accept, abs=0.04)
    model, shape = AutoModelForCausalLM.from_pretrained(tmp_path), SHAPES["llama-tiny"]
    texts = torch.randint(shape.vocab, (4, 200), generator=torch.Generator().manual_seed(9))
    with torch.no_grad():
        out = model(texts, output_hidden_states=True)
        early = model.lm_head(model.model.norm(out.hidden_states[shape.kept])).argmax(-1)
    assert (early == out.logits.argmax(-1)).float().mean().item() == pytest.approx(accept, abs=0.08)
    assert model.dtype == torch.float32 and len(model.model.layers) == shape.layers


def test_the_same_again(tmp_path: Path) -> None:
    for place in ("a", "b"):
        write_synthetic("llama-tiny", 0.7, tmp_path / place, dtype="bfloat16")
    first, second = ((tmp_path / place / "model.safetensors").read_bytes() for place in ("a", "b"))
    assert first == second


def test_every_id_can_be_said(tmp_path: Path) -> None:
    write_synthetic("llama-tiny", 0.7, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == SHAPES["llama-tiny"].vocab
    assert tokenizer.decode(tokenizer("Say é!").input_ids) == "Say é!"


@pytest.mark.parametrize(
    ("shape", "accept", "message"),
    [("llama-2b", 0.8, "'llama-2b' is not one of llama-tiny"), ("llama-tiny", 1.0, "must be above 0 and below 1")],
)
def test_what_cannot_be(tmp_path: Path, shape: str, accept: float, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        write_synthetic(shape, accept, tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"backend": "foo"}, "--backend 'foo' is not one of"),
        ({"draft_length": 0}, "--draft-length 0"),
        ({"draft_length": 99}, "--draft-length 99"),
        ({"device": "foo"}, "--device 'foo' is no device of torch"),
        ({"device": "mps"}, "--device mps: engines are made for cpu or cuda"),
        ({"accept": 2.0}, "--accept 2.0 must be"),
    ],
)
def test_what_is_refused_before_minutes_go_by(
    given: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specc.capture.synthetic.write_synthetic", lambda *a, **k: pytest.fail("it was made"))
    with pytest.raises(SpeccError, match=message):
        bench([], BenchConfig(pair=SyntheticConfig(synthetic="llama-1b", **given)))


def test_the_bench_makes_one_and_removes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pair = SyntheticConfig(synthetic="llama-tiny", accept=0.7, backend="eager", draft_length=2)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the end\nin there\n")
    result: dict[str, Any] = bench([], BenchConfig(pair=pair, repeats=1, max_new_tokens=24, prompts=str(prompts)))
    assert 0.3 < result["speculation"]["acceptance_rate"] < 1.0
    assert not list(tmp_path.glob("specc-*"))


@pytest.mark.parametrize(
    ("engines", "pair", "message"),
    [
        ([], {}, "give the folder of an engine, or --synthetic SHAPE"),
        (["engine"], {"synthetic": "llama-tiny"}, "one of the two"),
    ],
)
def test_an_engine_or_a_shape(engines: list[str], pair: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        bench(engines, BenchConfig(pair=SyntheticConfig(**pair)))


@pytest.mark.parametrize("option", [{"accept": 0.5}, {"device": "cuda"}, {"draft_length": 2}, {"backend": "eager"}])
def test_what_is_of_a_synthetic_pair_alone(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="is of a pair that --synthetic makes"):
        SyntheticConfig(**option)


def test_flags() -> None:
    import argparse

    from specc.flags import add_config

    parser = argparse.ArgumentParser()
    add_config(parser, BenchConfig)
    given = parser.parse_args(["--synthetic", "llama-1b", "--accept", "0.6", "--dtype", "bfloat16"])
    pair = build_config(BenchConfig, given).pair
    assert (pair.synthetic, pair.accept, pair.dtype, pair.device) == ("llama-1b", 0.6, "bfloat16", None)
