"""Sample prompts of a compile: texts on which drafts are tried, and their ids as the model is prompted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .bench.prompts import PROMPTS, read_prompts


def sample_texts(path: str | None) -> list[str]:
    """The prompts of a file, one a line; without one, the first of each kind of the built-in ones.

    Raises:
        ConfigError: the file cannot be read or holds no prompt.
    """
    if path is not None:
        return [prompt.text for prompt in read_prompts(path)]
    return list({prompt.kind: prompt.text for prompt in reversed(PROMPTS)}.values())[::-1]


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
