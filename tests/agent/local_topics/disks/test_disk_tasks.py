"""Tasks of log directories: callers wait a bounded time, and errors and late ends reach them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agent.local_topics.disks import disk_pools
from agent.local_topics.disks.disk_pools import DiskTasks

_ONE, _TWO = Path("one"), Path("two")


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_pools, "PATIENCE_SECONDS", 0.05)


class _Disk:
    """Work that waits until it may end, and counts its runs."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_end = asyncio.Event()
        self.runs = 0
        self._error = error

    async def work(self) -> None:
        self.runs += 1
        await self.may_end.wait()
        if self._error is not None:
            raise self._error


def test_a_disk_that_hangs_gets_no_second_task_and_holds_up_no_other() -> None:
    async def run() -> None:
        late: list[BaseException | None] = []
        tasks = DiskTasks("test", ended_late=late.append)
        hung, works = _Disk(), _Disk()
        works.may_end.set()
        for runs in (1, 2):
            assert await tasks.run({_ONE: hung.work, _TWO: works.work}) == {_ONE}
            assert (hung.runs, works.runs) == (1, runs)
        await tasks.settle(_ONE)
        assert not late
        hung.may_end.set()
        await tasks.settle(_ONE)
        await tasks.settle(_TWO)
        assert late == [None]
        assert await tasks.run({_ONE: hung.work, _TWO: works.work}) == set()
        assert hung.runs == 2

    asyncio.run(run())


def test_an_error_is_raised_after_the_others_have_ended() -> None:
    async def run() -> None:
        tasks = DiskTasks("test", ended_late=print)
        failing, works = _Disk(OSError("no")), _Disk()
        failing.may_end.set()

        async def end_soon() -> None:
            await asyncio.sleep(0.01)
            works.may_end.set()

        with pytest.raises(OSError, match="no"):
            await asyncio.gather(tasks.run({_ONE: failing.work, _TWO: works.work}), end_soon())
        assert works.runs == 1
        works.may_end.set()
        assert await tasks.run({_TWO: works.work}) == set()

    asyncio.run(run())


def test_a_late_error_is_reported() -> None:
    async def run() -> None:
        late: list[BaseException | None] = []
        tasks = DiskTasks("test", ended_late=late.append)
        failing = _Disk(OSError("no"))
        assert await tasks.run({None: failing.work}) == {None}
        failing.may_end.set()
        await tasks.settle(None)
        assert [str(each) for each in late] == ["no"]

    asyncio.run(run())


def test_a_stop_cancels_tasks_and_lets_their_callers_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        monkeypatch.setattr(disk_pools, "PATIENCE_SECONDS", 60.0)
        late: list[BaseException | None] = []
        tasks = DiskTasks("test", ended_late=late.append)
        hung = _Disk()
        waiting = asyncio.create_task(tasks.run({_ONE: hung.work}))
        await asyncio.sleep(0.01)
        await tasks.stop()
        assert await waiting == {_ONE}
        assert not late

    asyncio.run(run())
