from __future__ import annotations

import tracemalloc
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import AbortedTransaction, Extent, FileKind
from core.errors import CorruptDataError
from object_format.errors import MalformedBatchError
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import encode_batch
from spark_jobs.task.extent_cut import ExtentCutter, are_disjoint

if TYPE_CHECKING:
    from collections.abc import Sequence


def extent(base: int, last: int, shift: int) -> Extent:
    return Extent(
        topic_id=UUID(int=1),
        partition=0,
        base_offset=base,
        last_offset=last,
        record_count=0,
        min_timestamp=0,
        max_timestamp=0,
        file_id=UUID(int=2),
        object_name="a file",
        file_kind=FileKind.INGESTION,
        position=0,
        length=1,
        index_position=0,
        index_length=0,
        offset_shift=shift,
        leader_epoch=0,
        unique_keys=False,
        committed_ms=0,
    )


def batches(*sizes: int) -> bytes:
    """Return batches of so many records, at offsets from 0 on."""
    encoded = []
    base = 0
    for size in sizes:
        encoded.append(encode_batch([0] * size, [b"k"] * size, [b"v"] * size, base_offset=base))
        base += size
    return b"".join(encoded)


@given(st.lists(st.tuples(st.integers(1, 4), st.booleans()), min_size=1, max_size=12), st.integers(0, 100))
def test_each_batch_is_assigned_to_its_extent(plan: Sequence[tuple[int, bool]], log_end: int) -> None:
    """Rejected batches belong to no extent, and shift the offsets of the batches after them."""
    extents: list[Extent] = []
    expected: dict[int, list[bytes]] = {}
    stored = 0
    joined = False
    for size, accepted in plan:
        one = encode_batch([0] * size, [b"k"] * size, [b"v"] * size, base_offset=stored)
        if accepted:
            if not joined:
                extents.append(extent(log_end, log_end - 1, log_end - stored))
            base = extents[-1].base_offset
            extents[-1] = extent(base, log_end + size - 1, extents[-1].offset_shift)
            expected.setdefault(len(extents) - 1, []).append(one)
            log_end += size
        joined = accepted
        stored += size

    pieces = ExtentCutter(extents).pieces(memoryview(batches(*(size for size, _ in plan))))

    assert {piece.extent_index: bytes(piece.batches) for piece in pieces} == {
        index: b"".join(each) for index, each in expected.items()
    }
    for piece in pieces:
        owner = extents[piece.extent_index]
        assert piece.batch_count == len(expected[piece.extent_index])
        assert piece.record_count == owner.last_offset - owner.base_offset + 1


def test_a_batch_across_the_end_of_an_extent_is_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="lies across the end of an extent"):
        ExtentCutter([extent(0, 4, 0)]).pieces(memoryview(batches(3, 3)))


@pytest.mark.parametrize(("aborted", "pieces"), [((), 1), ((AbortedTransaction(7, 0, 9),), 1000)])
def test_cutting_takes_a_row_for_each_piece_that_is_possible(
    aborted: Sequence[AbortedTransaction], pieces: int
) -> None:
    """That is one for each extent, or for each batch if some of them may be aborted. A row takes 40 bytes."""
    one = encode_batch([], [], [])
    data = b"".join(one.replace(bytes(8), base.to_bytes(8, "big"), 1) for base in range(pieces))
    cutter = ExtentCutter([extent(0, pieces, 0)], aborted)
    cutter.pieces(memoryview(b""))  # loads the kernel
    tracemalloc.start()
    cutter.pieces(memoryview(data))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 40 * pieces <= peak < 40 * pieces + 4000


def test_extents_that_claim_the_same_batches_are_corrupt() -> None:
    with pytest.raises(CorruptDataError, match="claim the same batches"):
        ExtentCutter([extent(0, 4, 0), extent(5, 9, 3)])


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 4), st.booleans()), max_size=4))
def test_extents_are_disjoint_if_they_claim_ascending_offsets(
    claims: Sequence[tuple[int, int, bool]],
) -> None:
    """`claims` are first stored offset and count. An extent without bytes claims nothing."""
    extents: list[Extent] = []
    claimed: list[int] = []
    base = 10
    for first, count, has_bytes in claims:
        made = extent(base, base + count - 1, base - first)
        extents.append(made if has_bytes else made._replace(length=0))
        claimed += range(first, first + count) if has_bytes else []
        base += count
    assert are_disjoint(extents) == all(one < other for one, other in pairwise(claimed))


