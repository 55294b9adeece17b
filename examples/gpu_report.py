"""One GPU, in minutes and without a network: are replayed graphs exact, and how fast is it at size?

    python examples/gpu_report.py                       # 1B and 8B in bfloat16, 1 to 8 rows
    python examples/gpu_report.py --shapes llama-1b --rows 1

First a tiny model: every bucket, draft length and rule, replayed against the same programs called one by one; a
thousand steps, after which no memory may have been added; what the host waits for. Then models with random weights at
size, whose drafter agrees as often as asked. Ends with a table. `--device cpu` runs the same on the CPU, where there
are no graphs.
"""

from __future__ import annotations

import argparse
import gc
import resource
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import specc
from specc.bench.bandwidth import memory_bandwidth, plain_bytes
from specc.capture.synthetic import SHAPES, write_synthetic
from specc.runtime import Engine

say = Console(stderr=True, highlight=False).print
System = Callable[[Sequence[Sequence[int]]], list[list[int]]]


def exactness(given: argparse.Namespace, folder: Path) -> list[tuple[str, str]]:
    """The tiny model: what the first part of the table says."""
    write_synthetic("llama-tiny", 0.7, folder / "model")
    options = {"context": 1100, "ladder": "1", "batch": 2, "fixed": True, "acceptance": "coupled,rejection"}
    made = specc.compile(
        folder / "model", "self:1", folder / "e", device=given.device, backend=given.backend, draft_length=3, **options
    )
    begun = perf_counter()
    engine, called = specc.load(made), specc.load(made, graphs=False)
    loaded, checked = perf_counter() - begun, 0
    for length in (5, 250, 500, 1000):  # in every bucket, and across the border of two
        for draft, rule in ((0, {}), (1, {}), (3, {}), (0, SAMPLED), (3, SAMPLED), (3, REJECTION)):
            asked: dict[str, Any] = {"max_new_tokens": 40, "draft_length": draft, "eos_token_id": (), **rule}
            prompts = [prompt(length, seed) for seed in range(2)]
            for what in (prompts[0], prompts):
                if texts(engine, what, asked) != texts(called, what, asked):
                    raise SystemExit(f"replayed and called programs write other texts: {asked} behind {length} tokens")
                checked += 1
    del called
    grown, host = thousand_steps(engine)
    rows = [
        ("texts replayed and called, all equal", str(checked)),
        ("two engines loaded, graphs captured", f"{loaded:.1f} s"),
    ]
    rows.append(("memory added by 1,000 steps", f"{grown / 2**20:+.1f} MiB"))
    rows.append(("a step of a model that takes no time", f"{1e6 * host:.0f} us"))
    return rows + waits(engine)


SAMPLED = {"temperature": 0.9, "seed": 3}
REJECTION = {**SAMPLED, "acceptance": "rejection"}


def texts(engine: Engine, prompts: Any, asked: dict[str, Any]) -> list[list[int]]:
    """Ids of one text or several."""
    found = engine.generate(prompts, **asked)
    return [one.token_ids for one in (found if isinstance(found, list) else [found])]


