"""Reads of log directories: those that hang are left out, and those with much to do are waited for."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from typing_extensions import override

from agent.cluster.errors import DiskLateError
from agent.local_topics.disks import disk_pools
from agent.local_topics.disks.disk_pools import DiskPools
from local_tier.topic_partition import TopicPartition
from tests.agent.kafka.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from local_tier.log.unified_log import UnifiedLog

_DIRECTORY = Path("disk")
_SECONDS = 100.0


@pytest.fixture(autouse=True)
def _long_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_pools, "_QUEUE_SECONDS", _SECONDS)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop whose time can be advanced."""

    ahead = 0.0

    @override
    def time(self) -> float:
        return super().time() + self.ahead


def _advance(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Loop)
    loop.ahead += seconds


def _log(partition: int) -> UnifiedLog:
    name = TopicPartition("t", partition)
    return cast("UnifiedLog", SimpleNamespace(directory=_DIRECTORY / str(name), topic_partition=name))


class _Disk:
    """A directory with two threads, and calls that wait until they may end."""

    def __init__(self) -> None:
        self.pools = DiskPools([_DIRECTORY], threads=2, max_waiting=10, max_append_bytes=1)
        self.notified: list[int] = []

    def read(self, partition: int, may_end: threading.Event | None = None) -> Coroutine[Any, Any, bool]:
        """Return the read of a log, which ends at once unless there is an event that it waits for."""
        return self.pools.read_in_time(
            _log(partition),
            partial(bool, True) if may_end is None else may_end.wait,
            seconds=_SECONDS,
            responded=partial(self.notified.append, partition),
        )

    async def begin(self, partition: int, may_end: threading.Event) -> asyncio.Task[bool]:
        """Begin such a read in a thread."""
        begun = threading.Event()

        def wait() -> bool:
            begun.set()
            return may_end.wait()

        log, notify = _log(partition), partial(self.notified.append, partition)
        task = asyncio.create_task(self.pools.read_in_time(log, wait, seconds=_SECONDS, responded=notify))
        assert await asyncio.to_thread(begun.wait, 240)
        return task

    async def until_pending(self, count: int) -> None:
        """Wait until only this number of calls is under way."""
        await asyncio.to_thread(until, lambda: self.pools.pending <= count, pause=0.001)


def _run(test: Callable[[_Disk, threading.Event], Coroutine[Any, Any, None]]) -> None:
    """Run a test with a disk, and an event that is set when the test ends."""
    event = threading.Event()

    async def run() -> None:
        disk = _Disk()
        try:
            await test(disk, event)
        finally:
            event.set()
            await asyncio.to_thread(disk.pools.close)

    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(run())


def test_the_partitions_of_late_and_of_refused_reads_are_notified_once() -> None:
    async def run(disk: _Disk, may_end: threading.Event) -> None:
        late = await disk.begin(0, may_end)
        _advance(_SECONDS)
        with pytest.raises(DiskLateError):
            await late
        for partition in (0, 1, 2, 1):
            with pytest.raises(DiskLateError):
                await disk.read(partition)
        assert disk.notified == []
        may_end.set()
        await disk.until_pending(0)
        assert disk.notified == [0, 1, 2]
        assert await disk.read(1)

    _run(run)


def test_a_read_is_not_late_while_other_reads_end() -> None:
    async def run(disk: _Disk, may_end: threading.Event) -> None:
        slow = await disk.begin(0, may_end)
        for _ in range(3):
            _advance(0.8 * _SECONDS)
            assert await disk.read(1)
        may_end.set()
        assert await slow
        assert disk.notified == []

    _run(run)


def test_a_read_is_late_if_it_runs_while_only_other_calls_end() -> None:
    """A disk may take appends into memory while it hangs."""

    async def run(disk: _Disk, may_end: threading.Event) -> None:
        late = await disk.begin(0, may_end)
        for _ in range(2):
            _advance(0.6 * _SECONDS)
            await disk.pools.at(_DIRECTORY).run(lambda: None)
        with pytest.raises(DiskLateError):
            await late

    _run(run)


def test_a_read_waits_for_a_thread_as_long_as_calls_end() -> None:
    async def run(disk: _Disk, may_end: threading.Event) -> None:
        pool = disk.pools.at(_DIRECTORY)
        ends = [threading.Event() for _ in range(4)]
        calls = [asyncio.create_task(pool.run(end.wait)) for end in (*ends, may_end, may_end)]
        await asyncio.sleep(0)
        waiting = asyncio.create_task(disk.read(0))
        for count, end in enumerate(ends, 1):
            _advance(0.8 * _SECONDS)
            await asyncio.sleep(0)
            end.set()
            await disk.until_pending(len(calls) + 1 - count)
            assert not waiting.done()
        may_end.set()
        assert await waiting

    _run(run)


def test_a_read_is_late_if_it_waits_for_a_thread_and_no_call_ends() -> None:
    async def run(disk: _Disk, may_end: threading.Event) -> None:
        pool = disk.pools.at(_DIRECTORY)
        calls = [asyncio.create_task(pool.run(may_end.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        waiting = asyncio.create_task(disk.read(0))
        await asyncio.sleep(0)
        _advance(_SECONDS)
        with pytest.raises(DiskLateError):
            await waiting
        may_end.set()
        await asyncio.gather(*calls)
        await disk.until_pending(0)
        assert disk.notified == [0]

    _run(run)


def test_a_cancelled_read_is_not_a_response() -> None:
    async def run(disk: _Disk, may_end: threading.Event) -> None:
        first_may_end = threading.Event()
        cancelled, late = await disk.begin(0, first_may_end), await disk.begin(1, may_end)
        cancelled.cancel()
        _advance(_SECONDS)
        with pytest.raises(DiskLateError):
            await late
        first_may_end.set()
        await disk.until_pending(1)
        with pytest.raises(DiskLateError):
            await disk.read(2)
        assert disk.notified == []

    _run(run)
