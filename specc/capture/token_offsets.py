"""`d2t` and `t2d`: which target ids the rows of a pruned drafter head mean, checked before they are believed."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import CaptureError
from .checkpoint import Checkpoint


def columns(checkpoint: Checkpoint, drafted: int, rows: int, vocab_size: int) -> Tensor | None:
    """The column of the drafter's logits for each target id.

    Args:
        drafted: Vd, rows of the drafter's head.
        rows: V, rows of the target's head.
        vocab_size: ids that the target's tokenizer has.

    Returns:
        `[vocab_size]` int64, -1 where the drafter has none; None where its ids are the target's.

    Raises:
        CaptureError: the map is missing, all zeros, absolute ids, doubled, or contradicts `t2d`.
    """
    offsets, kept = checkpoint.take_if("d2t", (drafted,)), checkpoint.take_if("t2d", (rows,))
    source, index = checkpoint.source, torch.arange(drafted)
    if offsets is None:
        if drafted != rows:
            raise CaptureError(
                f"drafter: {source} drafts {drafted} ids of the target's {rows} and holds no d2t to say which; "
                "export it again with d2t"
            )
        return None
    first_ones = kept is not None and bool(kept[:drafted].all()) and int(kept.sum()) == drafted
    if not offsets.any() and drafted != rows and not first_ones:
        raise CaptureError(
            f"drafter: d2t in {source} is all zeros, so its {drafted} ids would be the first ones of {rows}; "
            "it was never filled: export it again"
        )
    ids = index + offsets.long()
    if kept is not None:
        wanted = kept.bool().nonzero().squeeze(1)
        if torch.equal(offsets.long(), wanted) and not torch.equal(ids, wanted):
            raise CaptureError(
                f"drafter: d2t in {source} holds target ids where offsets are expected (target = draft + d2t[draft]); "
                "subtract arange(len(d2t)) and save it again"
            )
        if not torch.equal(ids.sort().values, wanted):
            raise CaptureError(
                f"drafter: d2t and t2d in {source} disagree: d2t names {len(ids.unique())} ids and t2d keeps "
                f"{len(wanted)}; export it again"
            )
    elif drafted > 2 and bool((offsets[1:] > offsets[:-1]).all()):
        # Offsets stay equal where two neighbouring ids are kept; only sorted ids grow from each to the next.
        raise CaptureError(
            f"drafter: d2t in {source} grows from each id to the next, as target ids do; expected are offsets (target "
            "= draft + d2t[draft]); subtract arange(len(d2t)) and save it again"
        )
    if int(ids.min()) < 0 or int(ids.max()) >= rows or len(ids.unique()) < drafted:
        raise CaptureError(
            f"drafter: d2t in {source} maps {drafted} ids to {len(ids.unique())} different ones in "
            f"{int(ids.min())}..{int(ids.max())}; expected different ones below {rows} (offsets, not target ids)"
        )
    column = torch.full((rows,), -1)
    column[ids] = index
    return column[:vocab_size].contiguous()
