"""Records of batches with any codecs are opened together, within any memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.record_batch.decompression import (
    UNTIMED,
    Scratch,
    already_open_batches,
    decompress_batches,
    open_all_batches,
    open_batches,
    runs_by_compression,
)
from object_format.record_batch.headers import scan_batches
from object_format.record_batch.records import encode_batch
from tests.object_format.scratch_memory import limit_scratch_memory

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from object_format.buffers import Bytes
    from object_format.record_batch.headers import BatchRows

LOGS = st.lists(st.tuples(st.sampled_from(Codec), st.integers(0, 200)), min_size=1, max_size=9)
"""Codec of each batch, and the size of its record's value."""

AMPLE = 1 << 10
"""Additional memory: a kernel stops if a batch as long as the previous one would not fit."""

SCRATCH = st.sampled_from([1, 150, 400, 1 << 20])


def encoded(log: Sequence[tuple[Codec, int]]) -> tuple[Bytes, list[bytes]]:
    """Return the batches, and the uncompressed records of each."""
    batches = [
        [
            encode_batch([1], [b"%d" % number], [bytes([number]) * size], base_offset=number, codec=each)
            for each in (codec, Codec.NONE)
        ]
        for number, (codec, size) in enumerate(log)
    ]
    return readable(b"".join(batch for batch, _ in batches)), [plain[61:] for _, plain in batches]


def opened(runs: Iterable[tuple[Bytes, BatchRows]]) -> list[bytes]:
    return [
        bytes(records[row["records_start"] : row["records_end"]]) for records, rows in runs for row in rows
    ]


@given(LOGS, SCRATCH, st.booleans())
def test_batches_are_opened_in_order(log: Sequence[tuple[Codec, int]], memory: int, own: bool) -> None:
    data, expected = encoded(log)
    with pytest.MonkeyPatch.context() as patch:
        limit_scratch_memory(patch, memory)
        assert opened(open_batches(data, scan_batches(data), Scratch() if own else None)) == expected
        assert opened(list(open_batches(data, scan_batches(data)))) == expected  # no array is used again


def test_records_are_in_the_callers_memory() -> None:
    data, expected = encoded([(Codec.LZ4, 90), (Codec.LZ4, 100)])
    scratch = Scratch()

    ((records, rows),) = open_batches(data, scan_batches(data), scratch)

    assert opened([(records, rows)]) == expected
    assert np.shares_memory(records, scratch.array)


def test_no_batches_have_no_runs() -> None:
    data = readable(b"")
    assert list(open_batches(data, scan_batches(data))) == []


@given(LOGS)
def test_a_run_has_compressed_batches_or_others(log: Sequence[tuple[Codec, int]]) -> None:
    data, _ = encoded(log)
    rows = scan_batches(data)

    runs = list(runs_by_compression(rows, np.arange(rows.size)))

    kinds = [codec is not Codec.NONE for codec, _ in log]
    assert [kind for first, end, kind in runs for _ in range(first, end)] == kinds
    assert [first for first, _, _ in runs] == [
        number for number, kind in enumerate(kinds) if number == 0 or kinds[number - 1] != kind
    ]


@given(LOGS, st.integers(0, 5))
def test_all_batches_are_opened_if_they_fit(log: Sequence[tuple[Codec, int]], used: int) -> None:
    data, expected = encoded(log)
    size = sum(len(each) for each, (codec, _) in zip(expected, log, strict=True) if codec is not Codec.NONE)

    memory = np.empty(used + size + AMPLE, np.uint8)
    runs, end = open_all_batches(data, scan_batches(data), memory, used, UNTIMED)

    assert runs is not None
    assert (opened(runs), end) == (expected, used + size)
    if size:
        assert open_all_batches(data, scan_batches(data), memory[: used + size - 1], used, UNTIMED) == (
            None,
            0,
        )


@given(LOGS, SCRATCH)
def test_open_batches_are_divided_as_if_they_were_opened_then(
    log: Sequence[tuple[Codec, int]], memory: int
) -> None:
    data, expected = encoded([(codec, size) for codec, size in log if codec is not Codec.NONE])
    rows = scan_batches(data)
    indexes = np.arange(rows.size)
    with pytest.MonkeyPatch.context() as patch:
        limit_scratch_memory(patch, memory)
        ranges = [(first, end) for first, end, _ in decompress_batches(data, rows, indexes, Scratch())]
        records = np.empty(sum(map(len, expected)) + AMPLE, np.uint8)
        open_all_batches(data, rows, records, 0, UNTIMED)

        again = list(already_open_batches(data, rows, indexes, readable(records.data)))

    assert [(first, end) for first, end, _ in again] == ranges
    assert opened((slot[0], rows[first:end]) for first, end, slot in again) == expected
