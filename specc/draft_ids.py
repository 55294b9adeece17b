"""`--draft-vocab`: which of the target's ids a drafter's head keeps, by frequency in texts or from a file."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .bench.prompts import PROMPTS
from .errors import ConfigError


def draft_ids(
    wanted: str, tokenizer: Any, texts: Sequence[str], ends: Sequence[int], vocab_size: int
) -> tuple[list[int], str]:
    """The ids that `--draft-vocab` asks for, and a line that says where they come from.

    Args:
        wanted: a number of ids, or a file of them (JSON list, or one a line).
        tokenizer: the target's, of transformers.
        texts: in which the ids are counted, beside the built-in prompts.
        ends: ids that end a text, kept first: without them no draft reaches the end of one.
        vocab_size: V, ids of the target.

    Raises:
        ConfigError: the number is above V; the file cannot be read, or lists an id twice or outside the vocabulary.
    """
    if not wanted.isdecimal():
        return read_ids(wanted, vocab_size), f"ids of {wanted}"
    if int(wanted) > vocab_size:
        raise ConfigError(f"--draft-vocab {wanted}: the target has {vocab_size} ids; give a smaller number")
    whole = [*texts, *(prompt.text for prompt in PROMPTS)]
    texts_ids = (tokenizer(text).input_ids for text in dict.fromkeys(whole))
    ids, known = frequent_ids(int(wanted), texts_ids, ends, vocab_size)
    told = f"the {wanted} most frequent ids"
    if known < int(wanted):
        told += (
            f" ({known} stood in the texts, the others are the lowest, which tokenizers learn first: give --prompts)"
        )
    return ids, told


def frequent_ids(
    count: int, texts: Iterable[Sequence[int]], ends: Sequence[int], vocab_size: int
) -> tuple[list[int], int]:
    """`count` ids: `ends`, then the most frequent of `texts` (of equals the lowest), then the lowest others; and how
    many are not such others."""
    counts = Counter(token for text in texts for token in text if token < vocab_size)
    by_count = sorted(counts, key=lambda token: (-counts[token], token))
    ids = list(dict.fromkeys([*ends, *by_count, *range(vocab_size)]))[:count]
    return ids, sum(token in counts or token in ends for token in ids)


def read_ids(path: str, vocab_size: int) -> list[int]:
    """The ids that a file lists, as a JSON list or one a line.

    Raises:
        ConfigError: it cannot be read, is no list of ids, or lists one twice or outside `0..vocab_size - 1`.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
        ids = json.loads(text) if text.lstrip().startswith("[") else [int(word) for word in text.split()]
    except (OSError, ValueError) as e:
        raise _no_ids(path, e) from e
    if not ids or not all(type(token) is int for token in ids):
        raise ConfigError(f"--draft-vocab {path}: expected a list of token ids, found {str(ids)[:60]}")
    for token, times in Counter(ids).items():
        if not 0 <= token < vocab_size:
            raise ConfigError(f"--draft-vocab {path}: id {token} is outside the target's 0..{vocab_size - 1}")
        if times > 1:
            raise ConfigError(f"--draft-vocab {path}: id {token} stands there {times} times; list every id once")
    return ids


def ids_digest(wanted: str) -> str:
    """SHA-256 of the file that `--draft-vocab` names, or of the number and the built-in prompts, for an engine's key.

    Raises:
        ConfigError: it is neither a number nor a file that can be read.
    """
    try:
        content = repr((wanted, PROMPTS)).encode() if wanted.isdecimal() else Path(wanted).read_bytes()
    except OSError as e:
        raise _no_ids(wanted, e) from e
    return hashlib.sha256(content).hexdigest()


def _no_ids(path: str, reason: Exception) -> ConfigError:
    return ConfigError(
        f"--draft-vocab {path}: neither a number nor a file of ids ({reason}); give 8000, say, or a file with a JSON "
        "list of ids, or one a line"
    )
