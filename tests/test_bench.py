"""`specc bench` on a tiny pair: every system runs, the texts are compared, the figures fit together."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

import specc
from specc.bench.bandwidth import memory_bandwidth, plain_bytes
from specc.bench.batch import rotation
from specc.bench.batch import verdict as batch_verdict
from specc.bench.config import BenchConfig
from specc.bench.equality import compare
from specc.bench.processors import GRAMMAR, OFF, ON
from specc.bench.prompts import PROMPTS, read_prompts
from specc.bench.run import bench
from specc.bench.summary import Record, by_kind, figures, speculation, verdict
from specc.bench.systems import ASSISTED, EAGER, PLAIN, SPECULATIVE, Run
from specc.bench.table import show
from specc.errors import BackendError, ConfigError
from specc.manifest import EngineManifest
from specc.runtime import Engine

TOKENS = 12


@pytest.fixture(scope="module")
def loaded(tiny_engine: Path) -> Iterator[Engine]:
    """The engine, loaded once for all runs: graphs of the eager back end take seconds to open."""
    engine = specc.load(tiny_engine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specc.bench.run.load", lambda path: engine)
        yield engine


@pytest.fixture(scope="module")
def measured(
    loaded: Engine, tiny_engine: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, Any], Path]:
    """One run over two short prompts, and the folder of its files."""
    folder = tmp_path_factory.mktemp("bench")
    (folder / "prompts.txt").write_text("the end of the line\n\nin there\n")
    config = BenchConfig(
        prompts=str(folder / "prompts.txt"),
        max_new_tokens=TOKENS,
        repeats=2,
        json=str(folder / "out.json"),
        plot=str(folder / "out.png"),
    )
    return bench(str(tiny_engine), config), folder


def test_every_system_runs_every_prompt_in_turn(measured: tuple[dict[str, Any], Path]) -> None:
    result, _ = measured
    assert list(result["systems"]) == [EAGER, ASSISTED, PLAIN, SPECULATIVE]
    order = [(r["repeat"], r["prompt"], r["system"]) for r in result["raw"]]
    assert order == [(n, p, system) for n in range(2) for p in range(2) for system in result["systems"]]
    assert all(len(r["run"]["tokens"]) == TOKENS for r in result["raw"])
    assert all(0 < r["run"]["decode_s"] <= r["run"]["seconds"] for r in result["raw"])


def test_the_texts_are_the_same(measured: tuple[dict[str, Any], Path]) -> None:
    equality = measured[0]["equality"]
    assert len(equality) == 4
    for found in equality.values():
        assert (found["tokens"], found["differences"]) == (2 * TOKENS, [])


def test_the_figures_fit_together(measured: tuple[dict[str, Any], Path]) -> None:
    result, _ = measured
    found, systems = result["speculation"], result["systems"]
    assert 0 < found["acceptance_rate"] <= 1
    assert found["steps"] + found["plain_steps"] == round(2 * TOKENS / found["block_efficiency"])
    assert found["measured"] == pytest.approx(
        systems[SPECULATIVE]["tokens_per_second"] / systems[PLAIN]["tokens_per_second"]
    )
    assert systems[PLAIN]["tokens_per_step"] == systems[EAGER]["tokens_per_step"] == 1
    assert set(result["sampling"]) == {"greedy", "coupled", "rejection"}
    assert result["sampling"]["greedy"]["share_of_step"] == 0


def test_the_json_holds_it_all(measured: tuple[dict[str, Any], Path]) -> None:
    result, folder = measured
    assert json.loads((folder / "out.json").read_text()) == json.loads(json.dumps(result))
    assert {"machine", "versions", "date", "raw", "verdict", "bandwidth"} <= set(result)


def test_the_picture_is_one(measured: tuple[dict[str, Any], Path]) -> None:
    assert (measured[1] / "out.png").read_bytes().startswith(b"\x89PNG")


def test_the_tables_say_it(measured: tuple[dict[str, Any], Path]) -> None:
    result, out = measured[0], io.StringIO()
    show(result, Console(file=out, width=140))
    text = out.getvalue()
    assert all(name in text for name in result["systems"])
    assert "GB/s" in text and "block efficiency" in text and "coupled" in text
    assert text.rstrip().endswith(result["verdict"])


def test_the_tables_go_on_without_a_reader(
    measured: tuple[dict[str, Any], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was measured for minutes is still written where `| head` has closed the pipe."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w", encoding="utf-8") as gone, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", gone)
        show(measured[0])


def test_without_the_models_the_engine_is_measured_alone(
    loaded: Engine, tiny_engine: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = dataclasses.replace(loaded.manifest.target, source=str(tmp_path / "gone"))
    monkeypatch.setattr(loaded, "manifest", dataclasses.replace(loaded.manifest, target=gone))
    (tmp_path / "prompts.txt").write_text("the end")
    config = BenchConfig(prompts=str(tmp_path / "prompts.txt"), max_new_tokens=4, repeats=1)
    result = bench(str(tiny_engine), config)
    assert list(result["systems"]) == [PLAIN, SPECULATIVE]
    assert list(result["equality"]) == [f"{SPECULATIVE} = {PLAIN}"]
    assert "transformers is not measured" in capsys.readouterr().err


@pytest.fixture(scope="module")
def rows(batch_engine: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    """One run of batch sizes and processors, and the folder of its files."""
    engine, folder = specc.load(batch_engine), tmp_path_factory.mktemp("rows")
    (folder / "prompts.txt").write_text("the end of the line\nin there\nhe\n")
    files = {"json": str(folder / "out.json"), "plot": str(folder / "out.png")}
    config = BenchConfig(
        prompts=str(folder / "prompts.txt"), max_new_tokens=6, repeats=2, batch="4,1,2", processors=True, **files
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("specc.bench.run.load", lambda path: engine)
        patch.setattr("specc.bench.one_engine.load_systems", lambda *_: pytest.fail("not asked for"))
        return bench(str(batch_engine), config), folder


def test_batch_sizes_in_one_interleaved_run(rows: tuple[dict[str, Any], Path]) -> None:
    result, folder = rows
    found, raw = result["batch"], result["batch"]["raw"]
    assert list(found["sizes"]) == ["1", "2", "4"] and "systems" not in result
    assert [(r["repeat"], r["size"], r["system"]) for r in raw[:6]] == [
        (0, size, system) for size in (1, 2, 4) for system in (PLAIN, SPECULATIVE)
    ]
    for size in (1, 2, 4):
        same = [r for r in raw if (r["size"], r["system"], r["repeat"]) == (size, PLAIN, 1)]
        assert [r["prompts"] for r in same] == rotation(3, size)
        assert all(r["tokens"] == 6 * size and r["steps"] == 6 for r in same)
        figures = found["sizes"][str(size)]
        assert figures[PLAIN]["tokens_per_row_and_step"] == 1 < figures[SPECULATIVE]["tokens_per_row_and_step"] <= 4
        speeds = [figures[name]["tokens_per_second"] for name in (SPECULATIVE, PLAIN)]
        assert figures["speculative_over_plain"] == speeds[0] / speeds[1]
    assert json.loads((folder / "out.json").read_text()) == json.loads(json.dumps(result))
    assert (folder / "out.png").read_bytes().startswith(b"\x89PNG")


def test_processors_are_measured_against_the_same_request_without(rows: tuple[dict[str, Any], Path]) -> None:
    found = rows[0]["processors"]
    assert list(found["rules"]) == ["greedy", "coupled"]
    for rule, cases in found["rules"].items():
        assert list(cases) == [OFF, ON, GRAMMAR] == list(found["options"][rule])
        assert cases[OFF]["share_of_step"] == 0
        assert all(len(case["ms_per_step_raw"]) == 6 and case["ms_per_step"] > 0 for case in cases.values())
        share = 1 - cases[OFF]["ms_per_step"] / cases[ON]["ms_per_step"]
        assert cases[ON]["share_of_step"] == pytest.approx(share)
        asked = set(found["options"][rule][ON]) - set(found["options"][rule][OFF])
        assert {"repetition_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "min_new_tokens"} <= asked
        assert ({"top_k", "top_p", "min_p"} <= asked) == (rule != "greedy")
    shares = [f"{found['rules'][rule][ON]['share_of_step']:.1%} of a {rule} step" for rule in found["rules"]]
    assert found["verdict"] == f"all processors cost {', '.join(shares)}"


def test_the_tables_of_rows_and_processors(rows: tuple[dict[str, Any], Path]) -> None:
    result, out = rows[0], io.StringIO()
    show(result, Console(file=out, width=160))
    lines = out.getvalue().splitlines()
    assert lines[-2:] == [result["batch"]["verdict"], result["processors"]["verdict"]]
    assert any("plain against 1" in line for line in lines) and any(GRAMMAR in line for line in lines)


def test_larger_batches_than_the_engine_has_are_refused(loaded: Engine, tiny_engine: Path) -> None:
    with pytest.raises(ConfigError, match="--batch 1,8: this engine has 1 row; .* compile it with --batch 8"):
        bench(str(tiny_engine), BenchConfig(batch="1,8"))
    for sizes, told in (
        ("1,x", "not a list"),
        ("0,1", "0 is outside 1..8"),
        ("9", "9 is outside 1..8"),
        ("", "a list"),
    ):
        with pytest.raises(ConfigError, match=f"--batch .*{told}"):
            BenchConfig(batch=sizes)


def test_rows_rotate_until_every_prompt_came_equally_often() -> None:
    assert rotation(3, 1) == [(0,), (1,), (2,)]
    assert rotation(3, 2) == [(0, 1), (2, 0), (1, 2)]
    assert rotation(2, 4) == [(0, 1, 0, 1)]
    for prompts, size in ((10, 8), (5, 4), (1, 8)):
        counts = Counter(i for group in rotation(prompts, size) for i in group)
        assert len(set(counts.values())) == 1 and set(counts) == set(range(prompts))


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ((1.3, 1.2, 1.1), "speculation pays at every batch size measured (1.30x at 1, 1.20x at 2, 1.10x at 4 rows)"),
        ((1.3, 1.2, 0.9), "speculation stops paying at batch size 4 (1.30x at 1, 1.20x at 2, 0.90x at 4 rows)"),
        ((1.3, 1.0, 0.9), "speculation stops paying at batch size 2 (1.30x at 1, 1.00x at 2, 0.90x at 4 rows)"),
        (
            (0.9, 0.8, 1.0),
            "speculation does not pay at any batch size measured (0.90x at 1, 0.80x at 2, 1.00x at 4 rows)",
        ),
        ((1.3, 0.8, 1.1), "speculation pays at batch size 1 and 4 and at no other size measured (1.30x at 1, "),
        ((0.8, 1.1, 0.7), "speculation pays at batch size 2 and at no other size measured (0.80x at 1, "),
    ],
)
def test_where_speculation_stops_paying(gains: tuple[float, ...], expected: str) -> None:
    assert batch_verdict(dict(zip((1, 2, 4), gains, strict=True))).startswith(expected)


def test_refusals(loaded: Engine, tiny_engine: Path, tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("a b c d " * 100)
    with pytest.raises(ConfigError, match="no prompt .* fit"):
        bench(str(tiny_engine), BenchConfig(prompts=str(long)))
    with pytest.raises(ConfigError, match="--prompts .*cannot be read"):
        read_prompts(str(tmp_path / "no"))
    (tmp_path / "empty").write_text("\n \n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        read_prompts(str(tmp_path / "empty"))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"plot": "x.xyz"}, r"--plot .*x\.xyz: \.xyz is no format of pictures; type --plot .*x\.png .known: .*svg"),
        ({"plot": "picture"}, r"a name without an ending is no format of pictures; type --plot .*picture\.png"),
        ({"json": "no/out.json"}, "--json .*No such file or directory.*mkdir -p .*no$"),
        ({"plot": "no/out.png"}, "--plot .*No such file or directory.*mkdir -p .*no$"),
        ({"json": "."}, "--json .*Is a directory"),
        ({"json": "a\0b"}, "--json .*null byte"),
    ],
    ids=str,
)
def test_places_are_refused_before_anything_is_measured(
    options: dict[str, str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specc.bench.run.load", lambda path: pytest.fail("the engine was loaded"))
    given = {name: str(tmp_path / path) for name, path in options.items()}
    with pytest.raises(ConfigError, match=told):
        bench("engine", BenchConfig(**given))
    assert not list(tmp_path.iterdir())


def test_a_picture_without_matplotlib_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specc.bench.run.load", lambda path: pytest.fail("the engine was loaded"))
    for name in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(BackendError, match=r"pip install 'specc\[bench\]'"):
        bench("engine", BenchConfig(plot=str(tmp_path / "x.png"), json=str(tmp_path / "x.json")))
    assert not list(tmp_path.iterdir())


def test_a_bench_that_dies_leaves_no_empty_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it touch the result of an earlier one."""
    monkeypatch.setattr("specc.bench.run.load", lambda path: 1 / 0)
    (tmp_path / "old.json").write_text("old")
    for name in ("new.json", "old.json"):
        with pytest.raises(ZeroDivisionError):
            bench("engine", BenchConfig(json=str(tmp_path / name), plot=str(tmp_path / "x.png")))
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]
    assert (tmp_path / "old.json").read_text() == "old"


