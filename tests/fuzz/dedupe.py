"""Fuzz target: arbitrary bytes as batches, for both passes of deduplication."""

from __future__ import annotations

from pyroaring import BitMap64

from core.errors import CorruptDataError
from object_format.codecs.codec import Codec
from object_format.dedupe import (
    EarlyFilter,
    KeyTable,
    RewriteOptions,
    SurvivorFinder,
    Survivors,
    filter_batches,
)
from object_format.dedupe.buckets import BucketSplitter, BucketSurvivorFinder, read_blob
from object_format.errors import MalformedBatchError
from object_format.offset_set import OffsetSet
from object_format.record_batch.records import decode_batches
from tests.fuzz.harness import fuzz
from tests.fuzz.samples import NOW, logs, with_records

SEED = bytes(range(16))
TABLE = KeyTable(1 << 12)


def survivors_of(data: bytes) -> Survivors | None:
    """Return the survivors that pass 1 finds; None if the bytes are rejected."""
    finder = SurvivorFinder(TABLE, SEED, reaches_log_start=True, now_ms=NOW)
    finder.begin_section(unique_keys=False)
    try:
        finder.feed(data, offset_shift=3)
    except MalformedBatchError as error:
        assert error.fault
        return None
    finder.end_section()
    return finder.finish()


def filtered(data: bytes, survivors: Survivors, *, merge: bool) -> bytes | None:
    """Return the output of pass 2; None if the bytes are rejected."""
    try:
        written = filter_batches(
            data,
            survivors,
            offset_shift=3,
            leader_epoch=1,
            delete_horizon_ms=NOW,
            merge=merge,
            merged_codec=Codec.LZ4,
        )
    except MalformedBatchError as error:
        assert error.fault
        return None
    assert written.size == sum(map(len, written.buffers))
    return b"".join(written.buffers)


def check_passes(data: bytes) -> None:
    """Pass 2 accepts what pass 1 accepts. Its output is valid and contains exactly the survivors."""
    survivors = survivors_of(data)
    if survivors is None:
        return
    for merge in (False, True):
        written = filtered(data, survivors, merge=merge)
        assert written is not None
        offsets = [
            offset for columns in decode_batches(written, control=True) for offset in columns.offsets.tolist()
        ]
        assert offsets == list(survivors.offsets)


def check_early_filter(data: bytes) -> None:
    """The early filter writes the same bytes as pass 2."""
    early_filter = EarlyFilter(retained_bytes=4 << 20, output_bytes=1 << 20)
    early_filter.begin_partition(RewriteOptions(delete_horizon_ms=NOW, merged_codec=Codec.LZ4))
    finder = SurvivorFinder(TABLE, SEED, reaches_log_start=True, now_ms=NOW, early_filter=early_filter)
    finder.begin_section(unique_keys=False)
    try:
        finder.feed(data, offset_shift=3, leader_epoch=1)
        finder.end_section()
    except MalformedBatchError:
        assert survivors_of(data) is None
        return
    survivors = finder.finish()
    for piece in early_filter.sections[0].pieces:
        if piece is not None and survivors.exact:
            assert b"".join(piece.filtered.buffers) == filtered(data, survivors, merge=True)


def check_buckets(data: bytes) -> None:
    """Buckets give the same survivors as one table, unless a table is full."""
    splitter = BucketSplitter(SEED, bits=1, now_ms=NOW, chunk_records=50)
    try:
        blobs = [*splitter.feed(data, offset_shift=3), *splitter.flush()]
    except MalformedBatchError:
        assert survivors_of(data) is None
        return
    found = OffsetSet()
    exact = True
    for bucket in (0, 1):
        finder = BucketSurvivorFinder(TABLE, reaches_log_start=True)
        for blob in reversed([each for each in blobs if each.bucket == bucket]):
            finder.feed(blob.data)
        survivors = finder.finish()
        found.update(survivors.offsets)
        exact &= survivors.exact
    whole = survivors_of(data)
    assert whole is not None
    if exact and whole.exact:
        assert found == whole.offsets


def one_input(data: bytes) -> None:
    """Check both passes, and also pass 2 with unrelated survivors."""
    for batches in (data, with_records(data)):
        check_passes(batches)
        check_early_filter(batches)
        check_buckets(batches)
    others = Survivors(
        offsets=OffsetSet.of(BitMap64(data[:40])),
        tombstones=OffsetSet.of(BitMap64(data[:9]) & BitMap64(data[:40])),
        records_in=0,
        keys=0,
        keys_outside_table=0,
        tombstones_dropped=0,
        records_invalid=0,
        max_buffer_bytes=0,
    )
    for merge in (False, True):
        filtered(data, others, merge=merge)
    try:
        read_blob(data)
    except CorruptDataError:
        assert len(data) < 24 or len(data) % 16 != 8


if __name__ == "__main__":
    fuzz(one_input, [b"", *logs()])
