"""Threads, memory and tasks for the work on each log directory.

A disk that hangs holds up its own threads, its own share of the memory and its own tasks. Other disks have
theirs. A read that need not have its result does not wait for a directory that hangs. A directory with much
to do does not hang: as long as calls end, reads wait for their threads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from agent.cluster.errors import DiskLateError
from agent.runtime.byte_budget import ByteBudget
from agent.runtime.work_pool import WorkPool

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from local_tier.log.unified_log import UnifiedLog
    from local_tier.topic_partition import TopicPartition

    T = TypeVar("T")
    DirectoryWork = Callable[[], Coroutine[Any, Any, None]]

PATIENCE_SECONDS: Final = 0.5
"""How long callers wait for the task of a directory. A slow disk holds up the others for so long."""
_QUEUE_SECONDS: Final = 2.0
"""How long a read waits for a thread while no call ends. Appends and flushes may take long."""


class DiskPools:
    """One pool of threads and one budget of pending appends for each log directory."""

    def __init__(
        self,
        directories: Sequence[Path],
        *,
        threads: int,
        max_waiting: int,
        max_append_bytes: int,
        min_share_bytes: int = 0,
    ) -> None:
        share = max(max_append_bytes // max(len(directories), 1), min_share_bytes)
        self._pools = {
            path: WorkPool(f"disk {number}", threads=threads, max_waiting=max_waiting)
            for number, path in enumerate(directories)
        }
        self._budgets = {path: ByteBudget(f"the buffer of appends to {path}", share) for path in directories}
        # The loop's time when the last read of a directory ended.
        self._responded_at = dict.fromkeys(directories, 0.0)
        # The directories that hang, and the callbacks for their responses.
        self._hung: dict[Path, dict[TopicPartition, Callable[[], object]]] = {}

    @property
    def pending(self) -> int:
        """The number of running and waiting calls."""
        return sum(pool.pending for pool in self._pools.values())

    def at(self, directory: Path) -> WorkPool:
        """Return the threads of a directory."""
        return self._pools[directory]

    def of(self, log: UnifiedLog) -> WorkPool:
        """Return the threads of a log's directory."""
        return self._pools[log.directory.parent]

    async def read_in_time(
        self,
        log: UnifiedLog,
        read: Callable[[], T],
        *,
        seconds: float,
        responded: Callable[[], object] | None = None,
    ) -> T:
        """Return the result of a read of a log, unless its directory hangs.

        The directory hangs if no read of it ends for `seconds` while this one runs, or if no call at all
        ends for two seconds while this one waits for a thread. A late read continues. The directory hangs
        until any read of it ends.

        Raises DiskLateError if the directory hangs, at once if it does already. `responded` is called when
        the directory responds after that. The last callback of each partition counts.
        """
        directory, loop = log.directory.parent, asyncio.get_running_loop()
        started: list[float] = []

        def run() -> T:
            started.append(loop.time())
            return read()

        if directory not in self._hung:
            begin = loop.time()
            call = asyncio.ensure_future(self.of(log).run(run))
            call.add_done_callback(partial(self._read_ended, directory, started))
            try:
                while (left := self._time_left(directory, begin, started, seconds)) > 0:
                    # It may have started meanwhile, so its time may end before that of the queue.
                    if (await asyncio.wait([call], timeout=min(left, seconds)))[0]:
                        return call.result()
            except asyncio.CancelledError:
                call.cancel()
                raise
        callbacks = self._hung.setdefault(directory, {})
        if responded is not None:
            callbacks[log.topic_partition] = responded
        raise DiskLateError(
            f"the disk of {log.topic_partition} does not respond",
            remedy="retry, and check the disk if this persists",
            retry_after_seconds=1.0,
        )

    def _time_left(self, directory: Path, begin: float, started: Sequence[float], seconds: float) -> float:
        """Return the seconds after which the directory of a read hangs if nothing ends until then."""
        now = asyncio.get_running_loop().time()
        if started:
            return max(started[0], self._responded_at[directory]) + seconds - now
        return max(begin, self.at(directory).ended_at) + _QUEUE_SECONDS - now

    def _read_ended(self, directory: Path, started: Sequence[float], read: asyncio.Future[object]) -> None:
        if read.cancelled():
            return
        read.exception()  # mark it as retrieved
        if started:
            self._responded_at[directory] = asyncio.get_running_loop().time()
            for responded in self._hung.pop(directory, {}).values():
                responded()

    def budget_of(self, log: UnifiedLog | None) -> ByteBudget:
        """Return the budget of a log's directory. A log that does not exist yet may use any."""
        if log is not None:
            return self._budgets[log.directory.parent]
        return min(self._budgets.values(), key=lambda budget: budget.used)

    def close(self) -> None:
        """Cancel the calls that have not started, and wait for the others."""
        for pool in self._pools.values():
            pool.close()


class DiskTasks:
    """At most one task for each log directory. Belongs to the event loop.

    `ended_late` is called when a task ends that its caller has not waited for, with its error if it has one.
    The directory None stands for work whose directory is not known.
    """

    def __init__(self, name: str, *, ended_late: Callable[[BaseException | None], None]) -> None:
        self._name = name
        self._ended_late = ended_late
        self._running: dict[Path | None, asyncio.Task[None]] = {}

    async def run(self, work: Mapping[Path | None, DirectoryWork]) -> set[Path | None]:
        """Run the work of each directory, and return the directories that did not respond in time.

        Their work continues, unless `stop` cancels it. A directory whose last task still runs gets no new one
        and does not respond either. Raises the error of a task after the others have ended or are late.
        """
        tasks = {path: self._start(path, call) for path, call in work.items() if path not in self._running}
        ended: set[asyncio.Task[None]] = set()
        if tasks:
            ended, late = await asyncio.wait(tasks.values(), timeout=PATIENCE_SECONDS)
            for task in late:
                task.add_done_callback(self._note_late)
        ended = {task for task in ended if not task.cancelled()}
        if errors := [error for task in ended if (error := task.exception()) is not None]:
            raise errors[0]
        return {path for path in work if tasks.get(path) not in ended}

    async def settle(self, path: Path | None) -> None:
        """Wait until the task of a directory has ended, as long as `run` does."""
        if (task := self._running.get(path)) is not None:
            await asyncio.wait([task], timeout=PATIENCE_SECONDS)

    async def stop(self) -> None:
        """Cancel all tasks. Calls of threads that have begun run to their end."""
        running = [*self._running.values()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _start(self, path: Path | None, call: DirectoryWork) -> asyncio.Task[None]:
        task = self._running[path] = asyncio.create_task(call(), name=self._name)
        task.add_done_callback(partial(self._ended, path))
        return task

    def _ended(self, path: Path | None, _: asyncio.Task[None]) -> None:
        del self._running[path]

    def _note_late(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            self._ended_late(task.exception())
