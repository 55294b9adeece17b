"""What the target thinks while it reads its own answers: hidden states at a few layers, in files of their own.

A forward over a row costs as much as a training step of the drafter, so it is made once: each file of answers gives
one `.safetensors` file of features, written aside and renamed. Rows are read from it by slices, so that
the data may be larger than the memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from .answers import Row
from .generate import likeliest

LARGEST = 65504.0  # of float16: some models have a few channels beyond it


class Reader:
    """The target, read with hooks: one forward of a row gives its hidden states.

    Args:
        model: the target, a transformers causal language model.
        layers: whose input is wanted (the residual stream that enters them); the number of layers itself stands for
            the input of the LM head, behind the final norm.
    """

    def __init__(self, model: Any, layers: tuple[int, ...]) -> None:
        self.model, self.layers = model, layers
        self.caught: dict[int, torch.Tensor] = {}
        self.hooks: list[Any] = []
        self.count = model.config.get_text_config().num_hidden_layers
        self.vocab_size = len(model.get_output_embeddings().weight)
        for index in layers:
            if index < self.count:
                block = model.base_model.layers[index]
                self.hooks.append(block.register_forward_pre_hook(self._catcher(index), with_kwargs=True))

    def close(self) -> None:
        """Take the hooks away."""
        for hook in self.hooks:
            hook.remove()

    def _catcher(self, index: int) -> Callable[..., None]:
        def catch(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.caught[index] = args[0] if args else kwargs["hidden_states"]

        return catch

    @torch.inference_mode()
    def read(self, ids: torch.Tensor, *, skip: int, keep: int = 0) -> tuple[torch.Tensor, ...]:
        """One row.

        Args:
            ids: int64 [n], the row.
            skip: tokens that are not predicted.
            keep: how many likeliest tokens are wanted.

        Returns:
            float32 [n, layers * E], the states; int32 [n - skip, keep] and float16 [n - skip, keep], the likeliest
            tokens in place of `ids[skip:]` and their log-probabilities.
        """
        if not self.layers and not keep:
            return torch.empty(len(ids), 0), torch.empty(0), torch.empty(0)
        last = self.model.base_model(input_ids=ids[None], use_cache=False)[0][0]
        self.caught[self.count] = last[None]
        states = [self.caught[index][0] for index in self.layers]
        states = torch.cat(states, -1).float() if states else torch.empty(len(ids), 0)
        if not keep:
            return states, torch.empty(0), torch.empty(0)
        return states, *likeliest(self.model.get_output_embeddings()(last[skip - 1 : -1]), keep)


@dataclass
class Sample:
    """A row as training reads it.

    Attributes:
        ids: int64 [n].
        skip: tokens of the prompt.
        kind: kind of prompt.
        top: int64 [n - skip, k], likeliest tokens in place of each answer token.
        logp: float32 [n - skip, k].
        file, start: where its states are.
    """

    ids: torch.Tensor
    skip: int
    kind: str
    top: torch.Tensor
    logp: torch.Tensor
    file: Any
    start: int

    def states(self) -> torch.Tensor:
        """float32 [n, layers * E], read from disk."""
        return self.file.get_slice("states")[self.start : self.start + len(self.ids)].float()


def write_features(path: Path, rows: list[Row], reader: Reader, keep: int, tick: Callable[[int], None]) -> None:
    """Read rows with the target, and write the result aside and then under its name.

    Args:
        path: the file to be.
        rows: what was written by the target.
        reader: the target.
        keep: likeliest tokens to keep where the rows have none.
        tick: told the tokens of each row that is done.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    states, tops, logps = [], [], []
    for row in rows:
        ids = torch.from_numpy(np.ascontiguousarray(row.ids)).long()
        state, top, logp = reader.read(ids, skip=row.skip, keep=0 if row.top is not None else keep)
        if row.top is not None and row.logp is not None:
            top, logp = (torch.from_numpy(np.ascontiguousarray(x)) for x in (row.top[:, :keep], row.logp[:, :keep]))
        states.append(state.clamp(-LARGEST, LARGEST).half())
        tops.append(top.int())
        logps.append(logp.half())
        tick(len(ids))
    tensors = {
        "ids": torch.cat([torch.from_numpy(np.ascontiguousarray(row.ids)).int() for row in rows]),
        "size": torch.tensor([len(row.ids) for row in rows]),
        "skip": torch.tensor([row.skip for row in rows]),
        "top": torch.cat(tops),
        "logp": torch.cat(logps),
        "states": torch.cat(states),
    }
    aside = path.with_suffix(".part")
    save_file(tensors, aside, {"kinds": json.dumps([row.kind for row in rows]), "layers": json.dumps(reader.layers)})
    os.replace(aside, path)


def read_features(path: Path) -> list[Sample]:
    """The rows of one file; their states stay on disk."""
    file = safe_open(path, "pt")
    data = {name: file.get_tensor(name) for name in ("ids", "size", "skip", "top", "logp")}  # type: ignore[no-untyped-call]
    kinds = json.loads(file.metadata()["kinds"])  # type: ignore[no-untyped-call]
    samples, at, seen = [], 0, 0
    for size, skip, kind in zip(data["size"].tolist(), data["skip"].tolist(), kinds, strict=True):
        ids = data["ids"][at : at + size].long()
        part = slice(seen, seen + size - skip)
        samples.append(Sample(ids, skip, kind, data["top"][part].long(), data["logp"][part].float(), file, at))
        at, seen = at + size, seen + size - skip
    return samples
