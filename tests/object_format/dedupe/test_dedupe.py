"""Both passes, compared with a model that uses dictionaries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import FatalError, InvalidInputError
from object_format.codecs.codec import Codec
from object_format.dedupe import MAX_RETAINED_RECORDS, KeyTable, SurvivorFinder, Survivors, filter_batches
from object_format.errors import Fault, MalformedBatchError
from object_format.record_batch.records import Record, encode_batch
from tests.object_format import model, model_log
from tests.object_format.model_log import Section
from tests.object_format.strategies import BLOBS, record_lists

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import DrawFn

NOW = 1_700_000_050_000
SEED = bytes(range(16))
FEW_KEYS = st.sampled_from([b"", b"a", b"b", b"c", b"key", b"k" * 40])
KEYS: st.SearchStrategy[bytes | None] = st.one_of(FEW_KEYS, st.none())
LARGE = KeyTable(1 << 16)


@st.composite
def log_batches(draw: DrawFn, first_offset: int, *, keys: st.SearchStrategy[bytes | None]) -> model.Batch:
    values = draw(st.sampled_from([BLOBS, st.none(), st.binary(max_size=40)]))
    batch = model.batch_of(
        draw(record_lists(first_offset=first_offset, keys=keys, values=values)),
        codec=draw(st.sampled_from(Codec)),
    )
    batch = replace(batch, last_offset_delta=batch.last_offset_delta + draw(st.integers(0, 3)))
    kind = draw(
        st.sampled_from(
            ["unmarked", "unmarked", "unmarked", "control", "transactional", "horizon", "stamped"]
        )
    )
    if kind == "control":
        return replace(batch, attributes=batch.attributes | model_log.CONTROL)
    if kind == "transactional":
        return replace(batch, attributes=batch.attributes | model_log.TRANSACTIONAL)
    if kind == "horizon":
        horizon = draw(st.sampled_from([NOW - 1, NOW, NOW + 1]))
        return replace(batch, attributes=batch.attributes | model_log.HORIZON, base_timestamp=horizon)
    if kind == "stamped":
        records = tuple(replace(record, timestamp=batch.max_timestamp) for record in batch.records)
        return replace(batch, attributes=batch.attributes | 8, records=records)
    return batch


@st.composite
def sections(draw: DrawFn, *, keys: st.SearchStrategy[bytes | None] = KEYS) -> list[Section]:
    """Return a partition's sections in log order."""
    made = []
    offset = draw(st.integers(0, 2**33))
    for _ in range(draw(st.integers(1, 4))):
        shift = draw(st.sampled_from([0, offset]))
        batches = []
        for _ in range(draw(st.integers(0, 4))):
            offset += draw(st.sampled_from([0, 0, 0, 7, 70_000]))
            batches.append(draw(log_batches(offset, keys=keys)))
            offset = batches[-1].next_offset
        seen = [record.key for batch in batches for record in batch.records]
        unique = draw(st.booleans()) and len(set(seen)) == len(seen)
        made.append(Section(batches=tuple(batches), shift=shift, unique_keys=unique))
    return made


def find(
    log: Sequence[Section],
    *,
    table: KeyTable = LARGE,
    reaches_log_start: bool = True,
    expected_records: int | None = None,
    max_retained_records: int = 1_000_000,
) -> Survivors:
    finder = SurvivorFinder(
        table,
        SEED,
        reaches_log_start=reaches_log_start,
        now_ms=NOW,
        expected_records=expected_records,
        max_retained_records=max_retained_records,
    )
    for section in reversed(log):
        finder.begin_section(unique_keys=section.unique_keys)
        stored = section.stored()
        for at in range(0, len(stored), 2):
            finder.feed(memoryview(b"".join(stored[at : at + 2])), offset_shift=section.shift)
        finder.end_section()
    return finder.finish()


def all_records(log: Sequence[Section]) -> list[Record]:
    return [record for section in log for batch in section.batches for record in batch.records]


