"""Answers that the user brings: `.npz` files of ids, `.jsonl` files of chats, and folders of either."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ConfigError
from .answers import Array, Row, read_answers


def answer_files(paths: Iterable[Path]) -> list[Path]:
    """The files among `paths` and those in its folders, sorted within each.

    Raises:
        ConfigError: a path leads nowhere, or to a file of another kind.
    """
    found = []
    for path in paths:
        if path.is_dir():
            found += sorted(file for file in path.iterdir() if file.suffix in (".npz", ".jsonl"))
        elif path.is_file() and path.suffix in (".npz", ".jsonl"):
            found.append(path)
        elif path.is_file():
            raise ConfigError(f"--data {path}: expected a .jsonl of chats or an .npz of ids; rename it if it is one")
        else:
            raise ConfigError(f"--data {path}: there is no such file; give files or folders, separated by commas")
    return found


def read_rows(path: Path, tokenizer: Any) -> list[Row]:
    """The rows of a file of either kind.

    Raises:
        ConfigError: it cannot be read, or holds something else.
    """
    return read_chats(path, tokenizer) if path.suffix == ".jsonl" else read_answers(path, answer_finder(tokenizer))


def chat_ids(tokenizer: Any, messages: list[dict[str, str]], *, opens: bool) -> list[int]:
    """Ids of a chat in the model's template; of the plain texts where it has none.

    Args:
        tokenizer: of transformers.
        messages: turns, `role` and `content` each.
        opens: whether the assistant is to speak next.
    """
    if not tokenizer.chat_template:
        return list(tokenizer("\n".join(turn["content"] for turn in messages))["input_ids"])
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=opens, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def read_chats(path: Path, tokenizer: Any) -> list[Row]:
    """Chats, one a line: `{"prompt": TEXT, "answer": TEXT}` or `{"messages": [{"role": ..., "content": ...}, ...]}`.

    The last turn is what the drafter learns to foretell, all before it is the prompt.

    Raises:
        ConfigError: the file or a line of it is something else.
    """
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON may hold what else ends a line
    except (OSError, UnicodeDecodeError) as e:
        raise ConfigError(f"--data {path} cannot be read ({e})") from e
    rows = [_chat(line, f"{path}:{i + 1}", tokenizer) for i, line in enumerate(lines) if line.strip()]
    if not rows:
        raise ConfigError(f'--data {path} holds no chat; write {{"prompt": "...", "answer": "..."}}, one a line')
    return rows


def _chat(line: str, place: str, tokenizer: Any) -> Row:
    wanted = 'expected {"prompt": TEXT, "answer": TEXT} or {"messages": [{"role": ..., "content": ...}, ...]}'
    try:
        item = json.loads(line)
        turns = item.get("messages") or [
            {"role": "user", "content": item["prompt"]},
            {"role": "assistant", "content": item["answer"]},
        ]
        turns = [{"role": str(turn["role"]), "content": _text(turn["content"])} for turn in turns]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
        raise ConfigError(f"--data {place}: {wanted}, found {line[:60]!r} ({type(e).__name__}: {e})") from e
    if len(turns) < 2 or turns[-1]["role"] != "assistant":
        raise ConfigError(f"--data {place}: the last of the messages must be the assistant's answer; {wanted}")
    asked, whole = chat_ids(tokenizer, turns[:-1], opens=True), chat_ids(tokenizer, turns, opens=False)
    if whole[: len(asked)] != asked:  # a template that writes closed turns otherwise
        answer = tokenizer(turns[-1]["content"], add_special_tokens=False)["input_ids"]
        whole = [*asked, *answer, tokenizer.eos_token_id]
    return Row(np.array(whole, np.int32), max(1, len(asked)), "chat")


def _text(content: Any) -> str:
    """A turn's text; parts of it are joined."""
    if isinstance(content, list):
        if kinds := {part["type"] for part in content} - {"text"}:
            raise TypeError(f"content of type {min(kinds)}")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise TypeError(f"content {content!r} is no text")
    return content


def answer_finder(tokenizer: Any) -> Callable[[Array], int]:
    """Where the answer begins in the ids of a chat: behind the last words that the template puts before an answer."""
    chat = [{"role": "user", "content": "a"}]
    closed = chat_ids(tokenizer, chat, opens=False)
    marker = chat_ids(tokenizer, chat, opens=True)[len(closed) :]

    def find(ids: Array) -> int:
        words = ids.tolist()
        for at in range(len(words) - len(marker) - 1, 0, -1) if marker else ():
            if words[at : at + len(marker)] == marker:
                return at + len(marker)
        return 1

    return find
