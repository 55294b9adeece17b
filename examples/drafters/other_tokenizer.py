"""A drafter with a tokenizer of its own: its ids are matched with the target's by what they stand for.

No such drafter of this target is stored, so the one in `models/` gets its ids shuffled. A drafter that lacks some
of the target's tokens drafts the others, with its probabilities renormalised over them (Timor et al. 2025).
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from family import MODEL, Family
from safetensors.torch import load_file, save_file


class Shuffled(Family):
    """The stored drafter under other ids."""

    def find(self, given: argparse.Namespace) -> str:
        if given.drafter:
            return str(given.drafter)
        folder = Path(given.engines / "shuffled")
        shutil.copytree(self.drafter, folder, dirs_exist_ok=True)
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        weights = load_file(folder / "model.safetensors")
        rows = next(len(weight) for name, weight in weights.items() if "embed_tokens" in name)
        kept = len(tokenizer["added_tokens"])  # special tokens lead, and stay where they are
        order = torch.cat([torch.arange(kept), kept + torch.randperm(rows - kept)])
        new = torch.empty_like(order).scatter_(0, order, torch.arange(rows)).tolist()
        vocabulary = tokenizer["model"]["vocab"]
        tokenizer["model"]["vocab"] = {token: new[index] for token, index in vocabulary.items()}
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
        named = {name: w[order].contiguous() if len(w) == rows else w for name, w in weights.items()}
        save_file(named, folder / "model.safetensors", metadata={"format": "pt"})
        return str(folder)


FAMILY = Shuffled(MODEL, draft_length=3)

if __name__ == "__main__":
    FAMILY.main(__file__)