def test_an_offset_before_the_section_is_malformed() -> None:
    """Stored offsets begin at 0."""
    data = encode_batch([0], [b"k"], [b"v"], base_offset=-1) + batches(2)
    with pytest.raises(MalformedBatchError):
        ExtentCutter([extent(0, 1, 0)]).pieces(memoryview(data))


@given(st.data())
def test_truncated_bytes_raise_malformed_batch_error(data: st.DataObject) -> None:
    """The bytes may be cut anywhere; checksums are verified with the block."""
    whole = batches(2, 3, 1)
    cut = data.draw(st.integers(1, len(whole) - 1))
    boundaries = {len(batches(2)), len(batches(2, 3))}

    if cut in boundaries:
        ExtentCutter([extent(0, 5, 0)]).pieces(memoryview(whole[:cut]))
    else:
        with pytest.raises(MalformedBatchError):
            ExtentCutter([extent(0, 5, 0)]).pieces(memoryview(whole[:cut]))


def test_offsets_that_do_not_increase_are_malformed() -> None:
    """Offsets increase within a block and from one block to the next."""
    cutter = ExtentCutter([extent(0, 9, 0)])

    with pytest.raises(MalformedBatchError):
        cutter.pieces(memoryview(batches(2) + batches(2)))
    with pytest.raises(MalformedBatchError):
        cutter.pieces(memoryview(batches(2)))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(1, 3)), min_size=1, max_size=12),
    st.integers(0, 100),
    st.data(),
)
def test_batches_of_aborted_transactions_are_left_out(
    plan: Sequence[tuple[int, bool, int]], shift: int, data: st.DataObject
) -> None:
    """Those of other producers, of other offsets, and outside of transactions stay."""
    encoded, base = [], 0
    for producer_id, is_transactional, size in plan:
        batch = encode_batch(
            [0] * size,
            [b"k"] * size,
            [b"v"] * size,
            base_offset=base,
            producer=(producer_id, 0, 0),
            is_transactional=is_transactional,
        )
        encoded.append((producer_id, is_transactional, base, size, batch))
        base += size
    borders = data.draw(st.lists(st.integers(0, base), min_size=2, max_size=4, unique=True).map(sorted))
    aborted = [
        AbortedTransaction(producer_id, first + shift, last + shift - 1)
        for producer_id in data.draw(st.sets(st.integers(0, 3)))
        for first, last in pairwise(borders)
    ]
    cutter = ExtentCutter([extent(shift, shift + base - 1, shift)], aborted)
    pieces = cutter.pieces(memoryview(b"".join(each[-1] for each in encoded)))

    def is_aborted(producer_id: int, offset: int) -> bool:
        return any(
            each.producer_id == producer_id and each.first_offset <= offset + shift <= each.last_offset
            for each in aborted
        )

    kept = [each for each in encoded if not (each[1] and is_aborted(each[0], each[2]))]
    assert b"".join(bytes(piece.batches) for piece in pieces) == b"".join(each[-1] for each in kept)
    assert sum(piece.record_count for piece in pieces) == sum(each[3] for each in kept)
    assert int(cutter.dropped.sum()) == base - sum(each[3] for each in kept)


def test_each_batch_is_compared_with_the_transactions_of_its_producer() -> None:
    """Seven producers write in turn, and four of them have two or three aborted transactions."""
    ranges = {1: [(0, 9)], 3: [(3, 3), (17, 31)], 4: [(11, 18), (25, 45), (46, 60)], 6: [(0, 6), (48, 48)]}
    aborted = [
        AbortedTransaction(producer_id, first, last)
        for producer_id, each in ranges.items()
        for first, last in each
    ]
    data = b"".join(
        encode_batch(
            [0], [b"k"], [b"%d" % at], base_offset=at, producer=(at % 7, 0, 0), is_transactional=True
        )
        for at in range(49)
    )
    expected = [
        at for at in range(49) if not any(first <= at <= last for first, last in ranges.get(at % 7, []))
    ]
    cutter = ExtentCutter([extent(0, 48, 0)], aborted)

    pieces = cutter.pieces(memoryview(data))

    found = b"".join(bytes(piece.batches) for piece in pieces)
    assert [header.base_offset for _, header in iter_headers(found)] == expected
    assert int(cutter.dropped[0]) == 49 - len(expected)
