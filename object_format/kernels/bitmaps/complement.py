"""Writes the complement of sorted values in a range as containers of a Roaring bitmap.

The input is processed container by container. Computing the complement with a bitmap of the whole range would
take 8 KiB for each container with a value, and about 90 bytes for each other one. Source:
github.com/RoaringBitmap/RoaringFormatSpec. All integers are little-endian.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from object_format.kernels.bitmaps.roaring import (
    MAX_CONTAINER_BYTES,
    MAX_IN_ARRAY,
    container_bytes,
    store_little_endian,
)
from object_format.kernels.runtime.intrinsics import borrowed

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers

CONTAINER = 1 << 16
SINGLE_RUN_BYTES = 6
"""Size of a container that is one run."""
COOKIE_WITH_RUNS = 12347
FEW_CONTAINERS = 4
"""Bitmaps with run containers and fewer containers than this have no table of positions."""
_GROUP_HEAD = 12
"""Bytes before the containers of the only group: the number of groups, and the upper half of its values."""


@njit(nogil=True, cache=True)
def count_complement(
    values: IntArray, first: Integer, end: Integer, start: Integer, stop: Integer
) -> Integers:
    """Return the number of values of [start, stop) that are not in values[first:end], and of their runs."""
    runs = 0
    hole = start
    for k in range(first, end):
        runs += values[k] > hole
        hole = values[k] + 1
    runs += stop > hole
    return stop - start - (end - first), runs


@njit(nogil=True, cache=True)
def write_runs(
    values: IntArray, first: Integer, end: Integer, start: Integer, stop: Integer, out: ByteArray, at: Integer
) -> None:
    """Write the complement as runs, each by the low 16 bits of its start and its length minus one."""
    hole = start
    for k in range(first, end + 1):
        there = values[k] if k < end else stop
        if there > hole:
            at = store_little_endian(out, at, hole, 2)
            at = store_little_endian(out, at, there - hole - 1, 2)
        hole = there + 1


@njit(nogil=True, cache=True)
def write_values(
    values: IntArray, first: Integer, end: Integer, start: Integer, stop: Integer, out: ByteArray, at: Integer
) -> None:
    """Write the complement as values, or as a bitmap if it is large."""
    as_bits = stop - start - (end - first) > MAX_IN_ARRAY
    if as_bits:
        out[at : at + MAX_CONTAINER_BYTES] = 0
    hole = start
    for k in range(first, end + 1):
        there = values[k] if k < end else stop
        for low in range(hole - start, there - start):
            if as_bits:
                out[at + (low >> 3)] |= 1 << (low & 7)
            else:
                at = store_little_endian(out, at, low, 2)
        hole = there + 1


@njit(nogil=True, cache=True)
def write_complement(
    values: IntArray,
    start: Integer,
    end: Integer,
    out: ByteArray,
    at: Integer,
    containers: IntArray,
    count: Integer,
) -> Integers:
    """Write the containers of [start, end) without int64 `values`, which are ascending and in this range.

    `start` is a container boundary. Containers are written to `out` from `at` on. Rows of int64 `containers`
    from `count` on get the key (low 16 bits of the upper 48), cardinality, whether the container consists of
    runs, and its size. A container takes its smallest form, and runs only if they are smaller. Returns the
    next position (-1 if the memory is too small) and the new count.
    """
    values = borrowed(values)
    out = borrowed(out)
    containers = borrowed(containers)
    first = 0
    while start < end:
        stop = min(start + CONTAINER, end)
        last = first
        while last < values.size and values[last] < stop:
            last += 1
        cardinality, runs = count_complement(values, first, last, start, stop)
        if cardinality:
            values_size = container_bytes(cardinality)
            size = min(values_size, 2 + 4 * runs)
            if at + size > out.size or count >= containers.shape[0]:
                return -1, count
            if size < values_size:
                write_runs(values, first, last, start, stop, out, store_little_endian(out, at, runs, 2))
            else:
                write_values(values, first, last, start, stop, out, at)
            containers[count, 0] = (start >> 16) & 0xFFFF
            containers[count, 1] = cardinality
            containers[count, 2] = size < values_size
            containers[count, 3] = size
            count += 1
            at += size
        first = last
        start = stop
    return at, count


@njit(nogil=True, cache=True)
def read_little_endian(data: ByteArray, at: Integer, width: Integer) -> Integer:
    """Return an unsigned integer; 0 if the data ends before it."""
    if at + width > data.size:
        return 0
    value = 0
    for i in range(width):
        value |= int(data[at + i]) << (8 * i)
    return value


@njit(nogil=True, cache=True)
def first_container(data: ByteArray) -> Integers:
    """Return the number of containers, and the positions of their flags (0: none), keys and contents.

    `data` is a bitmap with one group.
    """
    cookie = read_little_endian(data, _GROUP_HEAD, 4)
    if cookie & 0xFFFF == COOKIE_WITH_RUNS:
        count = (cookie >> 16) + 1
        flags = _GROUP_HEAD + 4
        keys = flags + (count + 7) // 8
        return count, flags, keys, keys + 4 * count + (4 * count if count >= FEW_CONTAINERS else 0)
    count = read_little_endian(data, _GROUP_HEAD + 4, 4)
    return count, 0, _GROUP_HEAD + 8, _GROUP_HEAD + 8 + 8 * count


@njit(nogil=True, cache=True)
def copy_containers(
    data: ByteArray, start: Integer, out: ByteArray, at: Integer, containers: IntArray, count: Integer
) -> Integers:
    """Append containers that a library serialized: `data` has one group, relative to `start`.

    The other parameters and the result are those of `write_complement`. The next position is -1 also if the
    data ends early.
    """
    data = borrowed(data)
    out = borrowed(out)
    containers = borrowed(containers)
    found, flags, keys, data_at = first_container(data)
    if count + found > containers.shape[0] or data_at > data.size:
        return -1, count
    for k in range(found):
        cardinality = read_little_endian(data, keys + 4 * k + 2, 2) + 1
        of_runs = flags != 0 and (data[flags + (k >> 3)] >> (k & 7)) & 1 == 1
        size = 2 + 4 * read_little_endian(data, data_at, 2) if of_runs else container_bytes(cardinality)
        if data_at + size > data.size or at + size > out.size:
            return -1, count
        out[at : at + size] = data[data_at : data_at + size]
        containers[count, 0] = ((start >> 16) + read_little_endian(data, keys + 4 * k, 2)) & 0xFFFF
        containers[count, 1] = cardinality
        containers[count, 2] = of_runs
        containers[count, 3] = size
        count += 1
        at += size
        data_at += size
    return at, count
