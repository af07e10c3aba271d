"""A task reads the next bytes while it computes."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import pairwise
from threading import Event, current_thread
from typing import TYPE_CHECKING, Any

import pytest
from typing_extensions import override

from catalog.model import PartitionId
from core.clock import ManualClock
from core.ids import SeededIds
from object_store.errors import StoreUnavailableError
from object_store.local.store import LocalStore
from object_store.local.streams import LocalStream
from spark_jobs.task import compaction_task
from spark_jobs.task.compaction_task import run_compaction, stream_buffer, stream_buffers
from spark_jobs.task.counts import TaskCounts
from spark_jobs.task.read_ahead import ReadAhead
from tests.spark_jobs.reference_log import ReferenceLog, batch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from object_store.accounting import Purpose

FILES = 5


class _Source:
    """A stream of a few bytes that fails at `fails_at`."""

    resumes = 0

    def __init__(self, data: bytes, fails_at: int | None = None) -> None:
        self.rest = memoryview(data)
        self.fails_at = fails_at
        self.reads = 0
        self.is_closed = False

    def readinto(self, target: memoryview) -> int:
        self.reads += 1
        if self.reads == self.fails_at:
            raise StoreUnavailableError("the store is gone")
        count = min(7, len(target), len(self.rest))
        target[:count], self.rest = self.rest[:count], self.rest[count:]
        return count

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def thread() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def _ahead(source: _Source, thread: ThreadPoolExecutor, size: int = 10) -> ReadAhead:
    return ReadAhead(source, thread, size, TaskCounts(None, ManualClock()))


@pytest.mark.parametrize("size", [1, 3, 10])
@pytest.mark.parametrize("step", [1, 4, 100])
def test_the_bytes_are_those_of_the_source(thread: ThreadPoolExecutor, size: int, step: int) -> None:
    source = _Source(bytes(range(100)))
    ahead = _ahead(source, thread, size)
    target, found = memoryview(bytearray(step)), b""
    while count := ahead.readinto(target):
        found += bytes(target[:count])
    assert ahead.readinto(target) == 0
    ahead.close()
    assert (found, source.is_closed) == (bytes(range(100)), True)


def test_an_error_is_raised_when_its_bytes_are_requested(thread: ThreadPoolExecutor) -> None:
    source = _Source(bytes(100), fails_at=2)
    ahead = _ahead(source, thread)
    target = memoryview(bytearray(7))
    assert ahead.readinto(target) == 7
    with pytest.raises(StoreUnavailableError):
        ahead.readinto(target)
    ahead.close()
    assert source.is_closed


def test_closing_ignores_the_error_of_bytes_that_were_not_requested(thread: ThreadPoolExecutor) -> None:
    source = _Source(bytes(100), fails_at=1)
    ahead = _ahead(source, thread)
    ahead.start()
    ahead.close()
    assert source.is_closed


class _Read(Future[int]):
    """A read that begins when its result is needed."""

    def __init__(self, read: Callable[[], int]) -> None:
        super().__init__()
        self._read = read

    @override
    def result(self, timeout: float | None = None) -> int:
        if not self.running():
            self.set_running_or_notify_cancel()
        self.set_result(self._read())
        return super().result(timeout)

    @override
    def exception(self, timeout: float | None = None) -> BaseException | None:
        self.result()
        return super().exception(timeout)


class _LateThread:
    """A thread that counts the reads that it was given."""

    def __init__(self) -> None:
        self.reads: list[_Read] = []

    def submit(self, read: Callable[[memoryview], int], target: memoryview) -> _Read:
        self.reads.append(_Read(lambda: read(target)))
        return self.reads[-1]


def test_the_next_read_begins_when_the_bytes_of_the_last_one_have_been_taken() -> None:
    """At the end there is nothing more to read."""
    thread: Any = _LateThread()
    ahead = _ahead(_Source(bytes(range(10))), thread)
    target = memoryview(bytearray(4))
    steps = []
    for _ in range(6):
        count = ahead.readinto(target)
        steps.append((bytes(target[:count]), len(thread.reads)))
    assert steps == [
        (b"\0\1\2\3", 1),  # a read returns 7 bytes, and 3 are left
        (b"\4\5\6", 2),
        (b"\7\x08\x09", 3),
        (b"", 3),
        (b"", 4),
        (b"", 5),
    ]
    ahead.start()
    ahead.start()
    assert ahead.readinto(target[:0]) == 0
    assert len(thread.reads) == 6


def test_a_source_is_closed_after_the_read_in_flight() -> None:
    """A read that has not begun is cancelled."""
    for is_running in (False, True):
        thread: Any = _LateThread()
        source = _Source(bytes(100))
        ahead = _ahead(source, thread)
        ahead.start()
        (read,) = thread.reads
        if is_running:
            read.set_running_or_notify_cancel()
        ahead.close()
        assert (source.is_closed, source.reads) == (True, int(is_running))


def test_a_source_is_closed_without_a_read() -> None:
    thread: Any = _LateThread()
    source = _Source(bytes(100))
    _ahead(source, thread).close()
    assert (source.is_closed, source.reads) == (True, 0)


class _LoggedStream(LocalStream):
    reads: list[int]
    threads: set[str]
    next_stream: Event
    number: int

    @override
    def readinto(self, target: memoryview) -> int:
        self.reads.append(self.number)
        self.threads.add(current_thread().name)
        if len(self.reads) == 1:
            self.next_stream.wait()
        return super().readinto(target[:100])


class _LoggedStore(LocalStore):
    """A store that numbers its streams, which return at most 100 bytes at a time, and logs each read.

    The first read waits until another stream is opened.
    """

    def __init__(self, root: Path, ids: SeededIds) -> None:
        super().__init__(root, ids)
        self.streams = 0
        self.reads: list[int] = []
        self.threads: set[str] = set()
        self.next_stream = Event()

    @override
    def open_stream(
        self, name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> LocalStream:
        stream = _LoggedStream(self._root, name, (position, end), self._counts, purpose)
        stream.reads, stream.number, stream.threads = self.reads, self.streams, self.threads
        stream.next_stream = self.next_stream
        self.streams += 1
        if self.streams == 2:
            self.next_stream.set()
        return stream


@pytest.mark.parametrize(("policy", "passes"), [("compact", 2), ("delete", 1)])
def test_the_next_input_is_requested_before_the_current_one_has_been_read(
    tmp_path: Path, policy: str, passes: int
) -> None:
    """Each input is requested once in each pass, so the number of requests is the same.

    One thread reads, one range at a time.
    """
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(tmp_path, ids), clock, ids)
    key = PartitionId(log.create_topic(policy), 0)
    for number in range(FILES):
        log.ingest({key: [batch((b"a", b"%d" % number), (b"%d" % number, bytes(1000)))]})
    spec = log.job()
    store = _LoggedStore(tmp_path, ids)

    result = run_compaction(spec, store, attempt_id=ids.new_uuid(), clock=clock, ids=ids)

    log.publish(spec, result)
    log.check()
    assert result.counts["get_requests"] == store.streams == passes * FILES
    for first in range(0, store.streams, FILES):
        for number, following in pairwise(range(first, first + FILES)):
            second_read = store.reads.index(number, store.reads.index(number) + 1)
            assert store.reads.index(following) < second_read
    assert store.threads == {"read-ahead_0"}


@pytest.mark.parametrize(
    ("streams", "ahead"), [(1, True), (100, True), (512, True), (513, False), (1024, False)]
)
def test_the_buffers_of_all_streams_fit_64_mib(streams: int, *, ahead: bool) -> None:
    size, reads_ahead = stream_buffers(streams)
    assert reads_ahead is ahead
    assert streams * size * (2 if ahead else 1) <= 64 << 20


@pytest.mark.parametrize(
    ("streams", "size"), [(0, 1 << 20), (1, 1 << 20), (64, 1 << 20), (65, (64 << 20) // 65), (1025, 64 << 10)]
)
def test_each_stream_has_a_share_within_bounds(streams: int, size: int) -> None:
    assert stream_buffer(streams) == size


@pytest.mark.parametrize(("policies", "streams"), [(["compact"], 2), (["compact", "delete"], 5)])
def test_a_job_over_one_partition_has_two_streams_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policies: list[str], streams: int
) -> None:
    """With several partitions, each pass has a stream for each file that it needs."""
    clock = ManualClock()
    ids = SeededIds(1, clock)
    log = ReferenceLog(LocalStore(tmp_path, ids), clock, ids)
    for policy in policies:
        key = PartitionId(log.create_topic(policy), 0)
        for number in range(2 if policy == "compact" else 1):
            log.ingest({key: [batch((b"a", b"%d" % number))]})
    counted: list[int] = []

    def count(streams: int) -> tuple[int, bool]:
        counted.append(streams)
        return stream_buffers(streams)

    monkeypatch.setattr(compaction_task, "stream_buffers", count)

    run_compaction(log.job(), log.store, attempt_id=ids.new_uuid(), clock=clock, ids=ids)

    assert counted == [streams]


def test_a_stream_that_reads_ahead_has_two_buffers_in_its_share() -> None:
    assert stream_buffers(40) == (stream_buffer(80), True)
    assert stream_buffers(600) == (stream_buffer(600), False)
