"""What do the tokens of two tokenizers have in common?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer

from ..draft_vocabulary import DraftVocabulary
from ..errors import ConfigError, TokenizerError
from ..runtime.grammar.token_bytes import spelled
from .text import vocabulary

LEAST_SHARE = 0.1
Spelling = bytes | str | None


def match_vocabularies(target: Any, drafter: Any) -> DraftVocabulary:
    """Match the tokens of two models by the bytes that they stand for; padded rows of the models do not count.

    Equal tokenizers need no maps. Else each token of the target is drafted where the drafter has a token of the same
    bytes (byte-level and sentencepiece vocabularies spell them differently), special tokens where their names or
    their roles (BOS, EOS) are the same; and is fed to the drafter as that token, or as the last piece that the
    drafter's tokenizer cuts its text into, which can only cost acceptance.

    Args:
        target: the target's `LoadedModel`.
        drafter: the drafter's.

    Raises:
        TokenizerError: they share less than a tenth of the target's ids: beside single bytes and the shortest pieces
            nothing is left to draft.
    """
    names = vocabulary(target.tokenizer), vocabulary(drafter.tokenizer)
    if names[0] == names[1]:
        return DraftVocabulary()
    ours, theirs = _spellings(target.tokenizer, drafter.tokenizer)
    columns = _match(ours, theirs, _fallbacks(names[0]), _fallbacks(names[1]))
    for role in ("bos_token_id", "eos_token_id"):
        own, other = getattr(target.tokenizer, role), getattr(drafter.tokenizer, role)
        if own is not None and other is not None and columns[own] < 0 and other not in columns:
            columns[own] = other
    common = sum(column >= 0 for column in columns)
    if common < LEAST_SHARE * len(ours):
        raise TokenizerError(
            f"the tokenizers share {common} tokens, {common / len(ours):.1%} of the target's: target {target.source} "
            f"has {len(ours)} ids, drafter {drafter.source} has {len(theirs)}, and drafting needs {LEAST_SHARE:.0%}; "
            "use a drafter of the target's own family, or 'ngram'"
        )
    lacking = [index for index, column in enumerate(columns) if column < 0]
    fed_as = list(columns)
    for index, piece in zip(lacking, _last_pieces([ours[i] for i in lacking], theirs, drafter.tokenizer), strict=True):
        fed_as[index] = piece
    return DraftVocabulary(torch.tensor(fed_as), torch.tensor(columns), len(theirs))


def _spellings(*tokenizers: Any) -> list[list[Spelling]]:
    """By id: the bytes a token stands for, the name of a special token, None for an id that is not used.

    Where a decoder sees more than one token at a time, the names of all tokens stand for them.
    """
    found = []
    for tokenizer in tokenizers:
        spellings: list[Spelling] = list(vocabulary(tokenizer))
        try:
            for index, piece in enumerate(spelled(tokenizer.backend_tokenizer)):
                spellings[index] = piece or spellings[index]
        except ConfigError:
            return [list(vocabulary(each)) for each in tokenizers]
        for index, token in tokenizer.added_tokens_decoder.items():
            spellings[index] = token.content if token.special else token.content.encode()
        found.append(spellings)
    return found


def _fallbacks(names: Sequence[str | None]) -> set[int]:
    """Ids of sentencepiece's bytes, `<0x41>`, which are written only where no piece serves."""
    return {index for index, name in enumerate(names) if name and len(name) == 6 and name.startswith("<0x")}


def _match(ours: list[Spelling], theirs: list[Spelling], *fallbacks: set[int]) -> list[int]:
    """For each id the other's id of the same spelling, or -1; one to one, byte fallbacks last."""
    places: list[dict[Spelling, list[int]]] = []
    for spellings, last in zip((ours, theirs), fallbacks, strict=True):
        by_spelling: dict[Spelling, list[int]] = {}
        for index in sorted(range(len(spellings)), key=lambda index: index in last):
            by_spelling.setdefault(spellings[index], []).append(index)
        by_spelling.pop(None, None)
        places.append(by_spelling)
    columns = [-1] * len(ours)
    for spelling, indices in places[0].items():
        for index, other in zip(indices, places[1].get(spelling, ()), strict=False):
            columns[index] = other
    return columns


def _last_pieces(spellings: list[Spelling], theirs: list[Spelling], tokenizer: Any) -> list[int]:
    """Under which id a drafter is fed each of the tokens that it lacks."""
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.no_padding()
    core.no_truncation()
    single = {piece: index for index, piece in enumerate(theirs) if isinstance(piece, bytes) and len(piece) == 1}
    texts = [s.decode(errors="replace") if isinstance(s, bytes) else s or "" for s in spellings]
    spare = next((i for i in (tokenizer.unk_token_id, tokenizer.eos_token_id) if i is not None), 0)
    found = []
    for spelling, text, coded in zip(spellings, texts, core.encode_batch(texts, add_special_tokens=False), strict=True):
        piece = coded.ids[-1] if coded.ids else spare
        if isinstance(spelling, bytes) and text.endswith("\ufffd"):  # part of a character
            piece = single.get(spelling[-1:], piece)
        found.append(piece)
    return found
