"""Recorded calls: what programs launch, kept once for each bucket and replayed on tensors that stay where they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

FIRST_BUCKET = 256  # cache slots; each further bucket is twice as large

Results = Mapping[str, Tensor]
Recording = tuple[Callable[[], None], Results]
"""What runs the recorded call again, and its results: the same tensors each time, overwritten by each replay."""


class Recorder(Protocol):
    """What a device offers to record calls: CUDA graphs (`cuda_graphs.CudaGraphs`), or a stand-in in tests."""

    def record(self, call: Callable[[], Results]) -> Recording:
        """Run a call, which may be several times, and record what it launches."""

    def fetch(self, tensor: Tensor) -> Callable[[], list[list[int]]]:
        """Begin to copy a small tensor to the host, as it is at this place in the device's order of work.

        Returns:
            What waits for the copy and gives its numbers. Two may be under way at a time.
        """


def bucket_sizes(slots: int) -> tuple[int, ...]:
    """The numbers of cache slots for which calls are recorded, the smallest first; the last is all but one of `slots`
    (all of them is a size that programs guard against)."""
    sizes, size = [], FIRST_BUCKET
    while size < slots - 1:
        sizes.append(size)
        size *= 2
    return (*sizes, slots - 1)


class Recorded:
    """A call that is recorded once for each bucket, and replayed from then on.

    Args:
        call: takes the bucket, and writes what outlives it to tensors that keep their address.
        recorder: the device's.
    """

    def __init__(self, call: Callable[[Tensor], Results], recorder: Recorder) -> None:
        self._call, self._recorder = call, recorder
        self._recordings: dict[int, Recording] = {}

    def holds(self, bucket: Tensor) -> bool:
        """Whether there is a recording for a bucket."""
        return len(bucket) in self._recordings

    def record(self, bucket: Tensor) -> None:
        """Make the recording for a bucket, which runs the call."""
        self._recordings[len(bucket)] = self._recorder.record(lambda: self._call(bucket))

    def __call__(self, bucket: Tensor) -> Results:
        """Replay the recording for a bucket."""
        replay, results = self._recordings[len(bucket)]
        replay()
        return results


def largest_first(sizes: Sequence[int]) -> list[int]:
    """The order in which buckets are recorded: what a large one freed serves the small ones that come after."""
    return sorted(sizes, reverse=True)
