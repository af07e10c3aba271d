"""Merging of small batches: consumers see the same records."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.codecs.codec import Codec
from object_format.dedupe import filter_batches
from object_format.dedupe.rewrite import FRAME_OVERHEAD, GROWTH_SHIFT, RewriteOptions
from object_format.kernels.batches.layout import BATCH_OVERHEAD, KEEP_LEADER_EPOCH
from object_format.kernels.dedupe.merge import (
    MAX_MERGED_BYTES,
    MAX_MERGED_COMPRESSED_BYTES,
    SMALL_BYTES,
    SMALL_COMPRESSED_BYTES,
)
from object_format.record_batch.headers import scan_batches
from object_format.record_batch.records import Record
from tests.object_format import model, model_log
from tests.object_format.dedupe.test_dedupe import NOW, find, sections
from tests.object_format.model_log import Section

if TYPE_CHECKING:
    from collections.abc import Callable

    from object_format.dedupe.rewrite import FilteredBatches


def single_record_batches(
    count: int, *, value: bytes = b"v", codec: Codec = Codec.NONE, distance: int = 1
) -> list[model.Batch]:
    """Return batches of one record each. All survive."""
    return [
        replace(
            model.batch_of([Record(i * distance, NOW + i, b"%d" % i, value, (("h", b"x"),))], codec=codec),
            producer_id=5,
            producer_epoch=1,
            base_sequence=i,
        )
        for i in range(count)
    ]


def write(section: Section, codec: Codec | None, limit: int | None) -> FilteredBatches:
    """Return the output of pass 2 for a section whose records all survive."""
    return filter_batches(
        b"".join(section.stored()),
        find([section]),
        offset_shift=0,
        leader_epoch=0,
        delete_horizon_ms=None,
        merged_codec=codec,
        max_batch_bytes=limit,
    )


def merge(
    batches: list[model.Batch], codec: Codec | None = None, limit: int | None = None
) -> tuple[list[model.Batch], int]:
    """Return the output of pass 2 for batches whose records all survive, and the saved bytes."""
    written = write(Section(batches=tuple(batches)), codec, limit)
    return model.decode_all(b"".join(written.buffers)), written.merged_bytes_saved


@given(
    sections(),
    st.integers(0, 9),
    st.sampled_from([None, NOW, NOW + 9]),
    st.booleans(),
    st.none() | st.sampled_from(Codec),
)
def test_batches_with_equal_meaning_are_merged(
    log: list[Section], epoch: int, horizon: int | None, whole: bool, codec: Codec | None
) -> None:
    survivors = find(log, reaches_log_start=whole)
    kept = set(survivors.offsets)
    for section in log:
        written = filter_batches(
            b"".join(section.stored()),
            survivors,
            offset_shift=section.shift,
            leader_epoch=epoch,
            delete_horizon_ms=horizon,
            merged_codec=codec,
        )
        filtered = model_log.filtered(section.batches, kept, leader_epoch=epoch, horizon=horizon)
        expected = model_log.merged(filtered, codec)
        data = b"".join(written.buffers)
        assert model.decode_all(data) == expected
        assert written.size == len(data)
        assert (written.batch_count, written.record_count) == (
            len(expected),
            len(model.records_of(expected)),
        )
        assert written.max_timestamp == max((batch.max_timestamp for batch in expected), default=None)
        assert written.min_timestamp == model_log.min_timestamp(expected, section.batches)
        assert len(expected) < len(filtered) or not written.merged_bytes_saved


@pytest.mark.parametrize("codec", Codec)
def test_batches_of_one_record_are_merged(codec: Codec) -> None:
    made, saved = merge(single_record_batches(1000, codec=codec))
    assert len(made) == 1
    assert model.records_of(made) == model.records_of(single_record_batches(1000))
    assert (made[0].producer_id, made[0].base_sequence) == (-1, -1)
    assert saved > 1000 * 55


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(
    ("leader_epoch", "epochs", "merged"),
    [
        (KEEP_LEADER_EPOCH, (2, 2, 2, 2), 1),
        (KEEP_LEADER_EPOCH, (0, 0, 1, 3), 4),
        (0, (0, 0, 1, 3), 1),
        (5, (0, 0, 1, 3), 1),
    ],
)
def test_batches_that_keep_their_leader_epochs_are_merged_within_one_epoch_only(
    codec: Codec, leader_epoch: int, epochs: tuple[int, ...], merged: int
) -> None:
    """A file that was compacted before holds batches of several epochs, with final offsets.

    Batches that get one epoch, also epoch 0, are merged.
    """
    batches = [
        replace(batch, leader_epoch=epoch)
        for batch, epoch in zip(single_record_batches(4, codec=codec), epochs, strict=True)
    ]
    section = Section(batches=tuple(batches))
    written = filter_batches(
        b"".join(section.stored()),
        find([section]),
        offset_shift=0,
        leader_epoch=leader_epoch,
        delete_horizon_ms=None,
    )
    made = model.decode_all(b"".join(written.buffers))
    assert len(made) == merged
    assert model.records_of(made) == model.records_of(batches)
    assert {batch.leader_epoch for batch in made} == (
        set(epochs) if leader_epoch == KEEP_LEADER_EPOCH else {leader_epoch}
    )
    assert [batch.leader_epoch for batch in made] == sorted(batch.leader_epoch for batch in made)


def test_the_saved_bytes_are_counted() -> None:
    batches = single_record_batches(300)
    made, saved = merge(batches)
    before = sum(len(model.encode(batch)) for batch in batches)
    assert saved == before - sum(len(model.encode(batch)) for batch in made)


def test_the_memory_of_a_compression_is_counted() -> None:
    """The records exist twice then, uncompressed and compressed."""
    section = Section(batches=tuple(single_record_batches(3, value=noise(3000)(1))))
    written = write(section, Codec.ZSTD, None)
    (made,) = model.decode_all(b"".join(written.buffers))
    uncompressed = sum(len(model.encode_record(record, made)) for record in made.records)
    assert written.buffer_bytes == BATCH_OVERHEAD + uncompressed + written.size


def test_merged_batches_get_the_codec_of_the_topic() -> None:
    made, _saved = merge(single_record_batches(50, value=bytes(100)), Codec.ZSTD)
    assert [batch.attributes for batch in made] == [int(Codec.ZSTD)]
    made, _saved = merge(single_record_batches(50, value=bytes(100), codec=Codec.LZ4), Codec.NONE)
    assert [batch.attributes for batch in made] == [0]


@pytest.mark.parametrize(
    ("codec", "limit"), [(Codec.NONE, MAX_MERGED_BYTES), (Codec.LZ4, MAX_MERGED_COMPRESSED_BYTES)]
)
def test_merged_batches_stay_below_the_limit(codec: Codec, limit: int) -> None:
    """The limit applies to uncompressed records, even if the stored bytes are few."""
    value = bytes(3000)
    made, _saved = merge(single_record_batches(100, value=value, codec=codec))
    assert 300_000 / limit <= len(made) <= 300_000 / limit + 2
    for batch in made:
        assert sum(len(model.encode_record(record, batch)) for record in batch.records) <= limit
    assert model.records_of(made) == model.records_of(single_record_batches(100, value=value))


@given(
    sections(),
    st.sampled_from([None, NOW]),
    st.none() | st.sampled_from(Codec),
    st.integers(61, 400) | st.integers(600, 1000),
)
def test_no_merged_batch_exceeds_max_batch_bytes(
    log: list[Section], horizon: int | None, codec: Codec | None, limit: int
) -> None:
    """Each batch is either one filtered batch, unchanged, or consecutive filtered batches."""
    survivors = find(log)
    for section in log:
        written = filter_batches(
            b"".join(section.stored()),
            survivors,
            offset_shift=section.shift,
            leader_epoch=0,
            delete_horizon_ms=horizon,
            merged_codec=codec,
            max_batch_bytes=limit,
        )
        left = model_log.filtered(section.batches, set(survivors.offsets), leader_epoch=0, horizon=horizon)
        data = b"".join(written.buffers)
        made = model.decode_all(data)
        assert model.records_of(made) == model.records_of(left)
        assert written.batch_count == len(made)
        for batch, row in zip(made, scan_batches(readable(data)), strict=True):
            sources = [each for each in left if batch.base_offset <= each.base_offset < batch.next_offset]
            if len(sources) == 1:
                assert batch == sources[0]
                continue
            assert row["size"] <= limit
            assert batch == model_log.merge(sources, codec)


def batches_with_one_survivor(count: int, large: Callable[[int], bytes], codec: Codec) -> list[model.Batch]:
    """Return batches whose first record survives, and a batch that supersedes all other records."""
    batches = []
    for i in range(count):
        values = [(b"large %d" % i, large(i)), *((b"x%d" % j, b"v") for j in range(99))]
        records = [Record(100 * i + j, NOW, *pair, ()) for j, pair in enumerate(values)]
        batches.append(model.batch_of(records, codec=codec))
    last = [Record(100 * count + j, NOW, b"x%d" % j, b"w", ()) for j in range(99)]
    return [*batches, model.batch_of(last, codec=codec)]


def noise(size: int) -> Callable[[int], bytes]:
    """Return a function from numbers to random values."""
    return lambda i: random.Random(i).randbytes(size)


@pytest.mark.parametrize(
    ("codec", "merged_codec", "large", "limit"),
    [
        (Codec.NONE, None, noise(40_000), None),
        (Codec.NONE, None, noise(5000), 16_384),
        (Codec.ZSTD, None, noise(30_000), None),
        (Codec.ZSTD, None, noise(6000), 16_384),
        (Codec.LZ4, Codec.ZSTD, noise(6000), 16_384),
        (Codec.ZSTD, Codec.NONE, lambda i: b"ab%d" % i * 10_000, None),
        (Codec.ZSTD, Codec.NONE, lambda i: b"ab%d" % i * 1000, 16_384),
    ],
)
def test_estimates_of_uneven_records_do_not_exceed_the_limits(
    codec: Codec, merged_codec: Codec | None, large: Callable[[int], bytes], limit: int | None
) -> None:
    """A merged batch is limited by the final size of its records, and by its stored size."""
    batches = batches_with_one_survivor(8, large, codec)
    section = Section(batches=tuple(batches))
    data = b"".join(write(section, merged_codec, limit).buffers)
    unpacked = model.decode_all(data)
    sizes = scan_batches(readable(data))["size"].tolist()
    largest = max(scan_batches(readable(b"".join(section.stored())))["size"].tolist())
    for batch, size in zip(unpacked, sizes, strict=True):
        records_size = sum(len(model.encode_record(record, batch)) for record in batch.records)
        if len({record.offset // 100 for record in batch.records}) > 1:
            packed = (codec if merged_codec is None else merged_codec) is not Codec.NONE
            assert records_size <= (MAX_MERGED_COMPRESSED_BYTES if packed else MAX_MERGED_BYTES)
            assert size <= (limit or records_size + 600)
        else:
            assert size <= largest
    assert len(unpacked) < len(batches) or limit is None


@pytest.mark.parametrize(("horizons", "merged"), [((5, 5, 5), 1), ((5, 5, 6), 2), ((5, 6, 5), 3)])
def test_tombstones_are_merged_with_those_of_the_same_delete_horizon(
    horizons: tuple[int, ...], merged: int
) -> None:
    """A batch has one horizon; with another one, tombstones would be dropped too early or too late."""
    batches = [
        replace(
            model.batch_of([Record(number, NOW, b"%d" % number, None)]),
            base_timestamp=NOW + horizon,
            attributes=model_log.HORIZON,
        )
        for number, horizon in enumerate(horizons)
    ]
    made, _saved = merge(batches)
    assert [batch.attributes for batch in made] == [model_log.HORIZON] * merged
    assert {record.offset: batch.base_timestamp - NOW for batch in made for record in batch.records} == dict(
        enumerate(horizons)
    )


@pytest.mark.parametrize(("times", "merged"), [((5, 5, 5), 1), ((5, 5, 6), 2)])
def test_stamped_batches_are_merged_with_those_of_the_same_time(times: tuple[int, ...], merged: int) -> None:
    """The header has the time at which the broker appended all of the records."""
    batches = [
        model.batch_of(
            [Record(number, NOW + time, b"%d" % number, b"v")], attributes=model_log.LOG_APPEND_TIME
        )
        for number, time in enumerate(times)
    ]
    made, _saved = merge(batches)
    assert [batch.attributes for batch in made] == [model_log.LOG_APPEND_TIME] * merged
    assert model.records_of(made) == model.records_of(batches)


def test_batches_with_distant_offsets_are_not_merged() -> None:
    batches = single_record_batches(4, distance=2**30)
    made, _saved = merge(batches)
    assert [len(batch.records) for batch in made] == [2, 2]
    assert model.records_of(made) == model.records_of(batches)


@pytest.mark.parametrize(("distance", "merged"), [(2**31 - 1, 1), (2**31, 2)])
def test_the_offsets_of_a_merged_batch_have_deltas_of_32_bits(distance: int, merged: int) -> None:
    batches = single_record_batches(2, distance=distance)
    made, _saved = merge(batches)
    assert len(made) == merged
    assert model.records_of(made) == model.records_of(batches)


def test_large_batches_are_not_merged() -> None:
    large = model.batch_of([Record(5 + i, NOW, b"large %d" % i, bytes(100)) for i in range(50)])
    small = single_record_batches(4)
    following = [model_log.moved(batch, 100) for batch in small]
    following = [
        replace(batch, records=tuple(replace(each, key=b"following %d" % i) for each in batch.records))
        for i, batch in enumerate(following)
    ]
    made, _saved = merge([*small, large, *following])
    assert [len(batch.records) for batch in made] == [4, 50, 4]
    assert made[1] == large


def batch_of_size(size: int, codec: Codec) -> model.Batch:
    """Return a batch of one record, at offset 0, that is stored in so many bytes."""
    for length in range(size):
        value = random.Random(1).randbytes(size - 61 - length)
        batch = model.batch_of([Record(0, NOW, b"k", value)], codec=codec)
        if len(model.encode(batch)) == size:
            return batch
    raise AssertionError(f"no batch has {size} bytes")


@pytest.mark.parametrize(
    ("codec", "limit"), [(Codec.NONE, SMALL_BYTES), (Codec.ZSTD, SMALL_COMPRESSED_BYTES)]
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_batch_below_the_limit_is_small(codec: Codec, limit: int, *, is_first: bool) -> None:
    other = model.batch_of([Record(0, NOW, b"other", b"v")], codec=codec)
    for size, merged in ((limit - 1, 1), (limit, 2)):
        pair = [batch_of_size(size, codec), other]
        batches = pair if is_first else pair[::-1]
        made, _saved = merge([batches[0], model_log.moved(batches[1], 1)])
        assert len(made) == merged


def test_the_size_of_a_batch_that_loses_records_is_estimated_by_their_number() -> None:
    """One of two records of equal size survives. Their batch is larger than a small one."""
    values = {}
    for length in range(SMALL_BYTES - 200, SMALL_BYTES):
        record = Record(0, NOW, b"a", bytes(length))
        values[len(model.encode_record(record, model.batch_of([record])))] = bytes(length)
    after = model.batch_of([Record(2, NOW, b"c", b"v")])
    newer = model.batch_of([Record(3, NOW, b"b", bytes(SMALL_BYTES))])
    for size, merged in ((SMALL_BYTES - 1, 2), (SMALL_BYTES, 3)):
        value = values[size - BATCH_OVERHEAD]
        batch = model.batch_of([Record(0, NOW, b"a", value), Record(1, NOW, b"b", value)])
        made, _saved = merge([batch, after, newer])
        assert len(made) == merged
        assert [record.offset for each in made for record in each.records] == [0, 2, 3]


@pytest.mark.parametrize("times", [(0, 0, 0), (0, 0, 64), (0, 64, 0), (5, 0, 0)], ids=str)
def test_a_merged_batch_may_fill_the_limit_and_not_more(times: tuple[int, ...]) -> None:
    """A record with another delta may be longer than before. The plan's estimate is too low then."""
    batches = [
        model.batch_of([Record(number, NOW + time, b"%d" % number, b"v")])
        for number, time in enumerate(times)
    ]
    whole = len(model.encode(model_log.merge(batches, None)))
    for limit, merged in ((whole, 1), (whole - 1, 2)):
        made, _saved = merge(batches, Codec.NONE, limit)
        assert len(made) == merged
        assert model.records_of(made) == model.records_of(batches)


