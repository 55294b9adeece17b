"""Buckets: how many cache slots a program reads. The dummy of that length is an input of every program."""

from __future__ import annotations

STEP = 64  # where calls are made one by one, slots read grow by this many
FIRST = 256  # where they are recorded, the smallest bucket; each further one is twice as large


def bucket_size(length: int, slots: int, recorded: bool) -> int:
    """Slots to read, at least `length` of `slots`; never all of them, a size that programs guard against."""
    if recorded:
        return next(size for size in recorded_sizes(slots) if size >= length)
    return min(-(-max(length, 1) // STEP) * STEP, slots - 1)


def recorded_sizes(slots: int) -> tuple[int, ...]:
    """The sizes for which calls are recorded, the smallest first."""
    sizes, size = [], FIRST
    while size < slots - 1:
        sizes.append(size)
        size *= 2
    return (*sizes, slots - 1)
