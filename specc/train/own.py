"""Prompts that the target writes itself: what it expects to read where the user's turn begins.

A model tuned on chats writes the users' turns as well, when its template is opened there; drawn at temperature 1 they
are as various as what it was tuned on (Magpie, Xu et al., 2024, arXiv 2406.08464).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..errors import ConfigError
from .ask import PromptMaker, passages
from .generate import continuations
from .prompts import CODE, LANGUAGES, Prompts, templates

LONGEST = 96  # tokens of a prompt; longer ones are left out: all rows of a file are as wide as the longest
TRIES = 4  # at a file of which no prompt found its end
LIKELIEST = 32  # tokens among which each is drawn
TEXTS = 10000  # that summaries are asked of
MARK = "\ue000"  # stands for what the user says
CYCLE = ("chat", "summary", "chat", "code")  # kinds of prompts, a file each: like lengths are written faster


def own_prompts(loaded: Any, folder: Path) -> PromptMaker:
    """Prompts by the target, answers to which go to `folder`: the same ones for the same numbers.

    Every other file of them is what the target begins by itself. It seldom asks for a program or a summary then, so a
    fourth begins with the first words of a built-in form for code, and a fourth asks in a built-in form for summaries
    of the target's own earlier answers.

    Raises:
        ConfigError: the target's template does not show where the user's turn begins; from the maker: the target
            writes prompts without an end.
    """
    begin, end = _turn(loaded.tokenizer)
    ends = (end, *loaded.eos_token_ids)

    def prompts(first: int, count: int) -> list[tuple[str, str]]:
        kind = CYCLE[first // count % len(CYCLE)]
        if kind == "summary":
            if texts := passages(folder, loaded.tokenizer, TEXTS):
                return [(kind, Prompts(texts).text(kind, i)) for i in range(first, first + count)]
            kind = "chat"  # nothing was answered yet
        opened = [opening(kind, i) for i in range(first, first + count)]
        ids = [[*begin, *loaded.tokenizer(text, add_special_tokens=False)["input_ids"]] for text in opened]
        how: dict[str, Any] = {"longest": LONGEST, "ends": ends, "keep": LIKELIEST}
        written: list[tuple[str, str]] = []
        for again in range(TRIES):
            draws = torch.Generator().manual_seed(first * TRIES + again)
            for row, text in zip(continuations(loaded.model, ids, opened, draws=draws, **how), opened, strict=True):
                said = loaded.tokenizer.decode(row.ids[row.skip : -1], skip_special_tokens=True)
                written += [(kind, text + said)] if row.ids[-1] in ends and said.strip() else []
            if written:
                break
        else:
            raise ConfigError(
                f"--own-prompts: none of {count} prompts that the target wrote came to an end within {LONGEST} tokens; "
                "it is not tuned on chats of this template. Give --prompts FILE or --answers N"
            )
        return written

    return prompts


def opening(kind: str, number: int) -> str:
    """First words of a prompt that the target is to go on with."""
    if kind != "code":
        return ""
    forms = templates(CODE)
    form = forms[number % len(forms)].replace("{l}", LANGUAGES[number // len(forms) % len(LANGUAGES)])
    return form.split("{")[0].rstrip(" ")


def _turn(tokenizer: Any) -> tuple[list[int], int]:
    """The ids before what a user says first, and the special one behind it."""
    before = behind = ""
    if tokenizer.chat_template:
        chat = [{"role": "user", "content": MARK}]
        text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
        before, _, behind = text.partition(MARK)
    begin, end = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, behind.lstrip()))
    if not begin or not end or end[0] not in tokenizer.added_tokens_decoder:
        raise ConfigError(
            "--own-prompts: the target's tokenizer has no chat template that opens a user's turn and ends it by a "
            "token of its own, so it cannot be asked to write one; give --prompts FILE or --answers N"
        )
    return list(begin), int(end[0])
