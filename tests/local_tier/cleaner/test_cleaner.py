"""The cleaner compared with a model of Kafka's cleaner."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.clock import ManualClock
from core.ids import SeededIds
from local_tier.cleaner.cleaner import Cleaner, Throttler, group_segments
from local_tier.cleaner.dirty_section import DirtySection
from local_tier.cleaner.log_to_clean import LogToClean, cleanable_offsets, log_to_clean
from local_tier.config import LogConfig
from local_tier.errors import CleaningAbortedError, CorruptLogError
from local_tier.files.file_system import RealFileSystem
from object_format.codecs.codec import Codec
from object_format.dedupe import KeyTable
from object_format.dedupe.key_table import SLOT_BYTES
from object_format.errors import MalformedBatchError
from object_format.record_batch.records import Record
from tests.local_tier.cleaner import cleaner_model
from tests.local_tier.cleaner.cleaner_model import Last
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.logs import LogHarness
from tests.object_format import model
from tests.object_format.model_log import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL

if TYPE_CHECKING:
    from pathlib import Path

    from hypothesis.strategies import DrawFn

    from local_tier.log.unified_log import UnifiedLog
    from local_tier.topic_partition import TopicPartition

KEYS: Final = [b"a", b"b", b"c", b"d", b"key"]
START: Final = 1_700_000_000_000
RETENTION: Final = 100
LARGE: Final = KeyTable(1 << 14)
COMPACTED: Final = LogConfig(
    segment_index_bytes=1200,
    index_interval_bytes=100,
    compact=True,
    delete=False,
    delete_retention_ms=RETENTION,
    min_cleanable_dirty_ratio=0.0,
)


@dataclass
class Writer:
    """Draws the appends between two cleanings."""

    draw: DrawFn
    offset: int
    sequences: dict[int, int] = field(default_factory=lambda: {1: 0, 2: 0, 7: 0, 8: 0})
    in_transaction: set[int] = field(default_factory=set)

    def events(self) -> list[model.Batch | None]:
        """Return batches, with None where a segment rolls. No transaction is open at the end."""
        kinds = ["plain", "plain", "producer", "transaction", "transaction", "end", "roll", "gap"]
        drawn: list[model.Batch | None] = []
        for kind in self.draw(st.lists(st.sampled_from(kinds), max_size=12)):
            if kind == "roll":
                drawn.append(None)
            elif kind == "gap":
                self.offset += self.draw(st.sampled_from([1, 7, 70_000]))
            elif kind == "end":
                if self.in_transaction:
                    drawn.append(self.marker(self.draw(st.sampled_from(sorted(self.in_transaction)))))
            else:
                drawn.append(self.batch(kind))
        return [*drawn, *(self.marker(producer) for producer in sorted(self.in_transaction))]

    def marker(self, producer: int) -> model.Batch:
        key = self.draw(st.sampled_from([cleaner_model.ABORT_KEY, cleaner_model.COMMIT_KEY]))
        batch = model.batch_of(
            [Record(key=key, value=bytes(6), offset=self.offset, timestamp=START)],
            producer_id=producer,
            producer_epoch=0,
            attributes=TRANSACTIONAL | CONTROL,
            leader_epoch=self.draw(st.integers(0, 1)),
        )
        self.in_transaction.discard(producer)
        self.offset = batch.next_offset
        return batch

    def batch(self, kind: str) -> model.Batch:
        draw = self.draw
        keys = st.sampled_from([*KEYS, None] if kind == "plain" else KEYS)
        records = [
            Record(
                key=draw(keys),
                value=draw(st.sampled_from([None, b"", b"v" * 9])),
                offset=self.offset + i,
                timestamp=START + draw(st.integers(-5, 5)),
            )
            for i in range(draw(st.integers(1, 4)))
        ]
        codec = draw(st.sampled_from([Codec.NONE, Codec.NONE, Codec.LZ4]))
        batch = model.batch_of(records, codec=codec, leader_epoch=draw(st.integers(0, 1)))
        self.offset = batch.next_offset
        if kind == "plain":
            return with_log_append_time(batch) if draw(st.integers(0, 6)) == 0 else batch
        producer = draw(st.sampled_from([1, 2] if kind == "producer" else [7, 8]))
        sequence = self.sequences[producer]
        self.sequences[producer] += len(records)
        batch = replace(batch, producer_id=producer, producer_epoch=0, base_sequence=sequence)
        if kind == "producer":
            return batch
        self.in_transaction.add(producer)
        return replace(batch, attributes=batch.attributes | TRANSACTIONAL)


def with_log_append_time(batch: model.Batch) -> model.Batch:
    """Return the batch with log append time."""
    records = tuple(replace(record, timestamp=batch.max_timestamp) for record in batch.records)
    return replace(batch, attributes=batch.attributes | LOG_APPEND_TIME, records=records)


@st.composite
def appends_of_cleanings(draw: DrawFn) -> list[list[model.Batch | None]]:
    """Draw the appends before each of several cleanings."""
    writer = Writer(draw, draw(st.sampled_from([0, 0, 5, 2**33])))
    return [writer.events() for _ in range(draw(st.integers(1, 3)))]


def never_stop(log: TopicPartition) -> None:
    """Never stop a cleaning."""


def cleaner_of(clock: ManualClock, *, table: KeyTable = LARGE, window_bytes: int = 1 << 20) -> Cleaner:
    return Cleaner(
        file_system=RealFileSystem(),
        table=table,
        window_bytes=window_bytes,
        throttler=Throttler(clock),
        clock=clock,
        ids=SeededIds(1, clock),
        check_done=never_stop,
    )


def to_clean(log: UnifiedLog, first_dirty: int | None, now_ms: int) -> LogToClean:
    return log_to_clean(log, cleanable_offsets(log, first_dirty, now_ms), now_ms)[0]


def append(log: UnifiedLog, events: list[model.Batch | None]) -> None:
    """Append, and roll at the end, so that everything may be cleaned."""
    for event in events:
        if event is not None:
            log.append_as_follower(model.encode(event))
        elif log.active_segment.size:
            log.roll()
    log.update_high_watermark(log.log_end_offset)
    if log.active_segment.size:
        log.roll()


def batches_of(log: UnifiedLog) -> list[model.Batch]:
    return [b for s in log.segments for b in model.decode_all(s.log.read(0, s.size).tobytes())]


def transactions_of_one_producer(*transactions: tuple[bytes, bytes]) -> list[model.Batch]:
    """Return transactions of one record each, by key and by the key of their marker, from offset 0 on."""
    batches = []
    for number, (key, end) in enumerate(transactions):
        batches += [
            model.batch_of(
                [Record(key=name, value=bytes(6), offset=2 * number + at, timestamp=START)],
                producer_id=7,
                producer_epoch=0,
                base_sequence=number if is_data else -1,
                attributes=TRANSACTIONAL if is_data else TRANSACTIONAL | CONTROL,
            )
            for at, (name, is_data) in enumerate(((key, True), (end, False)))
        ]
    return batches


def plain(key: bytes, offset: int) -> model.Batch:
    return model.batch_of([Record(key=key, value=b"v", offset=offset, timestamp=START)])


COMMITTED_BEFORE_ABORTED: Final = [
    [
        *transactions_of_one_producer(
            (b"a", cleaner_model.COMMIT_KEY),
            (b"a", cleaner_model.COMMIT_KEY),
            (b"b", cleaner_model.ABORT_KEY),
        ),
        None,
    ]
]
ONE_OF_SEVERAL_SUPERSEDED: Final = [
    [*transactions_of_one_producer(*((key, cleaner_model.COMMIT_KEY) for key in (b"a", b"b", b"c"))), None],
    [plain(b"b", 6), None],
    [plain(b"key", 7), None],
]


@settings(max_examples=60)
@example(COMMITTED_BEFORE_ABORTED, 1 << 20, 1 << 30, 200)
@example(ONE_OF_SEVERAL_SUPERSEDED, 1 << 20, 1 << 30, 200)
@given(
    appends_of_cleanings(),
    st.sampled_from([1, 100, 300, 1 << 20]),
    st.sampled_from([200, 1000, 1 << 30]),
    st.sampled_from([0, 50, 200]),
)
def test_cleaning_retains_the_same_batches_as_kafka(
    tmp_path_factory: pytest.TempPathFactory,
    appended: list[list[model.Batch | None]],
    window_bytes: int,
    segment_bytes: int,
    pause_ms: int,
) -> None:
    harness = LogHarness(tmp_path_factory.mktemp("log"), fs=UnsyncedFileSystem(), clock=ManualClock(START))
    log = harness.open(replace(COMPACTED, segment_bytes=segment_bytes))
    cleaner = cleaner_of(harness.clock, window_bytes=window_bytes)
    first_dirty: int | None = None
    for events in appended:
        append(log, events)
        harness.clock.advance(pause_ms / 1000)
        cleanable = to_clean(log, first_dirty, harness.clock.now_ms())
        if not cleanable.cleanable_bytes:
            continue
        before = batches_of(log)
        first_dirty, stats = cleaner.clean(cleanable)
        cleaning = cleaner_model.Cleaning(
            first_dirty=cleanable.first_dirty_offset,
            end=first_dirty,
            upper=cleanable.first_uncleanable_offset,
            now_ms=harness.clock.now_ms(),
            retention_ms=RETENTION,
            last={p: Last(*known) for p, known in log.last_records_of_producers().items()},
        )
        assert batches_of(log) == cleaner_model.clean(before, cleaning)
        assert first_dirty == cleanable.first_uncleanable_offset == log.log_end_offset
        assert stats.bytes_written == log.size
    crash_and_compare(harness, log, replace(COMPACTED, segment_bytes=segment_bytes))


def crash_and_compare(harness: LogHarness, log: UnifiedLog, config: LogConfig) -> None:
    """Recover the log after a crash and compare it with the cleaned log."""
    before, end = batches_of(log), log.log_end_offset
    log.close_handles()
    again = harness.open(config)
    assert (batches_of(again), again.log_end_offset) == (before, end)
    again.close_handles()


@settings(max_examples=30)
@given(appends_of_cleanings(), st.sampled_from([16, 18, 24]), st.sampled_from([1, 300]))
def test_cleaning_with_a_small_key_table_retains_the_same_records(
    tmp_path_factory: pytest.TempPathFactory,
    appended: list[list[model.Batch | None]],
    slots: int,
    window_bytes: int,
) -> None:
    events = [event for part in appended for event in part]
    left = []
    for table in (LARGE, KeyTable(12 * slots)):
        harness = LogHarness(
            tmp_path_factory.mktemp("log"), fs=UnsyncedFileSystem(), clock=ManualClock(START)
        )
        log = harness.open(COMPACTED)
        append(log, events)
        cleaner = cleaner_of(harness.clock, table=table, window_bytes=window_bytes)
        first_dirty = log.log_start_offset
        while (cleanable := to_clean(log, first_dirty, START)).cleanable_bytes:
            end, _ = cleaner.clean(cleanable)
            assert end > first_dirty
            first_dirty = end
        left.append([r for b in batches_of(log) if not cleaner_model.is_control(b) for r in b.records])
        log.close_handles()

    assert left[0] == left[1]


def many_keys(count: int, *, first: int = 0) -> model.Batch:
    return model.batch_of(
        [
            Record(key=b"%012d" % (first + i), value=b"v", offset=first + i, timestamp=START)
            for i in range(count)
        ]
    )


def test_a_batch_with_more_keys_than_the_table_is_cleaned(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path, clock=ManualClock(START))
    log = harness.open(COMPACTED)
    append(log, [many_keys(500), many_keys(3, first=500)])
    cleaner = cleaner_of(harness.clock, table=KeyTable(12 * 16), window_bytes=1)

    end, stats = cleaner.clean(to_clean(log, None, START))

    assert (end, stats.records_written) == (500, 503)
    log.close_handles()


def test_the_newest_records_are_durable_before_older_ones_are_removed(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path, clock=ManualClock(START))
    log = harness.open(COMPACTED)
    append(log, [many_keys(5), None, many_keys(5, first=5), None])
    cleanable, durable = to_clean(log, None, START), list[int]()
    assert log.recovery_point < cleanable.first_uncleanable_offset
    cleaner = cleaner_of(harness.clock)
    cleaner._check_done = lambda _: durable.append(log.recovery_point)
    cleaner.clean(cleanable)
    assert durable
    assert min(durable) >= cleanable.first_uncleanable_offset
    log.close_handles()


def test_tombstones_and_markers_have_no_horizon_with_unlimited_delete_retention(tmp_path: Path) -> None:
    """The horizon would exceed the range of timestamps."""
    harness = LogHarness(tmp_path, clock=ManualClock(START))
    log = harness.open(replace(COMPACTED, delete_retention_ms=(1 << 63) - 1))
    deleted = Record(key=b"a", value=None, offset=1, timestamp=START)
    marker = Record(key=cleaner_model.COMMIT_KEY, value=bytes(6), offset=3, timestamp=START)
    append(
        log,
        [
            model.batch_of([Record(key=b"a", value=b"v", offset=0, timestamp=START), deleted]),
            model.batch_of(
                [Record(key=b"b", value=b"v", offset=2, timestamp=START)],
                producer_id=7,
                producer_epoch=0,
                base_sequence=0,
                attributes=TRANSACTIONAL,
            ),
            model.batch_of([marker], producer_id=7, producer_epoch=0, attributes=TRANSACTIONAL | CONTROL),
            many_keys(1, first=4),
        ],
    )
    cleaner, first_dirty = cleaner_of(harness.clock), None
    for _ in range(3):
        first_dirty, _ = cleaner.clean(to_clean(log, first_dirty, START))
        harness.clock.advance(1e9)

    assert [each.offset for each in batches_of(log)[0].records] == [1]
    log.close_handles()


def test_an_aborted_cleaning_leaves_the_log_unchanged_and_no_files(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path, clock=ManualClock(START))
    log = harness.open(COMPACTED)
    append(log, [many_keys(5), None, many_keys(5, first=5), None])
    before, names = batches_of(log), harness.names()
    for stop_at in range(2, 7):
        calls = iter(range(stop_at))

        def check(name: TopicPartition, calls: object = calls) -> None:
            if next(calls, None) is None:  # type: ignore[call-overload]
                raise CleaningAbortedError(f"{name}: enough")

        cleaner = cleaner_of(harness.clock, window_bytes=1)
        cleaner._check_done = check
        with pytest.raises(CleaningAbortedError):
            cleaner.clean(to_clean(log, None, START))

    assert (batches_of(log), harness.names()) == (before, names)
    log.close_handles()


@pytest.mark.parametrize(
    ("last", "has_index", "reads_once"), [(60, True, True), (60, False, False), (9000, True, False)]
)
def test_the_first_pass_reads_the_dirty_section_once(
    tmp_path: Path, last: int, *, has_index: bool, reads_once: bool
) -> None:
    """It reads twice if it does not know where batches begin, or if offsets are more than the table holds.

    Clean batches in the same range are not in the section.
    """
    harness = LogHarness(tmp_path, clock=ManualClock(START))
    log = harness.open(replace(COMPACTED, index_interval_bytes=300))
    append(log, [*(many_keys(2, first=first) for first in range(0, 60, 2)), None, many_keys(2, first=last)])
    log.roll()
    if not has_index:
        for segment in log.segments:
            segment.offset_index.truncate()
    table, first, read = KeyTable(1024 * SLOT_BYTES), 26, list[int]()
    start = log.segments[0].offset_index.lookup(first).position
    keys = DirtySection(
        log, first, log.log_end_offset, window_bytes=400, check_and_throttle=read.append
    ).find_survivors(table, bytes(16), START)
    window = keys.survivors.offset_window.between(0, log.log_end_offset)
    expected = [*range(first, 60), last, last + 1]
    assert window.tolist() == expected
    once = log.size - start
    assert sum(read) == once if reads_once else sum(read) > 1.5 * once
    log.close_handles()


def test_a_corrupt_batch_is_never_written_with_a_new_checksum(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path, clock=ManualClock(START))
    log = harness.open(COMPACTED)
    append(log, [many_keys(5), many_keys(5, first=5)])
    path = log.segments[0].path
    data = bytearray(path.read_bytes())
    data[80] ^= 1
    path.write_bytes(data)

    with pytest.raises((MalformedBatchError, CorruptLogError)):
        cleaner_of(harness.clock).clean(to_clean(log, None, START))

    assert path.read_bytes() == data
    assert not [name for name in harness.names() if name.endswith((".cleaned", ".swap"))]
    log.close_handles()


def test_segments_are_grouped_by_size_and_offset_span(tmp_path: Path) -> None:
    harness = LogHarness(tmp_path, clock=ManualClock(START))
    log = harness.open(COMPACTED)
    for first in (0, 10, 20, 2**31 + 5, 2**31 + 15):
        append(log, [many_keys(5, first=first)])
    size = max(segment.size for segment in log.segments)
    cleanable = log.segments_between(0, log.log_end_offset)

    def grouped(max_bytes: int) -> list[list[int]]:
        groups = group_segments(
            cleanable,
            max_bytes=max_bytes,
            max_index_bytes=10_000,
            first_uncleanable_offset=log.log_end_offset,
        )
        return [[segment.base_offset for segment in group] for group in groups]

    far = 2**31
    assert grouped(size - 1) == [[0], [5], [15], [25], [far + 10]]
    assert grouped(2 * size) == [[0, 5], [15, 25], [far + 10]]
    assert grouped(1 << 30) == [[0, 5, 15], [25, far + 10]]
    log.close_handles()
