"""Pass 2: the groups in which it works, the batches that it opens, and the memory that it reports."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.codecs.codec import Codec, decompress
from object_format.dedupe import filter as filtering
from object_format.dedupe import filter_batches
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.layout import BATCH_OVERHEAD, KEEP_LEADER_EPOCH
from object_format.record_batch.decompression import CodecTimers, Scratch
from object_format.record_batch.headers import iter_headers
from object_format.record_batch.records import encode_batch
from tests.object_format.dedupe.test_dedupe import NOW, find
from tests.object_format.dedupe.test_long_batches import survivors_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from object_format.dedupe import FilteredBatches

MANY = 1000
CODECS = [Codec.GZIP, Codec.LZ4, Codec.ZSTD]


class Calls:
    """Scratch memory that counts the calls of the codec libraries."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.scratch = Scratch(
            CodecTimers(lambda: self._counted("decompress"), lambda: self._counted("compress"))
        )

    @contextmanager
    def _counted(self, name: str) -> Iterator[None]:
        self.made.append(name)
        yield


def batch(first: int, codec: Codec, count: int = 10, *, value: bytes | None = b"value") -> bytes:
    keys = [b"%d" % (first + each) for each in range(count)]
    return encode_batch([NOW] * count, keys, [value] * count, base_offset=first, codec=codec)


def opened_size(stored: bytes) -> int:
    """Return the size of a batch's uncompressed records."""
    return memoryview(decompress(Codec(stored[22] & 7), stored[BATCH_OVERHEAD:])).nbytes


def write(
    data: bytes,
    kept: set[int],
    *,
    scratch: Scratch | None = None,
    horizon: int | None = None,
    merged_codec: Codec | None = None,
) -> FilteredBatches:
    return filter_batches(
        data,
        survivors_at(kept, kept if horizon is not None else set()),
        offset_shift=0,
        leader_epoch=0,
        delete_horizon_ms=horizon,
        merge=merged_codec is not None,
        merged_codec=merged_codec,
        scratch=scratch,
    )


def test_nothing_takes_no_memory() -> None:
    for leader_epoch in (0, KEEP_LEADER_EPOCH):
        written = filter_batches(
            b"", find([]), offset_shift=0, leader_epoch=leader_epoch, delete_horizon_ms=None
        )
        assert (written.buffers, written.buffer_bytes) == ((), 0)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("max_records", [9, MANY])