@given(sections(), st.booleans(), st.none() | st.integers(0, 200))
def test_survivors_equal_the_dictionary_model(log: list[Section], whole: bool, more: int | None) -> None:
    records = all_records(log)
    expected = model_log.survivors(log, reaches_log_start=whole, now_ms=NOW)
    found = find(log, reaches_log_start=whole, expected_records=None if more is None else len(records) + more)
    assert set(found.offsets) == expected
    assert set(found.tombstones) == {
        record.offset
        for section in log
        for batch in section.batches
        if not model_log.is_control(batch)
        for record in batch.records
        if record.value is None and record.offset in expected
    }
    keyed = [
        record.key
        for section in log
        for batch in section.batches
        if not model_log.is_control(batch)
        for record in batch.records
    ]
    assert found.records_in == len(records)
    assert found.records_out == len(expected)
    assert found.keys == len(set(keyed) - {None})
    assert found.records_invalid == keyed.count(None)
    newest = model_log.survivors(log, reaches_log_start=False, now_ms=NOW)
    assert found.tombstones_dropped == len(newest - expected)
    assert found.exact


@given(sections(), st.booleans())
def test_keys_without_older_records_are_not_added_to_the_table(log: list[Section], whole: bool) -> None:
    """Sections of a cleaned log are processed one by one, in any order."""
    seen: set[bytes | None] = set()
    no_older_records = 0
    for section in log:
        keys = [record.key for record in all_records([section])]
        if len(set(keys)) < len(keys) or seen & set(keys):
            break
        seen |= set(keys)
        no_older_records += 1
    finder = SurvivorFinder(LARGE, SEED, reaches_log_start=whole, now_ms=NOW)
    for section in reversed(log[no_older_records:]):
        feed_section(finder, section, no_older_records=False)
    results = [finder.finish()]
    remembered = results[0].keys
    for section in log[:no_older_records]:
        feed_section(finder, section, no_older_records=True)
        results.append(finder.finish())

    assert set().union(*(result.offsets for result in results)) == model_log.survivors(
        log, reaches_log_start=whole, now_ms=NOW
    )
    assert sum(result.records_in for result in results) == len(all_records(log))
    assert all(result.keys == remembered for result in results)
    assert results[0].exact


def feed_section(finder: SurvivorFinder, section: Section, *, no_older_records: bool) -> None:
    finder.begin_section(unique_keys=False, no_older_records=no_older_records)
    for batch in section.stored():
        finder.feed(batch, offset_shift=section.shift)
    finder.end_section()


@given(sections(), st.integers(0, 9), st.sampled_from([None, NOW + 9]), st.booleans())
def test_pass_2_writes_the_same_batches_as_kafkas_filter(
    log: list[Section], epoch: int, horizon: int | None, whole: bool
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
            merge=False,
        )
        data = b"".join(written.buffers)
        expected = model_log.filtered(section.batches, kept, leader_epoch=epoch, horizon=horizon)
        assert model.decode_all(data) == expected
        assert written.size == len(data)
        assert (written.batch_count, written.record_count) == (
            len(expected),
            len(model.records_of(expected)),
        )
        assert written.max_timestamp == max((batch.max_timestamp for batch in expected), default=None)
        assert written.min_timestamp == model_log.min_timestamp(expected, section.batches)


@given(sections(keys=FEW_KEYS), st.booleans())
def test_compacting_a_compacted_log_changes_nothing(log: list[Section], merge: bool) -> None:
    """The bytes are equal once all batches that may be merged have been seen together."""

    def compact(data: bytes, survivors: Survivors, shift: int) -> bytes:
        return b"".join(
            filter_batches(
                data,
                survivors,
                offset_shift=shift,
                leader_epoch=1,
                delete_horizon_ms=NOW + 9,
                merge=merge,
            ).buffers
        )

    first = find(log, reaches_log_start=False)
    once = b"".join(compact(b"".join(section.stored()), first, section.shift) for section in log)
    finder = SurvivorFinder(LARGE, SEED, reaches_log_start=False, now_ms=NOW)
    finder.begin_section(unique_keys=True)
    finder.feed(once, offset_shift=0)
    finder.end_section()
    second = finder.finish()
    assert second.offsets == first.offsets
    twice = compact(once, second, 0)
    assert model.records_of(model.decode_all(twice)) == model.records_of(model.decode_all(once))
    assert merge or twice == once
    assert compact(twice, second, 0) == twice


