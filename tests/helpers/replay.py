"""Stand-ins for CUDA graphs: what was recorded is run again on the same tensors, on the CPU.

They model what a graph forgets (Python, numbers read by the host), what it keeps (addresses), and what it loses (what
it allocated, once another is replayed). They do not model streams or kernels: nothing here shows that a GPU can capture
a program.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

_aten = torch.ops.aten


class ContractError(AssertionError):
    """A call does what a graph cannot carry."""


class Fetched:
    """Copies to the host as `Recorder.fetch` makes them: into two buffers, in turn."""

    def __init__(self) -> None:
        self.waiting = self.most = 0
        self._buffers: dict[torch.Size, cycle[Tensor]] = {}

    def fetch(self, tensor: Tensor) -> Callable[[], list[list[int]]]:
        host = next(self._buffers.setdefault(tensor.shape, cycle([tensor.clone(), tensor.clone()])))
        host.copy_(tensor)
        self.waiting += 1
        self.most = max(self.most, self.waiting)

        def wait() -> list[list[int]]:
            self.waiting = 0  # in order: those before it are there too, read or not
            numbers: list[list[int]] = host.tolist()
            return numbers

        return wait


class Rerun(Fetched):
    """For programs that are Python: calls them again."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = 0

    def record(self, call: Callable[[], None]) -> Callable[[], None]:
        self.recorded += 1
        return call


class StaticReplay(Fetched):
    """For programs of aten ops: replays the ops of one call, Python forgotten, every tensor where it was.

    What they allocated belongs to all recordings: a replay leaves rubbish in what the others computed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.recordings: list[list[_Op]] = []

    def record(self, call: Callable[[], None]) -> Callable[[], None]:
        call()  # a warm-up, as graphs have
        log = _Log()
        with log:
            call()
        self.recordings.append(log.ops)
        return lambda: self._replay(log.ops)

    def _replay(self, ops: list[_Op]) -> None:
        for op in ops:
            op()
        for op in ops:
            op.lose()


class _Log(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.ops: list[_Op] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (_aten._local_scalar_dense.default, _aten.nonzero.default):
            raise ContractError(f"{func} brings a number to the host, which a graph does only once")
        if func in (_aten.lift_fresh.default, _aten.lift_fresh_copy.default):
            raise ContractError("a tensor was made of numbers in Python, which a graph does not see change")
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ContractError(f"{func} draws from a generator, whose state a graph does not advance here")
        out = func(*args, **(kwargs or {}))
        self.ops.append(_Op(func, args, kwargs or {}, out))
        return out


class _Op:
    def __init__(self, func: Any, args: Any, kwargs: dict[str, Any], out: Any) -> None:
        self.func, self.args, self.kwargs = func, args, kwargs
        self.out = [out] if isinstance(out, Tensor) else list(out or ())
        mutable = func._schema.is_mutable
        aliases = any(returned.alias_info is not None for returned in func._schema.returns)
        self.what = "write" if mutable else "view" if aliases else "compute"

    def __call__(self) -> None:
        if self.what == "view":
            return  # the same memory as before
        new = self.func(*self.args, **self.kwargs)
        if self.what == "compute":
            for there, fresh in zip(self.out, [new] if isinstance(new, Tensor) else new, strict=True):
                if isinstance(there, Tensor):
                    there.copy_(fresh)

    def lose(self) -> None:
        """The next graph uses this memory."""
        if self.what == "compute":
            for there in self.out:
                if isinstance(there, Tensor):
                    there.zero_()
