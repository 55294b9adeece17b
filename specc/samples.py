"""Sample prompts of a compile: texts on which drafts are tried, and their ids as the model is prompted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .bench.prompts import read_prompts

# Of the kinds of the bench prompts, and none of them: what an engine has learnt of its drafts must not be of the texts
# that it is measured on.
SAMPLES = (
    "How do I keep a sourdough starter alive when I travel for two weeks?",
    "Write a Python function that counts how often each word occurs in a text.",
    "Summarize this text in two sentences.\n\n"
    "The lighthouse at Orra burned oil for ninety years before it was wired. Its keepers wrote down every ship that "
    "passed, the height of the waves and the colour of the sky at dawn. When the lamp became electric, the last keeper "
    "stayed on to wind the clock and to feed the goats. His books lay in a cellar until a student of weather found "
    "them. They are now the longest record of storms on that coast.",
    "List eight things to check before a long drive in winter.",
    "Copy this recipe word for word.\n\n"
    "Plum jam: stone two kilos of plums and cut them in half. Cook them with one kilo of sugar and the juice of a "
    "lemon for forty minutes. Stir often. Fill the hot jam into clean jars, close them and turn them over for five "
    "minutes.",
)


def sample_texts(path: str | None) -> list[str]:
    """The prompts of a file, one a line; without one, `SAMPLES`.

    Raises:
        ConfigError: the file cannot be read or holds no prompt.
    """
    if path is not None:
        return [prompt.text for prompt in read_prompts(path)]
    return list(SAMPLES)


def sample_ids(tokenizer: Any, texts: Sequence[str], room: int) -> list[list[int]]:
    """Ids of texts as the user's turn in the tokenizer's chat template, if it has one; at most `room` of each.

    Args:
        tokenizer: of transformers.
    """
    found = []
    for text in texts:
        ids: list[int] = tokenizer(text).input_ids
        if tokenizer.chat_template:
            try:
                turn = [{"role": "user", "content": text}]
                chat = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
                ids = tokenizer(chat, add_special_tokens=False).input_ids
            except Exception:  # noqa: BLE001  # a template may refuse a turn, in its own way: then it is a text
                pass
        found.append(ids[: max(1, room)])
    return [ids for ids in found if ids]