@given(sections(keys=st.binary(min_size=1, max_size=2)), st.booleans(), st.integers(16, 40))
def test_a_small_table_loses_no_newest_record(log: list[Section], whole: bool, slots: int) -> None:
    found = find(log, table=KeyTable(slots * 12), reaches_log_start=whole)
    check_survivors(log, found, whole=whole)


@given(sections(), st.booleans(), st.integers(1, 5))
def test_sections_too_long_to_retain_lose_no_newest_record(
    log: list[Section], whole: bool, max_retained: int
) -> None:
    """The step is patched, as the limit of retained records is at least one step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("object_format.dedupe.survivor_finder._STEP_RECORDS", max_retained)
        found = find(log, reaches_log_start=whole, max_retained_records=max_retained)
    check_survivors(log, found, whole=whole)


@given(sections(keys=st.sampled_from([b"a", b"b", b"c"])), st.booleans())
def test_a_long_section_with_few_keys_is_exact(log: list[Section], whole: bool) -> None:
    """Superseded records are removed, so that the number of keys matters and not the number of records."""
    records_in = len(all_records(log))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("object_format.dedupe.survivor_finder._STEP_RECORDS", 5)
        found = find(log, reaches_log_start=whole, max_retained_records=5)
    assert found.exact
    assert found.records_in == records_in
    assert set(found.offsets) == model_log.survivors(log, reaches_log_start=whole, now_ms=NOW)


def test_each_job_deduplicates_another_sample_of_a_long_section(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The seed of the job selects the sampled keys, so that duplicates disappear after several jobs."""
    monkeypatch.setattr("object_format.dedupe.survivor_finder._STEP_RECORDS", 100)
    offsets = np.arange(1000)
    left = []
    for job in range(30):
        finder = SurvivorFinder(
            LARGE, bytes([job] * 16), reaches_log_start=True, now_ms=NOW, max_retained_records=200
        )
        finder.begin_section(unique_keys=False)
        for offset in offsets.tolist():
            key = b"%d" % (offset % 500)
            finder.feed(encode_batch([1], [key], [b"v"], base_offset=offset), offset_shift=0)
        finder.end_section()
        found = finder.finish()
        assert found.records_in == offsets.size
        offsets = np.array(list(found.offsets))
        assert set(range(500, 1000)) <= set(offsets.tolist())
        left.append(offsets.size - 500)
    assert left[0] < 450
    assert left[9] < left[0] // 2
    assert left[-1] < 25


def test_a_section_above_the_retention_limit_with_few_keys_is_exact() -> None:
    """With too many keys, no newest record is lost."""
    for keys, exact in ((100_000, True), (2_000_003, False)):
        count = MAX_RETAINED_RECORDS + 200_000
        finder = SurvivorFinder(KeyTable(1 << 26), SEED, reaches_log_start=True, now_ms=NOW)
        finder.begin_section(unique_keys=False)
        step = 20_000
        for start in range(0, count, step):
            names = [b"%d" % (offset % keys) for offset in range(start, start + step)]
            batch = encode_batch([1] * step, names, [b""] * step, base_offset=start)
            finder.feed(batch, offset_shift=0)
        finder.end_section()
        found = finder.finish()
        assert found.records_in == count
        assert found.exact is exact
        assert found.max_buffer_bytes < 64 << 20
        assert found.offsets.count(0, count - keys - 1) == found.records_out - keys
        assert (found.records_out == keys) is exact