@given(st.sets(st.integers(0, 14)), st.integers(0, 3))
def test_the_saved_bytes_of_uncompressed_batches_that_lose_records_are_exact(
    superseded: set[int], large: int
) -> None:
    """One of the five batches may be too large to be merged."""
    batches = []
    for number in range(5):
        value = bytes(SMALL_BYTES if number == large + 1 else 20)
        records = [Record(3 * number + each, NOW, b"%d" % (3 * number + each), value) for each in range(3)]
        batches.append(model.batch_of(records))
    # They are in one batch, which is too large to be merged.
    newer = [
        Record(20 + each, NOW, b"%d" % each, bytes(0 if index else 2 * SMALL_BYTES))
        for index, each in enumerate(sorted(superseded))
    ]
    section = Section(batches=(*batches, *([model.batch_of(newer)] if newer else [])))
    kept = set(range(15)) - superseded | {each.offset for each in newer}
    filtered = model_log.filtered(section.batches, kept, leader_epoch=0, horizon=None)
    written = write(section, None, None)
    made = model.decode_all(b"".join(written.buffers))
    assert model.records_of(made) == model.records_of(filtered)
    sizes = [sum(len(model.encode(batch)) for batch in each) for each in (filtered, made)]
    assert written.merged_bytes_saved == sizes[0] - sizes[1]
    assert (written.batch_count, written.size) == (len(made), sizes[1])


