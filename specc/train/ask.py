"""Let the target answer prompts, into files of some dozens of answers; a killed run goes on with the next file."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..progress import Report
from .answers import KEEP, read_answers, write_answers
from .config import NEW_TOKENS, ROWS, AnswerConfig
from .generate import continuations
from .progress import training_bar
from .prompts import Prompts
from .read_data import chat_ids

PromptMaker = Callable[[int, int], list[tuple[str, str]]]  # number of the first, count -> kind and text of each


def ask(loaded: Any, folder: Path, count: int, prompts: PromptMaker, config: AnswerConfig, report: Report) -> None:
    """Answers to prompts `0..count-1`; files that are there are kept and skipped.

    Args:
        loaded: the target, as `load_model` gives it.
        folder: where the files go.
        count: prompts.
        prompts: called for each file; those that it leaves out are not answered.
        config: how many rows at once, how long.
        report: where the progress is shown.
    """
    rows = config.rows or ROWS
    with training_bar(report) as bar:
        task = bar.add_task(f"answers, {folder.name}", total=count, note="")
        for first in range(0, count, rows):
            path = folder / f"answers-{first:06d}.npz"
            if not path.exists():
                asked = prompts(first, min(count, first + rows) - first)
                ids = [chat_ids(loaded.tokenizer, [{"role": "user", "content": text}], opens=True) for _, text in asked]
                begun, said = time.monotonic(), [0]

                def tick(n: int, begun: float = begun, said: list[int] = said) -> None:
                    said[0] += n
                    bar.update(task, note=f"{said[0] / (time.monotonic() - begun):.0f} tokens/s")

                kinds = [kind for kind, _ in asked]
                more = {"longest": (config.new_tokens or NEW_TOKENS), "ends": loaded.eos_token_ids, "keep": KEEP}
                write_answers(path, continuations(loaded.model, ids, kinds, tick=tick, **more))
            bar.update(task, completed=min(count, first + rows))


def given(texts: list[tuple[str, str]]) -> PromptMaker:
    """Prompts that there are."""
    return lambda first, count: texts[first : first + count]


def built_in(folder: Path, tokenizer: Any, held: bool) -> PromptMaker:
    """The prompts that are put together from lists; summaries are of the target's own earlier answers in `folder`."""

    def prompts(first: int, count: int) -> list[tuple[str, str]]:
        prompt = Prompts(passages(folder, tokenizer), held)
        return [prompt(i) for i in range(first, first + count)]

    return prompts


def passages(folder: Path, tokenizer: Any, count: int = 400) -> list[str]:
    """Whole sentences from answers to chat prompts in finished files."""
    texts: list[str] = []
    for path in sorted(folder.glob("*.npz")):
        for row in read_answers(path, lambda ids: 1):
            if row.kind == "chat":
                text = tokenizer.decode(row.ids[row.skip :][:150], skip_special_tokens=True)
                text = text[: text.rfind(".") + 1].strip()
                if 200 < len(text) < 900:
                    texts.append(text)
        if len(texts) >= count:
            break
    return texts[:count]
