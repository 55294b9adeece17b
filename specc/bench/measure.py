"""Measure: every system on every prompt in turn, several times over, so that other work on the machine hits all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from .config import BenchConfig
from .prompts import Prompt
from .summary import Record
from .systems import System

WARM_UP_TOKENS = 4


def measure(
    systems: Mapping[str, System],
    prompts: Sequence[Prompt],
    ids: Sequence[Sequence[int]],
    config: BenchConfig,
    progress: Console,
) -> list[Record]:
    """Repeat by repeat, prompt by prompt, system by system; `ids` are the prompts'."""
    records = []
    with progress_bar(progress, config.repeats * len(prompts) * len(systems) + len(systems)) as bar:
        task = bar.task_ids[0]
        for name, system in systems.items():
            bar.update(task, advance=1, description=f"warm up {name}")
            system(ids[0], min(WARM_UP_TOKENS, config.max_new_tokens))
        for repeat in range(config.repeats):
            for index, prompt in enumerate(prompts):
                if not progress.is_terminal:  # a bar is drawn on terminals only
                    progress.print(f"repeat {repeat + 1}, prompt {index + 1} of {len(prompts)} ({prompt.kind})")
                for name, system in systems.items():
                    bar.update(task, description=f"{name}, {prompt.kind}")
                    run = system(ids[index], config.max_new_tokens)
                    records.append(Record(repeat, index, prompt.kind, name, run))
                    bar.update(task, advance=1)
    return records


def advance(bar: Progress) -> Callable[[str], None]:
    """A function that moves the bar on by one, and says what runs."""
    return lambda name: bar.update(bar.task_ids[0], advance=1, description=name)


@contextmanager
def progress_bar(console: Console, total: int) -> Iterator[Progress]:
    """A bar of `total` runs."""
    columns = (TextColumn("{task.description:<36}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
        bar.add_task("", total=total)
        yield bar
