"""On a GPU: compiled for CUDA, replayed as CUDA graphs, the same text. Skipped where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import specc
from specc.environment import check_back_end
from specc.errors import SpeccError
from specc.runtime import Engine, load
from specc.runtime.placed import Placed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")
PROMPTS = ([1, 2, 3], [9, 4] * 120, list(range(5, 60)))
REQUESTS: list[dict[str, Any]] = [
    {},
    {"draft_length": 0},
    {"temperature": 0.9, "seed": 5},
    {"temperature": 0.9, "seed": 5, "acceptance": "rejection"},
    {"logprobs": 2, "repetition_penalty": 1.2},
]


@pytest.fixture(scope="module")
def folder(tiny_folders: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    options: dict[str, Any] = {
        "context": 700,
        "chunk": 32,
        "batch": 2,
        "acceptance": "coupled,rejection",
        "fixed": True,
    }
    return specc.compile(*tiny_folders, tmp_path_factory.mktemp("gpu") / "engine", device="cuda", **options)


@pytest.fixture(scope="module")
def engine(folder: Path) -> Engine:
    return load(folder)


def test_steps_are_graphs(engine: Engine) -> None:
    assert engine.machine.state.recorder is not None
    recorded = engine.machine.state._recorded  # type: ignore[union-attr]
    assert all(one.holds(256) and one.holds(512) for (_, row), one in recorded.items() if not row)


@pytest.mark.parametrize("options", REQUESTS, ids=lambda options: next(iter(options), "greedy"))
def test_replayed_is_called(engine: Engine, folder: Path, options: dict[str, Any]) -> None:
    called = load(folder, graphs=False)
    asked = {"max_new_tokens": 60, "eos_token_id": (), **options}
    for prompt in (*PROMPTS, list(PROMPTS)):
        one, other = engine.generate(prompt, **asked), called.generate(prompt, **asked)
        for a, b in zip(*(found if isinstance(found, list) else [found] for found in (one, other)), strict=True):
            assert (a.token_ids, a.logprobs) == (b.token_ids, b.logprobs)


def test_greedy_text_is_that_of_the_cpu(engine: Engine, tiny_engine: Path) -> None:
    cpu = load(tiny_engine)
    for prompt in ([1, 2, 3], list(range(5, 60))):
        asked: dict[str, Any] = {"max_new_tokens": 60, "eos_token_id": ()}
        assert engine.generate(prompt, **asked).token_ids == cpu.generate(prompt, **asked).token_ids


@pytest.mark.parametrize("backend", ["onnx", "tensorrt"])
def test_other_back_ends(backend: str, tiny_folders: tuple[Path, Path], tiny_engine: Path, tmp_path: Path) -> None:
    """Greedy and sampled texts are those of the CPU; where a back end's packages are not here, doctor says so too."""
    try:
        check_back_end(backend, ("cuda",))
    except SpeccError as e:
        pytest.skip(str(e))
    options: dict[str, Any] = {"context": 200, "chunk": 16, "fixed": True}
    made = load(specc.compile(*tiny_folders, tmp_path / "e", device="cuda", backend=backend, **options))
    cpu, asked = load(tiny_engine), {"max_new_tokens": 60, "eos_token_id": ()}
    for how in REQUESTS[:3]:
        found, wanted = (engine.generate([1, 2, 3], **asked, **how) for engine in (made, cpu))
        assert found.token_ids == wanted.token_ids


def test_memory_does_not_grow(engine: Engine) -> None:
    held = []
    for _ in range(3):
        engine.generate([1, 2, 3], max_new_tokens=400, eos_token_id=())
        held.append(torch.cuda.memory_allocated())
    assert held[1] == held[2]


def test_a_drafter_on_the_cpu(tiny_folders: tuple[Path, Path], engine: Engine, tmp_path: Path) -> None:
    made = specc.compile(
        *tiny_folders, tmp_path / "e", device="cuda", draft_device="cpu", context=200, chunk=16, fixed=True
    )
    placed = load(made)
    state = placed.machine.state
    assert isinstance(state, Placed)
    assert (state.target.device.type, state.drafter.device.type) == ("cuda", "cpu")
    asked: dict[str, Any] = {"max_new_tokens": 60, "eos_token_id": ()}
    found = placed.generate([1, 2, 3], **asked)
    assert found.token_ids == engine.generate([1, 2, 3], **asked).token_ids and found.stats.accepted > 0


def test_synthetic(capsys: pytest.CaptureFixture[str]) -> None:
    from specc.bench.config import BenchConfig
    from specc.bench.run import bench
    from specc.bench.synthetic import SyntheticConfig

    pair = SyntheticConfig(synthetic="llama-tiny", accept=0.7, device="cuda", dtype="float32")
    result = bench([], BenchConfig(pair=pair, repeats=1, max_new_tokens=24))
    assert 0.4 < result["speculation"]["acceptance_rate"] < 0.95
    assert all(pair["first_differences"] == 0 for pair in result["equality"].values())
