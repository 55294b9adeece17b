"""The embedding that a drafter looks its tokens up in: its own, where its file has one, or the target's."""

from __future__ import annotations

from torch import nn

from ..errors import CaptureError
from .checkpoint import Checkpoint
from .load import LoadedModel

_ROWS = 4096  # that are compared
_ALIKE = 0.99  # mean cosine of rows; rounding to 16 bits leaves more


def embedding(checkpoint: Checkpoint, target: LoadedModel, width: int) -> tuple[nn.Module, list[str]]:
    """The module, and a note where it is not the target's.

    Args:
        width: numbers a token, as the drafter's layers read them.

    Raises:
        CaptureError: it has another shape, or there is none and the target's is of another width.
    """
    theirs: nn.Embedding = target.model.get_input_embeddings()
    shape = (theirs.weight.shape[0], width)
    own = checkpoint.take_if("embed_tokens.weight", shape, "the target's vocabulary and the drafter's hidden size")
    if own is None:
        if width != theirs.weight.shape[1]:
            raise CaptureError(
                f"drafter: {checkpoint.source} has hidden size {width} and holds no embed_tokens.weight, and those of "
                f"{target.source} are of {theirs.weight.shape[1]}; export it again with its embed_tokens"
            )
        return _plain(theirs), []
    if width != theirs.weight.shape[1]:
        return nn.Embedding.from_pretrained(own), []
    every = max(1, len(own) // _ROWS)
    pair = own[::every].float(), theirs.weight.detach()[::every].float()
    alike = float(nn.functional.cosine_similarity(*pair).mean())
    if alike >= _ALIKE:
        return _plain(theirs) if own.equal(theirs.weight) else nn.Embedding.from_pretrained(own), []
    return nn.Embedding.from_pretrained(own), [
        f"its embed_tokens are not the target's (cosine {alike:.2f}): fine if it was trained with them; if few drafts "
        "are accepted, delete embed_tokens.weight from its file, and the target's are read"
    ]


def _plain(theirs: nn.Embedding) -> nn.Embedding:
    """The target's weights alone: some models scale what they look up, and drafters do not."""
    return nn.Embedding.from_pretrained(theirs.weight.detach())
