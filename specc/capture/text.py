"""The text side of a model: vocabulary, end of text, chat template, and the files an engine keeps of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import TokenizerError

PROBES = ("Hello, world!", " two  spaces\n\n", "naïve café 你好 😀", "x = [1, 23, 456]\n\tif x: pass", "")


def vocabulary(tokenizer: Any) -> list[str | None]:
    """Token strings by id, added tokens included; None where an id is not used."""
    table = tokenizer.get_vocab()
    tokens: list[str | None] = [None] * (max(table.values()) + 1)
    for token, index in table.items():
        tokens[index] = token
    return tokens


def chat_template(tokenizer: Any) -> str | None:
    """The default chat template, or None."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    return template or None


def end_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Ids that end a text: of generation_config (else config), the tokenizer's, and the one that ends a chat turn."""
    ids: list[int] = []
    for given in (model.generation_config.eos_token_id, model.config.get_text_config().eos_token_id):
        ids += [] if ids or given is None else [given] if isinstance(given, int) else list(given)
    ids += [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    ids += _turn_end(tokenizer)
    return tuple(dict.fromkeys(ids))


def _turn_end(tokenizer: Any) -> list[int]:
    """The special token that the chat template writes right after an answer, if it writes one."""
    if chat_template(tokenizer) is None:
        return []
    chat = [{"role": "user", "content": "question"}, {"role": "assistant", "content": "answer"}]
    try:
        text = tokenizer.apply_chat_template(chat, tokenize=False)
    except Exception:  # a template may refuse this chat; then it tells us nothing
        return []
    after = tokenizer(text.rpartition("answer")[2].lstrip(), add_special_tokens=False).input_ids
    return after[:1] if after and after[0] in tokenizer.all_special_ids else []


def save_text_files(loaded: Any, folder: Path | str) -> None:
    """Write `tokenizer.json` and `text.json` so that the runtime needs `tokenizers` alone.

    `text.json` holds `chat_template`, `special_tokens` (name -> text, as the template reads them), `eos_token_ids`
    and `vocab_size`. Tokens that the tokenizer adds by itself (a first bos) are part of `tokenizer.json`.

    Args:
        loaded: a `LoadedModel`.
        folder: an existing folder.

    Raises:
        TokenizerError: `tokenizers` alone would encode a text otherwise than transformers does.
    """
    from tokenizers import Tokenizer

    core = Tokenizer.from_str(loaded.tokenizer.backend_tokenizer.to_str())
    core.no_truncation()
    core.no_padding()
    for probe in PROBES:
        theirs, ours = loaded.tokenizer(probe).input_ids, core.encode(probe).ids
        if theirs != ours:
            raise TokenizerError(
                f"target: tokenizer.json of {loaded.source} encodes {probe!r} as {ours}, transformers as {theirs}; "
                "update tokenizers and transformers"
            )
    core.save(str(Path(folder) / "tokenizer.json"))
    text = {
        "chat_template": loaded.chat_template,
        "special_tokens": {name: str(token) for name, token in loaded.tokenizer.special_tokens_map.items()},
        "eos_token_ids": list(loaded.eos_token_ids),
        "vocab_size": loaded.vocab_size,
    }
    (Path(folder) / "text.json").write_text(json.dumps(text, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
