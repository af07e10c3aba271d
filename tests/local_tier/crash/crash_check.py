"""Invariants of logs after a crash, checked with the journal of the process that died."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from object_format.record_batch.headers import scan_batches
from object_format.record_batch.records import decode_batches
from tests.local_tier.crash.crash_workload import KEYED, NAMES

if TYPE_CHECKING:
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager
    from local_tier.segment.log_segment import LogSegment

Content = tuple[str, str | None]


@dataclass
class Expected:
    """The expected content of one log. `maybe` is an append in progress.

    `cut_to` is the target of a truncation in progress, `restart_at` that of a full truncation in progress.
    """

    records: dict[int, Content] = field(default_factory=dict)
    maybe: dict[int, Content] = field(default_factory=dict)
    cut_to: int | None = None
    restart_at: int | None = None
    end: int = 0
    flushed: int = 0
    start: int = 0
    max_start: int = 0
    exists: bool | None = False
    identity: str | None = None

    def forget(self, identity: str | None) -> None:
        self.__init__(exists=None, identity=identity)  # type: ignore[misc]

    def _forget_from(self, offset: int) -> None:
        self.records = {known: content for known, content in self.records.items() if known < offset}

    def apply(self, line: dict[str, Any]) -> None:
        """Apply one line of the journal: an operation that begins, or one that is done."""
        if "do" in line:
            self._begin(line)
        else:
            self._end(line)

    def _begin(self, line: dict[str, Any]) -> None:
        match line:
            case {"do": "append", "first": first, "records": records}:
                self.maybe = {first + i: (key, value) for i, (key, value) in enumerate(records)}
            case {"do": "delete_records", "before": before}:
                self.max_start = max(self.max_start, before)
            case {"do": "truncate", "to": to}:
                self.cut_to, self.flushed = to, min(self.flushed, to)
            case {"do": "restart_at_an_offset", "at": at}:
                self.cut_to, self.restart_at, self.flushed = 0, at, 0
            case {"do": "make", "id": identity}:
                self.forget(identity)
            case {"do": "delete"}:
                self.exists = None
            case _:
                raise AssertionError(line)

    def _end(self, line: dict[str, Any]) -> None:
        match line:
            case {"done": "append"}:
                self.records |= self.maybe
                self.end = max(self.maybe) + 1
                self.maybe = {}
            case {"done": "truncate"}:
                assert self.cut_to is not None
                self._forget_from(self.cut_to)
                self.end = min(self.end, self.cut_to)
                self.cut_to = None
            case {"done": "restart_at_an_offset"}:
                assert self.restart_at is not None
                self._forget_from(0)
                self.start = self.end = self.flushed = self.restart_at
                self.max_start = max(self.max_start, self.restart_at)
                self.cut_to = self.restart_at = None
            case {"done": "flush", "end": end}:
                self.flushed = end
            case {"done": "delete_records"}:
                self.start = self.max_start
            case {"done": "delete_old_segments", "start": start}:
                self.start = start
            case {"done": "make"}:
                self.exists = True
            case {"done": "delete"}:
                self.exists = False
            case _:
                raise AssertionError(line)


class Expectations:
    """The expected content of all logs over many processes."""

    def __init__(self) -> None:
        self.logs = {name.topic: Expected() for name in NAMES}

    def read(self, journal: bytes) -> None:
        """Read the journal of one process. Its last line may be incomplete."""
        for raw in journal.splitlines():
            line = json.loads(raw)
            if "log" in line:
                self.logs[line["log"]].apply(line)

    def check(self, manager: LogManager, *, power_lost: bool = False) -> None:
        """Check all logs, then expect their current content from now on."""
        for name in NAMES:
            log, expected = manager.get(name), self.logs[name.topic]
            if log is None:
                assert expected.exists is not True, f"{name} is missing"
                expected.forget(None)
                expected.exists = False
                continue
            assert expected.exists is not False, f"the deleted log {name} has returned"
            cut_short = expected.exists is None and log.topic_id is None and log.log_end_offset == 0
            assert cut_short or expected.identity in {None, str(log.topic_id)}
            check_log(log, expected, power_lost=power_lost, compacted=name == KEYED)
            expect_present_content(log, expected)


def contents(log: UnifiedLog) -> list[tuple[int, Content]]:
    found = []
    for segment in log.segments:
        data = segment.log.read(0, segment.size)
        for columns in decode_batches(data.data):
            for record in columns.records():
                value = None if record.value is None else record.value.decode()
                assert record.key is not None
                found.append((record.offset, (record.key.decode(), value)))
    return found


def check_log(log: UnifiedLog, expected: Expected, *, power_lost: bool, compacted: bool) -> None:
    known = expected.records | expected.maybe
    found = contents(log)
    offsets = [offset for offset, _ in found]
    assert offsets == sorted(set(offsets)), "a record is duplicated or out of order"
    for offset, content in found:
        assert known.get(offset) == content, f"{log.topic_partition} has an unexpected record at {offset}"
    end = log.log_end_offset
    min_end = expected.flushed if power_lost else expected.end
    if expected.cut_to is not None:
        min_end = min(min_end, expected.cut_to)
    assert end >= min_end, "an acknowledged record is missing"
    possible_ends = [expected.end, expected.restart_at or 0, *(offset + 1 for offset in expected.maybe)]
    assert end <= max(possible_ends), "a truncated record has returned"
    assert log.log_start_offset >= expected.start or log.log_start_offset == end, (
        "a deleted record has returned"
    )
    assert log.log_start_offset <= log.high_watermark <= end
    readable_offsets = [offset for offset in offsets if offset >= log.log_start_offset]
    if compacted:
        check_newest(known, dict(found), end)
    else:
        assert readable_offsets == list(range(log.log_start_offset, end)), "an offset is missing"
    for segment in log.segments:
        check_indexes(segment)
    names = [path.name for path in log.directory.iterdir()]
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))], names


def check_newest(known: dict[int, Content], found: dict[int, Content], end: int) -> None:
    """Check that the newest record of each key is there, unless it is a tombstone."""
    newest = {key: (offset, value) for offset, (key, value) in sorted(known.items()) if offset < end}
    for key, (offset, value) in newest.items():
        if value is not None:
            assert found.get(offset) == (key, value), f"the newest record of {key}, at {offset}, is missing"


def check_indexes(segment: LogSegment) -> None:
    """Check that each entry points at its batch, and that every batch is found by the indexes."""
    data = segment.log.read(0, segment.size)
    rows = scan_batches(data)
    lasts = {int(r["position"]): int(r["base_offset"]) + int(r["last_offset_delta"]) for r in rows}
    previous = -1
    for slot in range(segment.offset_index.entries):
        offset, position = segment.offset_index.entry(slot)
        assert offset > previous
        assert lasts[position] == offset
        previous = offset
    newest = -1
    for slot in range(segment.time_index.entries):
        timestamp, last = segment.time_index.entry(slot)
        assert timestamp > newest
        newest = timestamp
        assert last in lasts.values()
        assert timestamp == max(int(r["max_timestamp"]) for r in rows if lasts[int(r["position"])] <= last)
    for position, last in lasts.items():
        found = segment.translate(last)
        assert found is not None
        assert found.position == position


def expect_present_content(log: UnifiedLog, expected: Expected) -> None:
    """Resolve the operations in progress: expect what is there."""
    end = log.log_end_offset
    known = expected.records | expected.maybe
    expected.records = {offset: content for offset, content in known.items() if offset < end}
    expected.maybe, expected.end, expected.flushed = {}, end, min(expected.flushed, end)
    expected.cut_to = expected.restart_at = None
    expected.start = expected.max_start = log.log_start_offset
    expected.exists = True
    expected.identity = None if log.topic_id is None else str(log.topic_id)
