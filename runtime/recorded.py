"""Recorded calls: what programs launch, kept once for each bucket and replayed on tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

Results = Mapping[str, Tensor]


class Recorder(Protocol):
    """What a device offers to record calls: CUDA graphs (`cuda_graphs.CudaGraphs`), or a stand-in in tests."""

    def record(self, call: Callable[[], None]) -> Callable[[], None]:
        """Run a call, which may be several times, and record what it launches; returns what launches it again."""

    def fetch(self, tensor: Tensor) -> Callable[[], list[list[int]]]:
        """Begin to copy a small tensor to the host, as it is at this place in the device's order of work.

        Returns:
            What waits for the copy and gives its numbers. Two may be under way at a time.
        """


class Recorded:
    """A call that is recorded once for each bucket, and replayed from then on.

    Args:
        call: takes the bucket, and writes what outlives it to tensors that keep their address.
        recorder: the device's.
        results: what the call returns, by name; the same for all calls of one program, in memory of their own: what a
            recorded call allocates may be used by the next one. Filled when the first is recorded, overwritten by each
            replay.
    """

    def __init__(self, call: Callable[[Tensor], Results], recorder: Recorder, results: dict[str, Tensor]) -> None:
        self._call, self._recorder, self._results = call, recorder, results
        self._replays: dict[int, Callable[[], None]] = {}

    def holds(self, size: int) -> bool:
        """Whether there is a recording for a bucket of this size."""
        return size in self._replays

    def record(self, bucket: Tensor) -> None:
        """Make the recording for a bucket, which runs the call."""

        def once() -> None:
            for name, tensor in self._call(bucket).items():
                if name not in self._results:
                    self._results[name] = tensor.clone()
                else:
                    self._results[name].copy_(tensor)

        once()  # so that no result is allocated while it is recorded
        self._replays[len(bucket)] = self._recorder.record(once)

    def __call__(self, bucket: Tensor) -> Results:
        """Replay the recording for a bucket."""
        self._replays[len(bucket)]()
        return self._results
