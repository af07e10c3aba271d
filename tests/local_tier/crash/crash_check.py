"""What must be true of logs after a crash, given the journal of the process that died."""

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
    """Of one log: what it was told to hold. `maybe` is the append that was under way.

    `cut_to` is where a truncation that was under way cuts; `anew_at` where the log begins that drops all.
    """

    records: dict[int, Content] = field(default_factory=dict)
    maybe: dict[int, Content] = field(default_factory=dict)
    cut_to: int | None = None
    anew_at: int | None = None
    end: int = 0
    flushed: int = 0
    start: int = 0
    most_start: int = 0
    exists: bool | None = False
    identity: str | None = None

    def forget(self, identity: str | None) -> None:
        self.__init__(exists=None, identity=identity)  # type: ignore[misc]

    def _forget_from(self, offset: int) -> None:
        self.records = {known: content for known, content in self.records.items() if known < offset}

    def tell(self, line: dict[str, Any]) -> None:
        """One line of the journal: what is meant to be done, or was."""
        if "do" in line:
            self._begin(line)
        else:
            self._end(line)

    def _begin(self, line: dict[str, Any]) -> None:
        match line:
            case {"do": "append", "first": first, "records": records}:
                self.maybe = {first + i: (key, value) for i, (key, value) in enumerate(records)}
            case {"do": "delete_records", "before": before}:
                self.most_start = max(self.most_start, before)
            case {"do": "truncate", "to": to}:
                self.cut_to, self.flushed = to, min(self.flushed, to)
            case {"do": "begin_anew", "at": at}:
                self.cut_to, self.anew_at, self.flushed = 0, at, 0
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
            case {"done": "begin_anew"}:
                assert self.anew_at is not None
                self._forget_from(0)
                self.start = self.end = self.flushed = self.anew_at
                self.most_start = max(self.most_start, self.anew_at)
                self.cut_to = self.anew_at = None
            case {"done": "flush", "end": end}:
                self.flushed = end
            case {"done": "delete_records"}:
                self.start = self.most_start
            case {"done": "expire", "start": start}:
                self.start = start
            case {"done": "make"}:
                self.exists = True
            case {"done": "delete"}:
                self.exists = False
            case _:
                raise AssertionError(line)


class Expectations:
    """Of all logs, over the lives of many processes."""

    def __init__(self) -> None:
        self.logs = {name.topic: Expected() for name in NAMES}

    def read(self, journal: bytes) -> None:
        """The journal of one process; its last line may be cut."""
        for raw in journal.splitlines():
            line = json.loads(raw)
            if "log" in line:
                self.logs[line["log"]].tell(line)

    def check(self, manager: LogManager, *, power_lost: bool = False) -> None:
        """Compare all logs, then take what is there for what is expected next."""
        for name in NAMES:
            log, expected = manager.get(name), self.logs[name.topic]
            if log is None:
                assert expected.exists is not True, f"{name} is gone"
                expected.forget(None)
                expected.exists = False
                continue
            assert expected.exists is not False, f"{name} has come back"
            cut_short = expected.exists is None and log.topic_id is None and log.log_end_offset == 0
            assert cut_short or expected.identity in {None, str(log.topic_id)}
            check_log(log, expected, power_lost=power_lost, compacted=name == KEYED)
            copy_from(log, expected)


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
    assert offsets == sorted(set(offsets)), "something is there twice, or out of order"
    for offset, content in found:
        assert known.get(offset) == content, f"{log.topic_partition} has something else at {offset}"
    end = log.log_end_offset
    least = expected.flushed if power_lost else expected.end
    assert end >= min(least, least if expected.cut_to is None else expected.cut_to), (
        "what was acknowledged is gone"
    )
    most = [expected.end, expected.anew_at or 0, *(offset + 1 for offset in expected.maybe)]
    assert end <= max(most), "what was dropped is back"
    assert log.log_start_offset >= expected.start or log.log_start_offset == end, "what was deleted is back"
    assert log.log_start_offset <= log.high_watermark <= end
    readable_offsets = [offset for offset in offsets if offset >= log.log_start_offset]
    if compacted:
        check_newest(known, dict(found), end)
    else:
        assert readable_offsets == list(range(log.log_start_offset, end)), "there is a hole"
    for segment in log.segments:
        check_indexes(segment)
    names = [path.name for path in log.directory.iterdir()]
    assert not [name for name in names if name.endswith((".cleaned", ".swap", ".deleted"))], names


def check_newest(known: dict[int, Content], found: dict[int, Content], end: int) -> None:
    """Each key's newest record is there, unless it says that the key is gone."""
    newest = {key: (offset, value) for offset, (key, value) in sorted(known.items()) if offset < end}
    for key, (offset, value) in newest.items():
        if value is not None:
            assert found.get(offset) == (key, value), f"the newest record of {key}, at {offset}, is gone"


def check_indexes(segment: LogSegment) -> None:
    """Each entry points at the batch that it names, and every batch is found through them."""
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


def copy_from(log: UnifiedLog, expected: Expected) -> None:
    """What was under way is decided now: expect what is there."""
    end = log.log_end_offset
    known = expected.records | expected.maybe
    expected.records = {offset: content for offset, content in known.items() if offset < end}
    expected.maybe, expected.end, expected.flushed = {}, end, min(expected.flushed, end)
    expected.cut_to = expected.anew_at = None
    expected.start = expected.most_start = log.log_start_offset
    expected.exists = True
    expected.identity = None if log.topic_id is None else str(log.topic_id)
