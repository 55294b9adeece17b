"""Streams: on a GPU all work of an engine is in one order, whoever calls it, on whatever stream of theirs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch


class Streams:
    """A stream of its own on each GPU that an engine uses; nothing on the CPU.

    A call that was begun ahead may still run when a request has returned: were the next one on another stream, both
    would write the same state.
    """

    def __init__(self, *devices: torch.device) -> None:
        gpus = dict.fromkeys(device for device in devices if device.type == "cuda")
        self._streams = [torch.cuda.Stream(device) for device in gpus]
        for stream in self._streams:
            torch.cuda.synchronize(stream.device)  # weights came by the caller's

    @contextmanager
    def current(self) -> Iterator[None]:
        """Work inside goes to them; the first device is the current one."""
        with ExitStack() as stack:
            for stream in reversed(self._streams):
                stack.enter_context(torch.cuda.stream(stream))
            yield

    def wait(self) -> None:
        """Wait until all of it is done, so that a clock can be read."""
        for stream in self._streams:
            stream.synchronize()
