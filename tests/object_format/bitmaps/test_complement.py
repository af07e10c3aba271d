"""The kernels that write containers of holes, compared with a plain encoding of sets."""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import pytest
from pyroaring import BitMap64

from object_format.kernels.bitmaps.complement import copy_containers, write_complement
from object_format.kernels.bitmaps.roaring import COOKIE

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    import numpy.typing as npt

    Holes = Collection[int]
    """Holes of a container, relative to it."""

SIZE: Final = 1 << 16
ALL: Final = range(SIZE)
GROUP: Final = 1 << 32
UNUSED: Final = 0xEE

SPARSE: Final[tuple[Holes, ...]] = (
    (0,),
    (SIZE - 1,),
    (7, 9, 300),
    (0, 1, 2),  # as large as a run
    (0, 1, 2, 3),
    (4, 5, 6, 7, 8, SIZE - 2, SIZE - 1),
    range(0, 16, 2),
    range(9),
)
DENSE: Final[tuple[Holes, ...]] = (
    ALL,
    range(1, SIZE),
    range(SIZE - 1),
    {*ALL} - {1000},
    range(0, 2 * 4096, 2),  # the largest array
    range(0, 2 * 4097, 2),
    {*range(4 * 2047)} - {*range(3, 4 * 2047, 4)},  # the most runs that are smaller than a bitmap
    {*range(4 * 2048)} - {*range(3, 4 * 2048, 4)},
    range(1, SIZE, 2),
)


def encoded(holes: Holes, *, with_runs: bool = True) -> tuple[bytes, int, bool]:
    """Return the smallest form of a container, the number of its holes, and whether it consists of runs."""
    values = sorted(holes)
    starts = [each for each in values if each - 1 not in holes]
    lasts = [each for each in values if each + 1 not in holes]
    pairs = [number for start, last in zip(starts, lasts, strict=True) for number in (start, last - start)]
    runs = struct.pack(f"<{1 + len(pairs)}H", len(starts), *pairs)
    if len(values) > 4096:
        bits = np.packbits(np.isin(ALL, values), bitorder="little").tobytes()
    else:
        bits = struct.pack(f"<{len(values)}H", *values)
    of_runs = with_runs and len(runs) < len(bits)
    return runs if of_runs else bits, len(values), of_runs


def absolute(start: int, containers: Sequence[Holes]) -> npt.NDArray[np.int64]:
    """Return the offsets of the holes of consecutive containers."""
    parts = [np.sort(np.array([*each], np.int64)) + n * SIZE for n, each in enumerate(containers)]
    return start + np.concatenate(parts)