@given(sections())
def test_growing_columns_do_not_change_the_survivors(log: list[Section]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("object_format.dedupe.survivor_finder._STEP_RECORDS", 1)
        found = find(log)
    assert found.offsets == find(log).offsets
    assert found.exact


@st.composite
def crowded_logs(draw: DrawFn) -> list[Section]:
    """Return a log whose keys do not fit into the smallest table, and in which many tombstones have expired.

    The kinds of records are drawn in runs, because a delete horizon belongs to a batch.
    """
    runs = draw(
        st.lists(
            st.tuples(
                st.sampled_from(["value", "value", "expired", "expired", "kept"]),
                st.lists(st.integers(0, 39), min_size=4, max_size=20),
            ),
            min_size=3,
            max_size=8,
        )
    )
    sections: list[Section] = []
    offset = 0
    for kind, keys in runs:
        value = b"v" if kind == "value" else None
        records = [Record(offset + at, 1, b"%d" % key, value) for at, key in enumerate(keys)]
        batch = model.batch_of(records)
        if kind != "value":
            horizon = NOW - 1 if kind == "expired" else NOW + 1
            batch = replace(batch, attributes=batch.attributes | model_log.HORIZON, base_timestamp=horizon)
        sections.append(Section(batches=(batch,)))
        offset = batch.next_offset
    return sections


@given(crowded_logs(), st.booleans())
def test_a_full_table_brings_no_deleted_key_back(log: list[Section], whole: bool) -> None:
    """A tombstone whose key did not fit stays: an older record of the key is kept for the same reason."""
    found = find(log, table=KeyTable(16 * 12), reaches_log_start=whole)
    check_survivors(log, found, whole=whole)


@given(crowded_logs(), st.booleans(), st.integers(1, 8))
def test_a_long_section_brings_no_deleted_key_back(
    log: list[Section], whole: bool, max_retained: int
) -> None:
    """Records whose keys left the sample are kept, so the tombstones that follow them must stay."""
    section = Section(batches=tuple(batch for each in log for batch in each.batches))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("object_format.dedupe.survivor_finder._STEP_RECORDS", max_retained)
        found = find([section], reaches_log_start=whole, max_retained_records=max_retained)
    check_survivors([section], found, whole=whole)


def check_survivors(log: Sequence[Section], found: Survivors, *, whole: bool) -> None:
    """All required survivors exist, and no key survives without its newest record."""
    must_stay = model_log.survivors(log, reaches_log_start=whole, now_ms=NOW)
    kept = set(found.offsets)
    assert must_stay <= kept
    if found.exact:
        assert kept == must_stay
    data_records = [
        record
        for section in log
        for batch in section.batches
        if not model_log.is_control(batch)
        for record in batch.records
        if record.key is not None
    ]
    newest = {record.key: record for record in data_records}
    for record in data_records:
        if record.offset in kept:
            assert newest[record.key].offset in kept


def test_a_full_table_counts_the_records_of_unknown_keys() -> None:
    keys = [b"%d" % i for i in range(1000)]
    data = encode_batch([1] * 2000, keys * 2, [b"v"] * 2000)
    table = KeyTable(120 * 12)
    finder = SurvivorFinder(table, SEED, reaches_log_start=True, now_ms=NOW)
    finder.begin_section(unique_keys=False)
    finder.feed(data, offset_shift=0)
    finder.end_section()
    found = finder.finish()
    assert 90 <= found.keys <= table.capacity
    assert found.keys_outside_table == 2 * (1000 - found.keys)
    assert found.records_out == found.keys + found.keys_outside_table
    assert not found.exact


def test_the_survivors_do_not_depend_on_the_seed() -> None:
    data = encode_batch([1] * 50, [b"%d" % (i % 20) for i in range(50)], [b"v"] * 50)
    results = []
    for seed in (bytes(16), bytes([1] * 16)):
        finder = SurvivorFinder(LARGE, seed, reaches_log_start=True, now_ms=NOW)
        finder.begin_section(unique_keys=False)
        finder.feed(data, offset_shift=0)
        finder.end_section()
        results.append(finder.finish().offsets)
    assert results[0] == results[1]


def test_batches_with_all_records_are_copied_unchanged() -> None:
    batches = [
        encode_batch([1, 2], [b"a%d" % i, b"b%d" % i], [b"v", b"w"], codec=codec, base_offset=2 * i)
        for i, codec in enumerate(Codec)
    ]
    data = b"".join(batches)
    survivors = find([Section(batches=tuple(model.decode_all(data)))])
    written = filter_batches(
        data, survivors, offset_shift=0, leader_epoch=0, delete_horizon_ms=NOW, merge=False
    )
    assert [bytes(buffer) for buffer in written.buffers] == [data]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
@pytest.mark.parametrize("merge", [False, True])
def test_the_first_leader_epoch_replaces_another_one(codec: Codec, *, merge: bool) -> None:
    """Of the batches, one is copied, one loses a record, and two may be merged."""
    records = [
        [Record(0, NOW, b"a", bytes(20_000)), Record(1, NOW, b"b", b"v")],
        [Record(2, NOW, b"c", b"v"), Record(3, NOW, b"d", b"v")],
        [Record(4, NOW, b"e", b"v")],
        [Record(5, NOW, b"d", b"w")],
    ]
    batches = [replace(model.batch_of(each, codec=codec), leader_epoch=5) for each in records]
    section = Section(batches=tuple(batches))
    for epoch in (0, 1):
        written = filter_batches(
            b"".join(section.stored()),
            find([section]),
            offset_shift=0,
            leader_epoch=epoch,
            delete_horizon_ms=None,
            merge=merge,
        )
        made = model.decode_all(b"".join(written.buffers))
        assert {batch.leader_epoch for batch in made} == {epoch}
        assert [record.offset for record in model.records_of(made)] == [0, 1, 2, 4, 5]


@pytest.mark.parametrize("earlier_ms", [-2, -1, 0, 1, 2])
@pytest.mark.parametrize("loses_one", [False, True])
def test_timestamps_stay_with_a_horizon_next_to_the_base_timestamp(
    earlier_ms: int, *, loses_one: bool
) -> None:
    """The horizon becomes the base timestamp, and all deltas change by the difference."""
    records = [Record(number, NOW + number, b"%d" % number, None) for number in range(3)]
    newer = [Record(3, NOW, b"0", b"v")] if loses_one else []
    section = Section(batches=tuple(model.batch_of(each) for each in (records, newer) if each))
    written = filter_batches(
        b"".join(section.stored()),
        find([section]),
        offset_shift=0,
        leader_epoch=0,
        delete_horizon_ms=NOW - earlier_ms,
        merge=False,
    )
    first, *_ = model.decode_all(b"".join(written.buffers))
    assert first.base_timestamp == NOW - earlier_ms
    assert first.records == tuple(records[int(loses_one) :])


def test_an_empty_log_has_no_survivors() -> None:
    survivors = find([])
    written = filter_batches(b"", survivors, offset_shift=0, leader_epoch=0, delete_horizon_ms=None)
    assert (written.buffers, written.size, written.min_timestamp) == ((), 0, None)


@pytest.mark.parametrize("codec", Codec)
def test_bytes_that_differ_from_pass_1_are_rejected(codec: Codec) -> None:
    """The survivors have offsets 0, 2 and 4; the batch in pass 2 has other offsets, or fewer records."""
    data = encode_batch([1] * 5, [b"a", b"c", b"b", b"c", b"c"], [b"v"] * 5, codec=codec)
    survivors = find([Section(batches=(model.decode(data),))])
    assert list(survivors.offsets) == [0, 2, 4]
    for deltas in ([0, 1, 3, 4], [0, 2]):
        count = len(deltas)
        other = encode_batch(
            [1] * count,
            [b"a"] * count,
            [b"v"] * count,
            codec=codec,
            offset_deltas=deltas,
            last_offset_delta=4,
        )
        with pytest.raises(MalformedBatchError) as caught:
            filter_batches(other, survivors, offset_shift=0, leader_epoch=0, delete_horizon_ms=None)
        assert caught.value.fault is Fault.SURVIVORS
        in_records = codec is Codec.NONE and count == 4
        assert caught.value.position == (len(other) if in_records else 0)


@pytest.mark.parametrize("codec", Codec)
def test_malformed_records_are_rejected_by_pass_1(codec: Codec) -> None:
    good = encode_batch([1, 1], [b"a", b"b"], [b"v"] * 2, base_offset=0)
    batch = model.batch_of([Record(2, 1, b"a", b"v"), Record(3, 1, b"a", b"v")], codec=codec)
    records = b"".join(model.encode_record(record, batch) for record in batch.records)
    bad = model.encode_with_records(batch, records[:-1] + b"\x04")
    finder = SurvivorFinder(LARGE, SEED, reaches_log_start=True, now_ms=NOW)
    finder.begin_section(unique_keys=False)
    with pytest.raises(MalformedBatchError) as caught:
        finder.feed(good + bad, offset_shift=0)
    assert caught.value.fault is Fault.RECORD_FIELD
    assert len(good) <= caught.value.position < len(good + bad)


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("length", [1, 6, 100])
def test_records_with_a_wrong_length_are_rejected_by_both_passes(codec: Codec, length: int) -> None:
    batch = model.batch_of([Record(2, 1, b"a", b"v"), Record(3, 1, b"a", b"v")], codec=codec)
    records = b"".join(model.encode_record(record, batch) for record in batch.records)
    bad = model.encode_with_records(batch, bytes([2 * length]) + records[1:])
    finder = SurvivorFinder(LARGE, SEED, reaches_log_start=True, now_ms=NOW)
    finder.begin_section(unique_keys=False)
    with pytest.raises(MalformedBatchError):
        finder.feed(bad, offset_shift=0)
    with pytest.raises(MalformedBatchError):
        filter_batches(
            bad,
            find([Section(batches=(batch,))]),
            offset_shift=0,
            leader_epoch=0,
            delete_horizon_ms=None,
        )


def feed_all(finder: SurvivorFinder, pieces: list[bytes], shift: int) -> None:
    for piece in pieces:
        finder.feed(piece, offset_shift=shift)


@pytest.mark.parametrize(
    ("first", "second", "shift"), [(5, 5, 0), (5, 4, 0), (5, 7, -6), (2**62, 2**62 + 1, 0)]
)
def test_offsets_that_do_not_ascend_are_rejected(first: int, second: int, shift: int) -> None:
    one, two = (encode_batch([1], [b"k"], [b"v"], base_offset=base) for base in (first, second))
    for pieces in ([one + two], [one, two]):
        finder = SurvivorFinder(LARGE, SEED, reaches_log_start=True, now_ms=NOW)
        finder.begin_section(unique_keys=False)
        with pytest.raises(MalformedBatchError) as caught:
            feed_all(finder, pieces, shift)
        assert caught.value.fault is Fault.OFFSET_RANGE


def test_pass_2_rejects_negative_offsets() -> None:
    data = encode_batch([1], [b"k"], [b"v"], base_offset=5)
    for shift, is_valid in ((-5, True), (-6, False)):
        if is_valid:
            filter_batches(data, find([]), offset_shift=shift, leader_epoch=0, delete_horizon_ms=None)
            continue
        with pytest.raises(MalformedBatchError) as caught:
            filter_batches(data, find([]), offset_shift=shift, leader_epoch=0, delete_horizon_ms=None)
        assert caught.value.fault is Fault.OFFSET_RANGE


def test_calls_in_the_wrong_order_are_rejected() -> None:
    finder = SurvivorFinder(LARGE, SEED, reaches_log_start=True, now_ms=NOW)
    with pytest.raises(FatalError, match="outside a section"):
        finder.feed(b"", offset_shift=0)
    with pytest.raises(FatalError, match="not begun"):
        finder.end_section()
    finder.begin_section(unique_keys=True)
    with pytest.raises(FatalError, match="before the previous one has ended"):
        finder.begin_section(unique_keys=True)
    with pytest.raises(FatalError, match="inside a section"):
        finder.finish()


def test_a_seed_must_have_sixteen_bytes() -> None:
    with pytest.raises(InvalidInputError, match="16 bytes, not 3"):
        SurvivorFinder(LARGE, b"abc", reaches_log_start=True, now_ms=NOW)


def test_bytes_after_zero_records_are_rejected() -> None:
    data = model.encode_with_records(model.Batch(last_offset_delta=4), b"\0" * 9)
    finder = SurvivorFinder(LARGE, SEED, reaches_log_start=True, now_ms=NOW)
    finder.begin_section(unique_keys=False)
    with pytest.raises(MalformedBatchError) as caught:
        finder.feed(data, offset_shift=0)
    assert caught.value.fault is Fault.TRAILING_BYTES
