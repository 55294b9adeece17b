"""What an engine can be compiled for, and how each back end takes programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..passes.quantise_weights import Quantise
from ..program import Program
from . import aotinductor, eager, onnx, onnx_bytes, tensorrt


@dataclass(frozen=True)
class BackEnd:
    """One back end.

    Attributes:
        lower: writes a bound program to a file; no weights inside.
        suffix: of that file.
        form: how it takes cache writes, as `passes.BindState`.
        noise: where its noise comes from, as `passes.BindState`.
        forks: whether processes forked from this one can lower for it; a library that holds a GPU cannot.
        slots: caches have a multiple of so many, that each row's begins where the back end wants it.
        native: whether it compiles C++, whose programs are worth keeping and hold for one kind of processor.
        portable: whether its programs name no device: made on the CPU, they run where the engine is loaded.
        options: of `lower`, part of a program's key.
        quantise: how it stores weights in bytes, where it can multiply by such.
    """

    lower: Callable[[Program, Path], None]
    suffix: str = ".pt2"
    form: str = "in_place"
    native: bool = False
    portable: bool = False
    noise: str = "ops"
    forks: bool = True
    slots: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    quantise: Quantise | None = None


def back_end(name: str) -> BackEnd:
    """The back end of that name, one of `config.BACKENDS`."""
    made = {
        "inductor": lambda: BackEnd(aotinductor.lower, native=True, options=aotinductor.key_options()),
        "eager": lambda: BackEnd(eager.lower, suffix=".json"),
        "onnx": lambda: BackEnd(
            onnx.lower, suffix=".onnx", form="functional", portable=True, quantise=onnx_bytes.quantise
        ),
        "tensorrt": lambda: BackEnd(
            tensorrt.lower,
            suffix=".plan",
            form="functional",
            noise="input",
            portable=True,
            forks=False,
            slots=tensorrt.SLOTS,
        ),
    }
    return made[name]()
