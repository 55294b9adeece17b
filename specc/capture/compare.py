"""Do two models speak the same ids?"""

from __future__ import annotations

from typing import Any

from ..errors import TokenizerError
from .text import vocabulary


def compare_tokenizers(target: Any, drafter: Any) -> None:
    """Compare two tokenizers by token strings, id by id; padded rows of the models do not count.

    Args:
        target: the target's `LoadedModel`.
        drafter: the drafter's.

    Raises:
        TokenizerError: names the first id that means different tokens, both tokens, and both sizes.
    """
    ours, theirs = vocabulary(target.tokenizer), vocabulary(drafter.tokenizer)
    longest = max(len(ours), len(theirs))
    for index in range(longest):
        left = ours[index] if index < len(ours) else None
        right = theirs[index] if index < len(theirs) else None
        if left != right:
            raise TokenizerError(
                f"tokenizers differ at id {index}: target {target.source} has {_shown(left)} ({len(ours)} ids), "
                f"drafter {drafter.source} has {_shown(right)} ({len(theirs)} ids); "
                "use a drafter of the target's own family, or 'ngram'"
            )


def _shown(token: str | None) -> str:
    return "nothing" if token is None else repr(token)