def test_the_built_in_prompts_are_of_several_kinds() -> None:
    kinds = [prompt.kind for prompt in read_prompts(None)]
    assert set(kinds) == {"chat", "code", "summary", "list", "repeat"}
    assert all(kinds.count(kind) >= 2 for kind in kinds)
    assert len({prompt.text for prompt in PROMPTS}) == len(PROMPTS)


def test_medians_over_repeats_and_sums_over_prompts() -> None:
    def record(repeat: int, prompt: int, decode_s: float) -> Record:
        return Record(repeat, prompt, "chat" if prompt else "code", PLAIN, Run([1] * 10, decode_s + 1, decode_s, 10, 5))

    records = [
        record(n, p, s) for p, times in enumerate([(1.0, 9.0, 2.0), (3.0, 3.0, 99.0)]) for n, s in enumerate(times)
    ]
    found = figures(records)
    assert found["tokens_per_second"] == 20 / 5
    assert (found["ms_per_step"], found["tokens_per_step"], found["seconds_per_text"]) == (500, 2, 3.5)
    assert by_kind(records)["chat"][PLAIN]["ms_per_token"] == 300


def _speculation(step_ms: float, accepted: Sequence[int], steps: int = 10) -> dict[str, Any]:
    plain = Run([0] * 20, 2.0, 2.0, 20, 20)
    tokens = steps + sum(accepted)
    fast = Run([0] * tokens, 1.0, step_ms * steps / 1e3, tokens, steps, 0, steps * len(accepted), list(accepted))
    return speculation([Record(0, 0, "chat", PLAIN, plain), Record(0, 0, "chat", SPECULATIVE, fast)])


