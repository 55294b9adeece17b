"""State: every tensor that the programs of an engine read and write, allocated once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ..errors import EngineFormatError
from ..manifest import EngineManifest, ProgramSpec
from .bucket import bucket_size, recorded_sizes
from .call import Call, Runner, dtype_of
from .recorded import Recorded, Recorder


class State:
    """The engine's buffers by name (`EngineManifest.tensors`), all rows of the batch.

    Caches and parameters keep their address for life: programs write the first in place, the runtime the second. State
    tensors are replaced by what a program returns under their name; with a recorder they are overwritten by it, since a
    recorded call finds its arguments where they were.

    Attributes:
        writes: how often the host has written to it, or had a program that is no step write to it.
    """

    def __init__(
        self,
        manifest: EngineManifest,
        device: torch.device,
        recorder: Recorder | None = None,
        only: set[str] | None = None,
    ) -> None:
        """`only`: names of the tensors that are wanted here; None is all of the manifest's."""
        self.batch, self.slots, self.recorder, self.device = manifest.batch, manifest.slots, recorder, device
        self.specs = {spec.name: spec for spec in manifest.tensors if only is None or spec.name in only}
        self.tensors = {
            name: torch.zeros(spec.shape, dtype=dtype_of(spec), device=device)  # never `empty`: 0 * NaN is NaN
            for name, spec in self.specs.items()
            if spec.role != "call"
        }
        self._calls: dict[tuple[str, int | None], Call] = {}
        self._recorded: dict[tuple[str, int | None], Recorded] = {}
        self._results: dict[str, dict[str, Tensor]] = {}  # of programs that are recorded
        self._held: dict[str, list[int]] = {}  # vectors whose content is known
        self.writes = 0

    @property
    def replays(self) -> bool:
        """Whether steps are recorded, and so overwrite what they returned before."""
        return self.recorder is not None

    def has(self, name: str) -> bool:
        """Whether the engine's programs read a tensor of that name."""
        return name in self.tensors

    def fill(self, name: str, value: float) -> None:
        """Write one value to all of a tensor, if this engine's programs have it."""
        if name in self.tensors:
            self.writes += 1
            self.tensors[name].fill_(value)

    def set(self, name: str, row: int, value: float | Sequence[int] | Tensor) -> None:
        """Write one row of a state or parameter tensor; a name that this engine's programs do not have is skipped."""
        tensor = self.tensors.get(name)
        if tensor is None:
            return
        self.writes += 1
        self._held.pop(name, None)
        if isinstance(value, Sequence):
            value = torch.tensor(value, dtype=tensor.dtype, device=tensor.device)
        if isinstance(value, Tensor):
            tensor[row, : len(value)] = value
        else:
            tensor[row] = value

    def hold(self, name: str, values: list[int]) -> None:
        """Make a vector hold these, one a row. What it is known to hold already is not written again."""
        tensor = self.tensors.get(name)
        if tensor is not None and self._held.get(name) != values:
            self.writes += 1
            self._held.pop(name, None)
            tensor.copy_(torch.tensor(values, dtype=tensor.dtype))
            self._held[name] = list(values)

    def write(self, row: int, start: int, tokens: Sequence[int]) -> None:
        """Write tokens of a text to the history."""
        self.writes += 1
        history = self.tensors["history"]
        history[row, start : start + len(tokens)] = torch.tensor(tokens, device=history.device)

    def emitted(self, row: int, start: int, tokens: Sequence[int]) -> None:
        """A step has emitted tokens of a text; it wrote them to the history itself."""

    def hand(self, name: str, row: int | None, value: Tensor) -> None:
        """Copy what another device's program gave to the parameter of that name, for one row or for all."""
        self.writes += 1
        rows = slice(None) if row is None or self.batch == 1 else slice(row, row + 1)
        self.tensors[name][rows, : value.shape[1]].copy_(value)

    def fetch(self, tensor: Tensor) -> Callable[[], list[list[int]]]:
        """What gives the numbers of a small output as it is now; where a recorder runs, without waiting for them."""
        return self.recorder.fetch(tensor) if self.recorder else tensor.tolist

    def trust(self, name: str, values: list[int]) -> None:
        """Take it that a program left these in a vector, one a row."""
        self._held[name] = list(values)

    def clear(self, row: int, start: int, stop: int) -> None:
        """Zero a row's cache slots from `start` on, so that nothing of one text (a NaN, say) reaches the next."""
        self.writes += 1
        for name, spec in self.specs.items():
            if spec.role == "cache":
                part = self.tensors[name][row]
                (part[:, start:stop] if part.ndim == 3 else part[start:]).zero_()  # history is small: all of it

    def forget(self, row: int) -> None:
        """Zero a row's `draft` tensors, so that what is drafted depends on this row's own text alone."""
        self.writes += 1
        for name, spec in self.specs.items():
            if spec.role == "draft":
                self.tensors[name][row] = 0

    def remember(self, tokens: Sequence[int]) -> None:
        """Add a text that has ended to those that lookup searches beside a row's own; the oldest make room."""
        shared = self.tensors.get("shared")
        if shared is not None and tokens:
            self.writes += 1
            new = torch.tensor([*(token + 1 for token in tokens), 0][-shared.shape[1] :], device=shared.device)
            shared.copy_(torch.cat([shared[0, len(new) :], new]).expand_as(shared))

    def copy(self, source: int, row: int, slots: int) -> None:
        """Give a row the first `slots` slots of another's keys and values."""
        self.writes += 1
        for name, spec in self.specs.items():
            if spec.role == "cache" and len(spec.shape) == 4:
                self.tensors[name][row, :, :slots] = self.tensors[name][source, :, :slots]

    def bucket(self, length: int) -> Tensor:
        """The dummy whose size says how many cache slots a program reads: `length`, rounded up."""
        return self.tensors["bucket"][: bucket_size(length, self.slots, self.replays)]

    def bind(self, name: str, spec: ProgramSpec, runner: Runner) -> None:
        """Prepare the calls of one program: over all rows, or over each row where it works on one.

        Raises:
            EngineFormatError: the program names a tensor that the manifest does not describe.
        """
        missing = [n for n in spec.inputs if n not in self.specs]
        if missing:
            raise EngineFormatError(
                f"program {name} reads {missing[0]}, which the manifest does not describe; compile again"
            )
        for row in range(self.batch) if spec.batch < self.batch else (None,):
            call = self._calls[name, row] = Call(name, spec, runner, self, row)
            if self.recorder and spec.tree_paths:  # prefill takes long enough to be called as it is
                results = self._results.setdefault(name, {})
                self._recorded[name, row] = Recorded(call, self.recorder, results)

    def record(self) -> None:
        """Record every step, of all rows and of each alone, with every bucket, the largest first. No text may be held:
        what the calls wrote is zeroed."""
        for size in reversed(recorded_sizes(self.slots)) if self._recorded else ():
            for recorded in self._recorded.values():
                recorded.record(self.tensors["bucket"][:size])
        for name, spec in self.specs.items() if self._recorded else ():
            if spec.role in ("cache", "state", "draft"):
                self.tensors[name].zero_()
        self._held.clear()

    def call(self, name: str, length: int, row: int | None = None, **given: Tensor) -> Mapping[str, Tensor]:
        """Run a program on the state.

        Args:
            name: of the program.
            length: the most cache slots that any row has filled; sets the bucket.
            row: for programs of one row, the one to work on.
            given: `call` tensors.

        Returns:
            What the program returned, by name. Outputs that are state have replaced it already. With a recorder the
            next call of the program overwrites them.

        Raises:
            EngineFault: a tensor about to be passed is not what the program was compiled for.
        """
        key = (name, row) if (name, row) in self._calls else (name, None)  # None: one row is all there are
        for output in self._calls[key].outputs:
            self._held.pop(output, None)
        recorded, bucket = self._recorded.get(key), self.bucket(length)
        if recorded:
            return recorded(bucket)
        self.writes += bool(given)
        return self._calls[key](bucket, {name: tensor.to(self.device) for name, tensor in given.items()})
