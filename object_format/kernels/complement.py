"""What a stretch of numbers leaves out, as containers of a Roaring bitmap in its portable serialisation.

Made straight from the numbers that are there, container by container: a bitmap of the whole stretch, from
which they would be taken, costs 8 KiB for every container that has one of them, and some 90 bytes for every
other.
Source: github.com/RoaringBitmap/RoaringFormatSpec. All integers are little-endian.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from object_format.kernels.machine import borrowed
from object_format.kernels.roaring import container_bytes, put_little

if TYPE_CHECKING:
    from object_format.kernels.signatures import ByteArray, Integer, Integers, Numbers

CONTAINER = 1 << 16
LONE_RUN_BYTES = 6
"""A container that is one run, as it is where nothing is there."""
WIDEST_BYTES = 8192
"""No container is larger."""
_MOST_IN_ARRAY = 4096


@njit(nogil=True, cache=True)
def count_left_out(values: Numbers, first: Integer, end: Integer, start: Integer, stop: Integer) -> Integers:
    """How many numbers of [start, stop) values[first:end] leave out, and in how many runs."""
    runs = 0
    free = start
    for k in range(first, end):
        runs += values[k] > free
        free = values[k] + 1
    runs += stop > free
    return stop - start - (end - first), runs


@njit(nogil=True, cache=True)
def put_runs(
    values: Numbers, first: Integer, end: Integer, start: Integer, stop: Integer, out: ByteArray, at: Integer
) -> Integer:
    """Write what is left out as runs, each by its start and its length less one; the position behind."""
    free = start
    for k in range(first, end + 1):
        there = values[k] if k < end else stop
        if there > free:
            at = put_little(out, at, free - start, 2)
            at = put_little(out, at, there - free - 1, 2)
        free = there + 1
    return at


@njit(nogil=True, cache=True)
def put_plain(
    values: Numbers, first: Integer, end: Integer, start: Integer, stop: Integer, out: ByteArray, at: Integer
) -> Integer:
    """Write what is left out number by number, or as bits where it is much; the position behind."""
    as_bits = stop - start - (end - first) > _MOST_IN_ARRAY
    if as_bits:
        out[at : at + WIDEST_BYTES] = 0
    free = start
    for k in range(first, end + 1):
        there = values[k] if k < end else stop
        for low in range(free - start, there - start):
            if as_bits:
                out[at + (low >> 3)] |= 1 << (low & 7)
            else:
                at = put_little(out, at, low, 2)
        free = there + 1
    return at + WIDEST_BYTES if as_bits else at


@njit(nogil=True, cache=True)
def leave_out(
    values: Numbers,
    start: Integer,
    end: Integer,
    out: ByteArray,
    at: Integer,
    containers: Numbers,
    count: Integer,
) -> Integers:
    """Write the containers of what int64 `values`, rising and all in [start, end), leave out of it.

    `start` is the border of a container; they go to `out` from `at` on. Rows of int64 `containers` from
    `count` on get each one's key (the low half of its upper 48 bits), cardinality, whether it is of runs, and
    its bytes. A container takes the smallest form, and runs only where they are smaller. Returns the position
    behind, or -1 where there is no room, and the new count.
    """
    values = borrowed(values)
    out = borrowed(out)
    containers = borrowed(containers)
    first = 0
    while start < end:
        stop = min(start + CONTAINER, end)
        behind = first
        while behind < values.size and values[behind] < stop:
            behind += 1
        cardinality, runs = count_left_out(values, first, behind, start, stop)
        if cardinality:
            plain = container_bytes(cardinality)
            size = min(plain, 2 + 4 * runs)
            if at + size > out.size or count >= containers.shape[0]:
                return -1, count
            if size < plain:
                put_runs(values, first, behind, start, stop, out, put_little(out, at, runs, 2))
            else:
                put_plain(values, first, behind, start, stop, out, at)
            containers[count, 0] = (start >> 16) & 0xFFFF
            containers[count, 1] = cardinality
            containers[count, 2] = size < plain
            containers[count, 3] = size
            count += 1
            at += size
        first = behind
        start = stop
    return at, count