def test_speculation_from_counts() -> None:
    found = _speculation(150.0, [8, 4])
    assert found["acceptance_per_position"] == [0.8, 0.5]
    assert found["acceptance_rate"] == 12 / 18
    assert found["accepted_share_of_drafted"] == 12 / 20
    assert found["step_over_plain"] == pytest.approx(1.5)
    assert found["cost_per_drafted_token"] == pytest.approx(0.25)
    assert found["predicted_full"] == pytest.approx(2.2 / 1.5)
    assert found["measured"] == pytest.approx(found["predicted_full"])


@pytest.mark.parametrize(
    ("step_ms", "accepted", "expected"),
    [
        (150.0, [8, 4], "speculation pays: 1.47x the plain step"),
        (150.0, [1, 0], r"does not pay: 0.73x .* acceptance 9% is below the 37%"),
        (400.0, [8, 4], r"does not pay: 0.55x .* a step costs 4.00 plain passes and emits at most 3 tokens"),
    ],
)
def test_verdicts(step_ms: float, accepted: list[int], expected: str) -> None:
    assert re.search(expected, verdict(_speculation(step_ms, accepted)))


def _fixed_logits(rows: torch.Tensor, jitter: float = 0.0) -> Callable[[Sequence[int]], torch.Tensor]:
    return lambda ids: rows[: len(ids)] + jitter * len(ids)