def check(
    write: Callable[..., tuple[int, int]],
    start: int,
    containers: Sequence[Holes],
    *,
    with_runs: bool = True,
) -> None:
    """`write` must write exactly the containers with holes, behind others, and refuse smaller memory."""
    forms = [(n, *encoded(each, with_runs=with_runs)) for n, each in enumerate(containers) if each]
    data = b"".join(form for _, form, _, _ in forms)
    rows = [[(start // SIZE + n) % SIZE, count, of_runs, len(form)] for n, form, count, of_runs in forms]
    for at, size, free_rows in (
        (5, len(data), len(rows)),
        (5, len(data) + 2, len(rows) + 1),
        (5, len(data) - 1, len(rows)),
        (5, len(data) // 2, len(rows)),
        (0, 0, len(rows)),
        (5, len(data), len(rows) - 1),
    ):
        out = np.full(at + max(size, 0) + 1, UNUSED, np.uint8)
        table = np.full((1 + max(free_rows, 0) + 1, 4), -7)
        end, count = write(out[:-1], at, table[:-1], 1)
        assert (out[-1], *table[-1]) == (UNUSED, -7, -7, -7, -7)
        if size >= len(data) and free_rows >= len(rows):
            assert (end, count) == (at + len(data), 1 + len(rows))
            behind = size + 1 - len(data)
            assert out.tobytes() == bytes([UNUSED] * at) + data + bytes([UNUSED] * behind)
            assert table[:count].tolist() == [[-7] * 4, *rows]
        elif rows:
            assert end == -1


def check_complement(start: int, containers: Sequence[Holes], length: int = SIZE) -> None:
    """Check the complement of what are no holes; the last container has `length` offsets."""
    end = start + (len(containers) - 1) * SIZE + length
    survivors = np.setdiff1d(np.arange(start, end), absolute(start, containers))
    check(partial(write_complement, survivors, start, end), start, containers)


def test_all_holes_of_small_sections_are_written() -> None:
    for length in range(1, 8):
        for chosen in range(1 << length):
            check_complement(5 * SIZE, [{each for each in range(length) if chosen >> each & 1}], length)


@pytest.mark.parametrize("holes", [*SPARSE, *DENSE])
def test_a_container_takes_its_smallest_form(holes: Holes) -> None:
    check_complement(GROUP + 7 * SIZE, [holes])


@pytest.mark.parametrize("start", [0, GROUP - 2 * SIZE])
@pytest.mark.parametrize("length", [1, 7, 301])
def test_containers_follow_each_other(start: int, length: int) -> None:
    """A container without holes is left out, and its number is skipped."""
    last = [each for each in (0, 3, 6, 200, 300) if each < length]

    check_complement(start, [ALL, (), {*ALL} - {0}, {*ALL} - {9, SIZE - 1}, last], length)
    check_complement(start, [(), last], length)
    check_complement(start, [ALL, ()], length)


def test_arrays_and_bitmaps_follow_each_other() -> None:
    check_complement(0, [DENSE[4], DENSE[5], DENSE[4], DENSE[8], DENSE[6]])


def serialized(containers: Sequence[Holes], *, with_runs: bool = True) -> npt.NDArray[np.uint8]:
    """Return the library's serialization of a bitmap."""
    bitmap = BitMap64(absolute(0, containers).tolist(), optimize=with_runs)
    return np.frombuffer(bitmap.serialize(), np.uint8)


@pytest.mark.parametrize("start", [0, GROUP - 2 * SIZE])
@pytest.mark.parametrize("count", [*range(1, 10), 15, 16, 17])
@pytest.mark.parametrize("with_runs", [False, True])
def test_containers_of_the_library_are_copied(start: int, count: int, *, with_runs: bool) -> None:
    for first in range(len(SPARSE)):
        containers = [SPARSE[(first + n) % len(SPARSE)] for n in range(count)]
        data = serialized(containers, with_runs=with_runs)
        check(partial(copy_containers, data, start), start, containers, with_runs=with_runs)


@pytest.mark.parametrize("with_runs", [False, True])
def test_hundreds_of_containers_of_the_library_are_copied(*, with_runs: bool) -> None:
    containers = [SPARSE[n * n % 7 + n % 2] for n in range(300)]

    data = serialized(containers, with_runs=with_runs)

    check(partial(copy_containers, data, 0), 0, containers, with_runs=with_runs)


@pytest.mark.parametrize("with_runs", [False, True])
def test_large_containers_of_the_library_are_copied(*, with_runs: bool) -> None:
    containers = [DENSE[0], (), DENSE[4], DENSE[5], (), DENSE[6], DENSE[7], (3, 5, 7)]

    data = serialized(containers, with_runs=with_runs)

    check(partial(copy_containers, data, SIZE), SIZE, containers, with_runs=with_runs)


@pytest.mark.parametrize("count", [1, 3, 4, 9])
@pytest.mark.parametrize("with_runs", [False, True])
def test_a_bitmap_that_ends_early_is_not_copied(count: int, *, with_runs: bool) -> None:
    containers = [SPARSE[-1 - n % len(SPARSE)] for n in range(count)]
    data = serialized(containers, with_runs=with_runs)
    for end in range(data.size):
        out, rows = np.empty(data.size, np.uint8), np.empty((count, 4), np.int64)
        assert copy_containers(data[:end], 0, out, 0, rows, 0)[0] == -1


def test_a_group_without_containers_has_nothing_to_copy() -> None:
    data = np.frombuffer(struct.pack("<QIII", 1, 0, COOKIE, 0), np.uint8)

    check(partial(copy_containers, data, 0), 0, [])
