"""DraftVocabulary: how the ids that a drafter is fed and drafts stand to the target's."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .draft_head import cut_head
from .errors import ConfigError
from .program import Model


@dataclass(frozen=True, eq=False)
class DraftVocabulary:
    """Maps from the ids of the target, as `Model.fed_as` and `Model.column_of` hold them; None where ids are the same.

    Attributes:
        fed_as: `[V]` int64, the drafter's id of each token of the target.
        column_of: `[V]` int64, the column of the drafter's logits for each token of the target, -1 for none.
        size: ids of the drafter's own tokenizer.
        cut: whether columns that no token of the target stands for leave the drafter's head.
    """

    fed_as: Tensor | None = None
    column_of: Tensor | None = None
    size: int = 0
    cut: bool = False

    def only(self, ids: Sequence[int], vocab_size: int) -> DraftVocabulary:
        """Of the target's `vocab_size` ids, draft those of `ids` that could be drafted before, and cut the head.

        Raises:
            ConfigError: none of them can be drafted.
        """
        columns = torch.arange(vocab_size) if self.column_of is None else self.column_of
        kept = torch.zeros(vocab_size, dtype=torch.bool).index_fill_(0, torch.tensor(ids), True)
        columns = torch.where(kept, columns, -1)
        if not (columns >= 0).any():
            raise ConfigError(f"--draft-vocab: the drafter has none of these {len(ids)} tokens; give others")
        return dataclasses.replace(self, column_of=columns, size=self.size or vocab_size, cut=True)

    def of(self, model: Model) -> Model:
        """The model with these maps, and with the head cut to them if it is to be."""
        columns = self.column_of
        if self.cut and columns is not None:
            kept = columns[columns >= 0].unique()  # in order
            model = cut_head(model, kept)
            columns = torch.where(columns < 0, -1, torch.searchsorted(kept, columns))
        return model.with_vocabulary(fed_as=self.fed_as, column_of=columns)

    def record(self) -> dict[str, Any]:
        """What an engine says of it; empty where drafter and target have the same ids."""
        if self.column_of is None:
            return {}
        can = int((self.column_of >= 0).sum())
        return {"target_ids": len(self.column_of), "drafter_ids": self.size, "draftable": can}


def describe(record: dict[str, Any]) -> str:
    """One line on a record; empty for an empty one."""
    if not record:
        return ""
    share = record["draftable"] / record["target_ids"]
    return (
        f"{record['draftable']:,} of the target's {record['target_ids']:,} ids ({share:.0%}) can be drafted, "
        f"by a drafter of {record['drafter_ids']:,} ids"
    )