@pytest.mark.parametrize("size", [24, 300, 4000])
def test_a_small_batch_that_is_not_merged_may_be_longer_than_its_records(size: int) -> None:
    """Batches are opened a mebibyte at a time. The last one is alone in its group, and is incompressible."""
    noise = random.Random(size).randbytes(size)
    batches = single_record_batches(31, value=b"v" * 33_000, codec=Codec.LZ4)
    last = model.batch_of([Record(31, NOW + 31, b"31", noise)], codec=Codec.LZ4)
    written, _ = merge([*batches, replace(last, producer_id=5, producer_epoch=1, base_sequence=31)])
    assert [record.value for batch in written for record in batch.records] == [b"v" * 33_000] * 31 + [noise]


@given(st.integers(2_000, 1 << 27))
def test_merged_batches_stay_within_the_limit_after_compression(max_bytes: int) -> None:
    """Compressed records may grow; uncompressed ones may fill the batch."""

    def limits(codec: Codec | None) -> tuple[int, int]:
        options = RewriteOptions(delete_horizon_ms=None, merged_codec=codec, max_batch_bytes=max_bytes)
        return options.merge_limits

    fill = min(MAX_MERGED_BYTES, max_bytes - BATCH_OVERHEAD)
    assert limits(Codec.NONE) == (fill, fill)
    assert limits(None)[0] == fill
    for limit in (limits(None)[1], *limits(Codec.ZSTD)):
        assert 0 < limit + (limit >> GROWTH_SHIFT) + FRAME_OVERHEAD + BATCH_OVERHEAD <= max_bytes