def prompt(length: int, seed: int) -> list[int]:
    """Ids that every shape has."""
    return torch.randint(256, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def thousand_steps(engine: Engine) -> tuple[float, float]:
    """Bytes that the second half of them added, and seconds a step."""
    asked: dict[str, Any] = {"max_new_tokens": 500, "draft_length": 0, "eos_token_id": ()}
    engine.generate(prompt(20, 0), **asked)
    gc.collect()
    before, begun = memory(engine), perf_counter()
    engine.generate(prompt(20, 1), **asked)
    return memory(engine) - before, (perf_counter() - begun) / asked["max_new_tokens"]


def memory(engine: Engine) -> float:
    """Bytes held: of the GPU, or the most that this process ever had."""
    if engine.device.type == "cuda":
        return torch.cuda.memory_allocated(engine.device)
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def waits(engine: Engine) -> list[tuple[str, str]]:
    """How often the host waits for the device, and launches anything, in a step of the steady state."""
    if engine.device.type != "cuda":
        return []
    asked: dict[str, Any] = {"max_new_tokens": 101, "draft_length": 0, "eos_token_id": ()}
    counts = []
    for tokens in (1, 101):  # the difference is a hundred steps
        with torch.profiler.profile(activities=list(torch.profiler.supported_activities())) as profile:
            engine.generate(prompt(20, 0), **{**asked, "max_new_tokens": tokens})
        names = [event.key for event in profile.key_averages() for _ in range(event.count)]
        counts.append(
            [sum(word in name for name in names) for word in ("Synchronize", "cudaGraphLaunch", "cudaMemcpy")]
        )
    per = [(b - a) / 100 for a, b in zip(*counts, strict=True)]
    return [("waits, graph launches, copies a step", ", ".join(f"{number:.2f}" for number in per))]


def at_size(given: argparse.Namespace, shape: str, folder: Path) -> list[tuple[str, ...]]:
    """The lines of one model."""
    device, dtype = given.device, given.dtype
    reached = write_synthetic(shape, given.accept, folder / "model", dtype=dtype, device=device)
    sizes = [int(size) for size in given.rows.split(",")]
    kept = SHAPES[shape].kept
    common: dict[str, Any] = {
        "device": device,
        "dtype": dtype,
        "backend": given.backend,
        "draft_length": given.draft_length,
    }
    made = specc.compile(
        folder / "model", f"self:{kept}", folder / "e", quiet=False, batch=max(sizes), fixed=True, **common
    )
    engine, lines = specc.load(made), []
    floor = plain_bytes(made, engine.manifest) / memory_bandwidth(device=device)
    for rows in sizes:
        systems = {
            f"compiled plain, {rows} row{'s' * (rows > 1)}": own(engine, 0, given),
            "compiled speculative": own(engine, None, given),
        }
        if rows == 1 and not given.without_transformers:
            systems = {**transformers_systems(folder / "model", kept, given), **systems}
        speeds = measured(systems, [prompt(64, seed) for seed in range(rows)], given)
        plain = next(speed for name, speed in speeds.items() if name.startswith("compiled plain"))
        for name, speed in speeds.items():
            share = f"{floor * plain:.0%}" if rows == 1 and name.startswith("compiled plain") else ""
            lines.append((f"{shape} ({reached:.2f})", name, f"{speed:.1f}", f"{speed / plain:.2f}x", share))
    return lines


def own(engine: Engine, length: int | None, given: argparse.Namespace) -> System:
    """An engine, always with the same draft."""
    asked: dict[str, Any] = {"max_new_tokens": given.tokens, "eos_token_id": (), "draft_length": length}
    return lambda prompts: texts(engine, list(prompts), asked)


def transformers_systems(model: Path, kept: int, given: argparse.Namespace) -> dict[str, System]:
    """transformers' own ways to run the same weights, one row."""
    from transformers import AutoModelForCausalLM

    target = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, given.dtype)).to(given.device).eval()

    def system(**more: Any) -> System:
        def run(prompts: Sequence[Sequence[int]]) -> list[list[int]]:
            ids = torch.tensor(list(prompts), device=given.device)
            size = {"max_new_tokens": given.tokens, "min_new_tokens": given.tokens, "do_sample": False}
            with torch.no_grad():
                out = target.generate(ids, attention_mask=torch.ones_like(ids), pad_token_id=0, **size, **more)
            return out[:, ids.shape[1] :].tolist()  # type: ignore[no-any-return]

        return run

    return {
        "transformers eager": system(),
        "transformers, static cache and compile": system(cache_implementation="static"),
        "transformers, early exit assisted": system(assistant_early_exit=kept),
    }


def measured(systems: dict[str, System], prompts: list[list[int]], given: argparse.Namespace) -> dict[str, float]:
    """Tokens per second of each, prefill included, medians of interleaved repeats; a system that fails is left out."""
    times: dict[str, list[float]] = {}
    for name, run in systems.items():
        try:
            run(prompts)  # compiles, and warms up
            times[name] = []
        except Exception as e:  # another library's way may not work for this model or version
            say(f"{name}: {type(e).__name__}: {str(e)[:200]}")
    for _ in range(given.repeats):
        for name in times:
            begun = perf_counter()
            systems[name](prompts)
            times[name].append(perf_counter() - begun)
    return {name: len(prompts) * given.tokens / statistics.median(found) for name, found in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--shapes", default="llama-1b,llama-8b")
    parser.add_argument("--accept", type=float, default=0.8)
    parser.add_argument("--draft-length", type=int, default=3)
    parser.add_argument("--rows", default="1,2,4,8")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--without-transformers", action="store_true")
    given = parser.parse_args()
    checks, sizes = Table(title="a tiny model"), Table(title=f"{given.dtype}, greedy, {given.tokens} tokens")
    for column in ("", "found"):
        checks.add_column(column)
    for column in ("model (agreement)", "system", "tokens/s", "against plain", "of the memory's speed"):
        sizes.add_column(column)
    with tempfile.TemporaryDirectory(prefix="specc-") as made:
        for line in exactness(given, Path(made)):
            checks.add_row(*line)
    for shape in filter(None, given.shapes.split(",")):
        with tempfile.TemporaryDirectory(prefix="specc-") as made:
            for wide in at_size(given, shape, Path(made)):
                sizes.add_row(*wide)
    gpu = torch.cuda.get_device_name() if given.device.startswith("cuda") else "the CPU"
    shown = Console(width=120)
    shown.print(f"{gpu}, torch {torch.__version__}, specc {specc.__version__}")
    shown.print(checks)
    shown.print(sizes)


if __name__ == "__main__":
    main()
