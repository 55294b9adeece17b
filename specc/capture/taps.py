"""Taps: the hidden states of a target that a drafter reads, handed on behind the logits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import CaptureError


@dataclass(eq=False)
class Taps:
    """Where a target is tapped.

    Attributes:
        layers: decoder layers whose input (the residual stream) is read, in this order; empty for the input of the LM
            head, behind the final norm.
        fuse: makes `[B, T, F]` of the tapped states side by side, `[B, T, len(layers) * E]`; part of the target's
            graph, so that what is kept of a token is no wider than what the drafter reads. None: as they are.
    """

    layers: tuple[int, ...] = ()
    fuse: nn.Module | None = None
    _seen: dict[int, Tensor] = field(default_factory=dict)

    @contextlib.contextmanager
    def hooked(self, model: Any) -> Iterator[None]:
        """The model with hooks that note the tapped states of each call.

        Raises:
            CaptureError: the model has no such layer.
        """
        if self.layers:
            layers = decoder_layers(model)
            for layer in self.layers:
                if not 0 <= layer < len(layers):
                    raise CaptureError(
                        f"the drafter reads what enters layer {layer} of the target, which has {len(layers)}; "
                        "it was made for another target"
                    )
            places = [(layer, layers[layer]) for layer in self.layers]
        else:
            places = [(-1, model.get_output_embeddings())]
        hooks = [module.register_forward_pre_hook(self._note(place), with_kwargs=True) for place, module in places]
        try:
            yield
        finally:
            self._seen.clear()
            for hook in hooks:
                hook.remove()

    def read(self) -> Tensor:
        """`[B, T, F]` of the call that the model just made."""
        states = torch.cat([self._seen[layer] for layer in self.layers or (-1,)], -1)
        return states if self.fuse is None else self.fuse(states)

    def _note(self, place: int) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self._seen[place] = args[0] if args else kwargs["hidden_states"]

        return hook


def decoder_layers(model: Any) -> nn.ModuleList:
    """The list of a model's decoder layers.

    Raises:
        CaptureError: none is found.
    """
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise CaptureError(f"{type(model).__name__} has no list of {count} layers that a drafter could read from")