def test_a_batch_without_survivors_is_skipped_unopened(
    codec: Codec, max_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filtering, "MAX_RECORDS", max_records)
    calls = Calls()
    written = write(batch(0, codec), {10, 11}, scratch=calls.scratch)
    assert (written.buffers, written.buffer_bytes, calls.made) == ((), 0, [])


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("max_records", [9, MANY])
def test_a_batch_with_all_records_is_copied_unopened(
    codec: Codec, max_records: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy is the only memory."""
    monkeypatch.setattr(filtering, "MAX_RECORDS", max_records)
    calls = Calls()
    data = batch(0, codec)
    written = write(data, set(range(10)), scratch=calls.scratch)
    assert b"".join(written.buffers) == data
    assert (written.buffer_bytes, calls.made) == (len(data), [])


@pytest.mark.parametrize("codec", CODECS)
def test_of_compressed_batches_only_those_that_lose_records_are_opened(codec: Codec) -> None:
    """The result is planned for all of their records, and exists next to the opened ones."""
    stored = [batch(first, codec) for first in (0, 10, 20, 30)]
    calls = Calls()
    written = write(b"".join(stored), {*range(15), *range(30, 40)}, scratch=calls.scratch)
    assert calls.made == ["decompress", "compress"]
    opened = opened_size(stored[1])
    planned = len(stored[0]) + BATCH_OVERHEAD + opened + len(stored[3])
    assert written.buffer_bytes == max(opened + planned, planned - 5 * opened // 10 + written.size)
    assert (written.batch_count, written.record_count, written.merged_bytes_saved) == (3, 25, 0)


@pytest.mark.parametrize(("max_records", "is_exact"), [(9, False), (10, True)])
def test_few_uncompressed_batches_are_written_in_the_memory_of_the_result(
    max_records: int, monkeypatch: pytest.MonkeyPatch, *, is_exact: bool
) -> None:
    """More records are written in groups, whose memory is planned for all records."""
    monkeypatch.setattr(filtering, "MAX_RECORDS", max_records)
    data = batch(0, Codec.NONE, 5) + batch(5, Codec.NONE, 5)
    written = write(data, {1, 2, 5, 7})
    assert written.buffer_bytes == (written.size if is_exact else len(data) // 2)


@pytest.mark.parametrize("codec", [Codec.NONE, *CODECS])
def test_a_long_batch_is_written_in_the_memory_of_the_result(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is next to its opened records, or to the compressed result."""
    monkeypatch.setattr(filtering, "MAX_RECORDS", 9)
    before, data = batch(0, codec), batch(10, codec)
    kept = set(range(10, 20, 2))
    calls = Calls()
    written = write(before + data, kept, scratch=calls.scratch)
    result = BATCH_OVERHEAD + opened_size(data) // 2
    if codec is Codec.NONE:
        assert (written.buffer_bytes, calls.made) == (result, [])
    else:
        assert written.buffer_bytes == result + max(opened_size(data), written.size)
        assert calls.made == ["decompress", "compress"]
    assert written.merged_bytes_saved == 0


@pytest.mark.parametrize("codec", CODECS)
def test_a_long_batch_that_would_become_too_large_is_opened_and_copied(
    codec: Codec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tombstones get no horizon; see `test_long_batches`."""
    data = batch(0, codec, value=None)
    opened = opened_size(data)
    monkeypatch.setattr(filtering, "MAX_RECORDS", 9)
    monkeypatch.setattr("object_format.dedupe.long_batches.MAX_DECOMPRESSED_BATCH_BYTES", opened)
    written = write(data, set(range(10)), horizon=NOW + 10**9)
    assert b"".join(written.buffers) == data
    assert written.buffer_bytes == max(opened, len(data))


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_uncompressed_records_that_are_merged_and_compressed_exist_twice(codec: Codec) -> None:
    """They are read where they are. Merging may change the deltas of each by 14 bytes."""
    data = batch(0, Codec.NONE) + batch(10, Codec.NONE)
    calls = Calls()
    written = write(data, set(range(20)), merged_codec=codec, scratch=calls.scratch)
    assert calls.made == ["compress"]
    merged = len(batch(0, Codec.NONE, 20))
    assert written.buffer_bytes == max(len(data) + 14 * 20, merged + written.size)


@pytest.mark.parametrize("counts", [[20], [5, 400]])
def test_uncompressed_batches_that_are_not_merged_stay_uncompressed(counts: list[int]) -> None:
    """Only the filtered batch is planned for all of its records. The other one is too large to be merged."""
    stored = [batch(sum(counts[:index]), Codec.NONE, count) for index, count in enumerate(counts)]
    calls = Calls()
    written = write(
        b"".join(stored), set(range(1, sum(counts))), merged_codec=Codec.ZSTD, scratch=calls.scratch
    )
    assert calls.made == []
    assert record_counts(b"".join(written.buffers)) == [counts[0] - 1, *counts[1:]]
    assert written.buffer_bytes == sum(map(len, stored))


@given(st.lists(st.integers(1, 4), max_size=9), st.integers(1, 9), st.sampled_from([Codec.NONE, Codec.ZSTD]))
def test_batches_are_merged_within_groups_of_bounded_size(
    counts: list[int], max_records: int, codec: Codec
) -> None:
    """A batch with more records is alone in its group."""
    groups: list[int] = []
    stored: list[bytes] = []
    for count in counts:
        stored.append(batch(sum(counts[: len(stored)]), codec, count))
        if groups and groups[-1] + count <= max_records:
            groups[-1] += count
        else:
            groups.append(count)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(filtering, "MAX_RECORDS", max_records)
        written = write(b"".join(stored), set(range(sum(counts))), merged_codec=codec)
    assert record_counts(b"".join(written.buffers)) == groups


def record_counts(data: bytes) -> list[int]:
    return [header.record_count for _, header in iter_headers(data)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(
    ("epochs", "merged"),
    [((2, 2, 2), 1), ((0, 1, 1), 3), ((0, 0, 1), 3), ((0, 0, 256), 3), ((0, 2**24, 2**24), 3), ((3,), 1)],
)
def test_the_first_and_the_last_leader_epoch_decide_about_merging(
    codec: Codec, epochs: Sequence[int], merged: int
) -> None:
    """Epochs rise along a log."""
    stored = [
        encode_batch([NOW], [b"%d" % offset], [b"v"], base_offset=offset, codec=codec, leader_epoch=epoch)
        for offset, epoch in enumerate(epochs)
    ]
    written = filter_batches(
        b"".join(stored),
        survivors_at(set(range(len(epochs))), set()),
        offset_shift=0,
        leader_epoch=KEEP_LEADER_EPOCH,
        delete_horizon_ms=None,
    )
    headers = [header for _, header in iter_headers(b"".join(written.buffers))]
    assert len(headers) == merged
    assert {header.partition_leader_epoch for header in headers} == set(epochs)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("merged_codec", [None, Codec.LZ4])
@pytest.mark.parametrize("max_records", [1, MANY])
@pytest.mark.parametrize("index", [0, 1])
def test_the_batch_with_more_survivors_than_records_is_named(
    codec: Codec, merged_codec: Codec | None, max_records: int, index: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its header alone proves that pass 1 has read other bytes."""
    monkeypatch.setattr(filtering, "MAX_RECORDS", max_records)
    stored = [
        encode_batch([NOW] * 2, [b"a", b"b"], [b"v"] * 2, base_offset=base, offset_deltas=[0, 2], codec=codec)
        for base in (0, 3)
    ]
    kept = {0, 2, 3, 5, 1 + 3 * index}
    with pytest.raises(MalformedBatchError) as caught:
        write(b"".join(stored), kept, merged_codec=merged_codec)
    assert caught.value.fault is Fault.SURVIVORS
    assert caught.value.position == index * len(stored[0])