def test_differences_carry_the_margin() -> None:
    rows = torch.tensor([[0.0, 5.0, 1.0]] * 6)
    rows[3] = torch.tensor([2.0, 2.001, 0.0])
    exact, noisy = _fixed_logits(rows), _fixed_logits(rows, 0.01)
    (found,) = compare("plain", [[1, 1]], [[1, 1, 1]], [[1, 1, 0]], exact).differences
    assert (found.position, found.near_tie) == (2, False)
    assert found.gap == pytest.approx(0.001, abs=1e-6) and found.noise == 0
    (found,) = compare("plain", [[1, 1]], [[1, 1, 1]], [[1, 1, 0]], noisy).differences
    assert found.near_tie
    blind = compare("plain", [[1, 1]], [[1, 1, 1]], [[1, 0, 1]], None)
    assert blind.tokens == 2 and blind.differences[0].gap is None and not blind.differences[0].near_tie


def test_bandwidth_and_the_bytes_of_a_plain_step(tiny_engine: Path) -> None:
    assert memory_bandwidth(repeats=1, size=4_000_000) > 1e8
    manifest = EngineManifest.read(tiny_engine)
    read = plain_bytes(tiny_engine, manifest)
    table = manifest.padded_vocab_size * 32 * 4
    assert 4 * manifest.target.parameters - table <= read < (tiny_engine / "weights.safetensors").stat().st_size
