"""Columns of fingerprints, and how batches are converted to them."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.dedupe.fingerprints import Columns, Fingerprinter
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.dedupe.fingerprints import (
    CONTROL_RECORD,
    HORIZON_PASSED,
    KEYLESS,
    TOMBSTONE,
    WORDS,
)
from object_format.record_batch.decompression import open_batches
from object_format.record_batch.records import Record, encode_batch
from tests.object_format import model
from tests.object_format.dedupe.test_dedupe import NOW, SEED
from tests.object_format.dedupe.test_kernel_models import fingerprints

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_format.buffers import Bytes

Row = tuple[list[int], int, int]
"""Fingerprint, offset and flags."""


def contents(columns: Columns) -> list[Row]:
    words = columns.words.reshape(-1, WORDS)[columns.start : columns.count].tolist()
    offsets = columns.offsets[columns.start : columns.count].tolist()
    return list(zip(words, offsets, columns.flags[columns.start : columns.count].tolist(), strict=True))


def test_a_record_takes_21_bytes() -> None:
    columns = Columns(7)
    assert (columns.nbytes, columns.start, columns.count) == (7 * 21, 0, 0)


def test_columns_double_until_they_reach_their_bound() -> None:
    columns = Columns(3)
    columns.words[:] = range(9)
    columns.offsets[:] = range(3)
    columns.flags[:] = range(3)
    columns.count = 3
    before = contents(columns)
    sizes = []
    while columns.grow(20):
        assert contents(columns) == before
        sizes.append(columns.offsets.size)
    assert sizes == [6, 12, 20]
    assert columns.nbytes == 20 * 21
    assert not columns.grow(19)


def test_columns_are_allocated_again_only_for_more_records() -> None:
    columns = Columns(0)
    columns.begin_at_end(5)
    first = columns.words
    for records in (5, 3, 0):
        columns.begin_at_end(records)
        assert columns.words is first
        assert columns.start == columns.count == columns.offsets.size == 5
    columns.begin_at_end(6)
    assert columns.start == columns.count == columns.offsets.size == 6
    assert columns.nbytes == 6 * 21


BATCHES = st.lists(
    st.tuples(
        st.sampled_from([Codec.NONE, Codec.NONE, Codec.GZIP, Codec.ZSTD]),
        st.lists(st.tuples(st.none() | st.binary(max_size=9), st.booleans()), min_size=1, max_size=9),
        st.sampled_from(["data", "control", NOW - 1, NOW, NOW + 1]),
    ),
    max_size=5,
)
Batches = list[tuple[Codec, list[tuple[bytes | None, bool]], str | int]]


def encoded(batches: Batches) -> list[bytes]:
    bases = accumulate((len(records) for _, records, _ in batches), initial=10)
    return [
        encode_batch(
            [NOW] * len(records),
            [key for key, _ in records],
            [None if is_tombstone else b"v" for _, is_tombstone in records],
            codec=codec,
            base_offset=base,
            is_control=kind == "control",
            delete_horizon_ms=kind if isinstance(kind, int) else None,
        )
        for (codec, records, kind), base in zip(batches, bases, strict=False)
    ]


def expected_rows(batches: Batches, shift: int) -> list[Row]:
    """Return what is known of each record; the fingerprint of one without a key is undefined."""
    rows: list[Row] = []
    for _, records, kind in batches:
        for key, is_tombstone in records:
            flags = (
                TOMBSTONE * is_tombstone
                | KEYLESS * (key is None)
                | CONTROL_RECORD * (kind == "control")
                | HORIZON_PASSED * (isinstance(kind, int) and kind <= NOW)
            )
            data = np.frombuffer(key or b" ", np.uint8)
            words = [] if key is None else fingerprints(data, [0], [len(key)])[0]
            rows.append((words, 10 + shift + len(rows), flags))
    return rows


def known(rows: Sequence[Row]) -> list[Row]:
    return [([] if flags & KEYLESS else words, offset, flags) for words, offset, flags in rows]


@given(BATCHES, st.integers(1, 12), st.integers(-10, 2**40))
def test_the_records_fill_columns_one_after_the_other(batches: Batches, capacity: int, shift: int) -> None:
    """The caller empties full columns."""
    data = readable(b"".join(encoded(batches)))
    fingerprinter = Fingerprinter(SEED, now_ms=NOW)
    columns = Columns(capacity)
    found: list[Row] = []
    for _full in fingerprinter.fill(columns, data, fingerprinter.scan(data, shift), offset_shift=shift):
        assert columns.count == capacity
        found += contents(columns)
        columns.count = 0
    found += contents(columns)
    assert known(found) == expected_rows(batches, shift)


@given(BATCHES, BATCHES, st.integers(0, 3))
def test_older_records_are_inserted_before_others(newer: Batches, older: Batches, more: int) -> None:
    fingerprinter = Fingerprinter(SEED, now_ms=NOW)
    columns = Columns(1)
    count = sum(len(records) for _, records, _ in (*newer, *older))
    columns.begin_at_end(count + more)
    for batches, shift in ((newer, 1000), (older, 0)):
        data = readable(b"".join(encoded(batches)))
        found = fingerprinter.scan(data, shift)
        fingerprinter.restart()
        fingerprinter.fill_before(
            columns,
            open_batches(data, found.rows, fingerprinter.scratch),
            stored=data,
            record_count=found.record_count,
            offset_shift=shift,
        )
    assert columns.start == columns.offsets.size - count
    assert known(contents(columns)) == [*expected_rows(older, 0), *expected_rows(newer, 1000)]


def sized(codec: Codec, count: int, base: int) -> tuple[Bytes, int]:
    """Return a batch, and the size of its uncompressed records."""
    keys = [b"%03d" % each for each in range(count)]
    uncompressed = encode_batch([NOW] * count, keys, keys, base_offset=base)
    batch = encode_batch([NOW] * count, keys, keys, base_offset=base, codec=codec)
    return readable(batch), len(uncompressed) - 61


@pytest.mark.parametrize("is_filled_before", [False, True])
def test_the_largest_opened_array_is_known(*, is_filled_before: bool) -> None:
    """Uncompressed batches are read where they are."""
    fingerprinter = Fingerprinter(SEED, now_ms=NOW)
    columns = Columns(100)
    largest = 0
    base = 0
    for codec, count in ((Codec.NONE, 50), (Codec.ZSTD, 30), (Codec.GZIP, 40), (Codec.ZSTD, 20)):
        data, size = sized(codec, count, base)
        found = fingerprinter.scan(data, 0)
        if is_filled_before:
            columns.begin_at_end(100)
            runs = list(open_batches(data, found.rows, fingerprinter.scratch))
            fingerprinter.fill_before(columns, runs, stored=data, record_count=count, offset_shift=0)
        else:
            columns.count = 0
            assert not list(fingerprinter.fill(columns, data, found, offset_shift=0))
        largest = max(largest, size if codec else 0)
        assert fingerprinter.max_opened_bytes == largest
        base += count


def test_offsets_ascend_until_a_restart_and_are_never_negative() -> None:
    fingerprinter = Fingerprinter(SEED, now_ms=NOW)
    data, _ = sized(Codec.NONE, 3, 0)
    for _ in range(2):
        with pytest.raises(MalformedBatchError) as caught:
            fingerprinter.scan(data, -1)
        assert caught.value.fault is Fault.OFFSET_RANGE
        assert fingerprinter.scan(data, 0).next_offset == 3
        for shift in (0, 2):
            with pytest.raises(MalformedBatchError) as caught:
                fingerprinter.scan(data, shift)
            assert caught.value.fault is Fault.OFFSET_RANGE
        assert fingerprinter.scan(data, 3).next_offset == 6
        fingerprinter.restart()


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.SNAPPY, Codec.ZSTD])
def test_a_malformed_record_is_located(codec: Codec) -> None:
    """In a compressed batch, only the batch has a position."""
    good = [model.encode(model.batch_of([Record(n, 1, b"a", b"v")], codec=codec)) for n in range(3)]
    batch = model.batch_of([Record(n, 1, b"a", b"v") for n in (3, 4, 5)], codec=codec)
    records = [model.encode_record(record, batch) for record in batch.records]
    bad = model.encode_with_records(batch, records[0] + records[1][:-1] + b"\x04" + records[2])
    data = readable(b"".join(good) + bad)
    fingerprinter = Fingerprinter(SEED, now_ms=NOW)
    found = fingerprinter.scan(data, 0)
    with pytest.raises(MalformedBatchError) as caught:
        list(fingerprinter.fill(Columns(9), data, found, offset_shift=0))
    assert caught.value.fault is Fault.RECORD_FIELD
    within = 0 if codec else 61 + len(records[0])
    assert caught.value.position == len(b"".join(good)) + within
