"""The markers that end transactions in the local logs of this agent.

The end of a transaction leaves a pending marker in the catalog for each local partition. Its leader appends
the marker to the log, makes it durable, and only then completes it in the catalog. If the agent dies between
these steps, the next one finds the marker pending, and the transaction ended in the log.

The leader looks for pending markers:

- when it starts;
- when it opens a log again, because the topic was undeleted;
- when a coordinator announces some;
- when a producer needs one;
- once a second while a transaction is open;
- otherwise every 30 s, because an announcement may be lost.

A partition whose disk is away keeps its markers in the catalog and holds up no other. A disk that hangs holds
up its own partitions only.

A transaction that is open in a log, and that the catalog does not know, was lost by a failover. No one else
can end it, so the leader aborts it.
"""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import structlog

from agent.local_topics.disks.disk_pools import DiskTasks
from agent.local_topics.transactions.log_transactions import abort, open_transactions, write_markers
from agent.runtime.cooperative_yield import map_bounded
from agent.runtime.errors import StoppingError
from agent.runtime.health import start_essential_task, stop_task
from catalog.model import PartitionId
from catalog.transactions.local_partitions import PAGE_MARKERS
from core.errors import NotFoundError, RetryableError, SiltstoneError
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path
    from uuid import UUID

    from agent.cluster.topic_directory import TopicDirectory
    from agent.local_topics.disks.disk_pools import DiskPools
    from agent.local_topics.moves.log_mover import LogMover
    from agent.local_topics.transactions.transaction_verifier import TransactionVerifier
    from agent.read.commit_notifier import CommitNotifier
    from agent.runtime.work_pool import WorkPool
    from catalog.model import OpenTransaction, Topic
    from catalog.transactions.local_partitions import PendingMarker
    from core.clock import Clock
    from core.outage import Outage
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_POLL_SECONDS: Final = 1.0
_CHECK_SECONDS: Final = 30.0
"""Interval between checks that the catalog knows the open transactions, and between looks for markers."""
_MAX_CHECKED: Final = 1_000
_MAX_PARTITIONS_AT_ONCE: Final = 8
_MAX_COMPLETED: Final = 64
"""Partitions whose markers are completed together."""


class MarkerTable(Protocol):
    """The pending markers in the catalog. The calls block."""

    def pending(self, node_id: int, *, after: int = 0) -> Sequence[PendingMarker]:
        """Return a page of the markers that a node must write, oldest first."""
        ...

    def complete(self, markers: Sequence[PendingMarker], /) -> None:
        """Delete markers that are durable in their logs."""
        ...


class UnknownTransactions(Protocol):
    """The catalog's confirmation that it does not know transactions. The call blocks."""

    def confirm_unknown_transactions(
        self, transactions: Sequence[OpenTransaction], /
    ) -> Sequence[OpenTransaction]:
        """Return those of the transactions that the catalog does not know."""
        ...


class LedPartitions(Protocol):
    """The partitions of a node in the catalog. The call blocks."""

    def directories_of(self, node_id: int, /) -> Mapping[PartitionId, UUID | None]:
        """Return the partitions that a node leads, with their directories."""
        ...


class LedLogs(Protocol):
    """The local logs of the partitions that this node leads."""

    def changing(
        self, topic: Topic, partition: PartitionId, /
    ) -> AbstractAsyncContextManager[tuple[UnifiedLog, int]]:
        """Yield the log and its leader epoch to a writer, under the lock of the partition."""
        ...


class MarkerWriter:
    """The task that writes markers. Belongs to the event loop."""

    def __init__(
        self,
        table: MarkerTable,
        unknown: UnknownTransactions,
        led: LedPartitions,
        *,
        node_id: int,
        manager: LogManager,
        logs: LedLogs,
        mover: LogMover,
        verifier: TransactionVerifier,
        directory: TopicDirectory,
        pool: WorkPool,
        disks: DiskPools,
        commit_notifier: CommitNotifier,
        clock: Clock,
        outage: Outage,
    ) -> None:
        self._table = table
        self._unknown = unknown
        self._led = led
        self._node_id = node_id
        self._manager = manager
        self._logs = logs
        self._mover = mover
        self._verifier = verifier
        self._directory = directory
        self._pool = pool
        self._disks = disks
        self._commit_notifier = commit_notifier
        self._clock = clock
        self._outage = outage
        self._woken = asyncio.Event()
        self._passing = asyncio.Lock()
        self._passes = 0
        self._is_stopped = False
        self._failed: SiltstoneError | None = None
        self._check_at = self._look_at = float("-inf")
        self._to_find: set[PartitionId] = set()
        self._knows_led = False
        self._writes = DiskTasks("write markers", ended_late=self._ended_late)
        self._checks = DiskTasks("check open transactions", ended_late=self._ended_late)
        self._task: asyncio.Task[None] | None = None
        self.written_markers = 0
        self.aborted_unknown = 0
        verifier.end_earlier = self._end_earlier

    def start(self) -> None:
        """Start the task."""
        self._task = start_essential_task(self._run(), name="transaction markers")

    @property
    def is_running(self) -> bool:
        """Return True if the task runs."""
        return self._task is not None and not self._task.done()

    async def stop(self) -> None:
        """Stop the task."""
        self._is_stopped = True
        await stop_task(self._task)
        await self._writes.stop()
        await self._checks.stop()

    def wake(self) -> None:
        """Look for pending markers now."""
        self._woken.set()

    def reopened(self, partition: PartitionId) -> None:
        """Look for markers and open transactions of a log that is served again: its topic was undeleted."""
        self._to_find.add(partition)
        self._verifier.verify_again(partition)
        self._check_soon()

    def check_again(self) -> None:
        """Check the open transactions now, because the catalog may have lost some."""
        self._verifier.verify_again()
        self._check_soon()

    def _check_soon(self) -> None:
        self._check_at = float("-inf")
        self._woken.set()

    async def write_pending(self) -> None:
        """Write the markers that are pending now. Callers that wait for the same pass share it.

        Raises StoppingError after `stop`.
        """
        if self._is_stopped:
            raise StoppingError("this agent is stopping", remedy="send the request to another agent")
        wanted = self._passes + 1  # a pass that runs already may have looked before
        async with self._passing:
            if self._passes < wanted:
                self._passes += 1
                self._failed = None
                self._look_at = self._clock.monotonic() + _CHECK_SECONDS
                try:
                    await self._write_all()
                except Exception as error:
                    self._fail(error)  # the task repeats the pass, also if a producer waited for it
                    raise

    async def _run(self) -> None:
        pause = 0.0
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), pause)
            is_due = self._woken.is_set() or self._failed is not None
            self._woken.clear()
            pause = _POLL_SECONDS
            try:
                if is_due or self._verifier.keys or self._clock.monotonic() >= self._look_at:
                    await self.write_pending()
                if self._to_find or not self._knows_led:
                    await self._find_open()
                if self._verifier.keys and self._clock.monotonic() >= self._check_at:
                    await self._check_open()
            except Exception as error:  # noqa: BLE001  # the task must survive any failure
                self._fail(error)
            if self._failed is None:
                self._outage.succeeded()
            else:
                pause = max(self._outage.failed(self._failed), pause)

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, SiltstoneError):
            _log.error("the markers of transactions could not be written", exc_info=error)
            error = SiltstoneError(f"an unexpected failure: {error!r}")
        self._failed = error

    def _ended_late(self, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            self._fail(error)
        self._woken.set()  # passes have skipped the directory meanwhile

    async def _find_open(self) -> None:
        """Watch the transactions that are open in the logs when the agent starts, or opens them again."""
        if not self._knows_led:
            led = await self._pool.run(partial(self._led.directories_of, self._node_id))
            self._to_find.update(led)
            self._knows_led = True
        logs = self._logs_of(self._to_find)
        self._to_find = {partition for each in logs.values() for partition in each}
        self._note_hung(
            await self._checks.run({path: partial(self._find_in, each) for path, each in logs.items()})
        )

    async def _find_in(self, logs: Mapping[PartitionId, UnifiedLog]) -> None:
        for partition in logs:
            found = await self._read(logs[partition], partition)
            if found is not None:
                for each in found:
                    self._verifier.watch((partition, each.producer_id))
                self._to_find.discard(partition)

    async def _write_all(self) -> None:
        after: int | None = 0
        while after is not None:
            page = await self._pool.run(partial(self._table.pending, self._node_id, after=after))
            # A page that is not full ends the pass. Producers and checks wait for it, and markers follow
            # for ever: the next pass writes them, and those that have become pending behind `after`.
            after = page[-1].number if len(page) >= PAGE_MARKERS else None
            in_order = sorted(page, key=attrgetter("partition", "number"))
            by_directory: dict[Path | None, list[list[PendingMarker]]] = {}
            for partition, markers in groupby(in_order, key=attrgetter("partition")):
                directory = await self._directory_of(partition)
                by_directory.setdefault(directory, []).append(list(markers))
            work = {path: partial(self._write_in, groups) for path, groups in by_directory.items()}
            self._note_hung(await self._writes.run(work))

    async def _directory_of(self, partition: PartitionId) -> Path | None:
        """Return the log directory of a partition, the target if the log moves, or None if it is unknown.

        The move holds the lock of the partition while it writes there.
        """
        if (target := self._mover.target_of(partition)) is not None:
            return target
        try:
            topic = await self._directory.get_by_id(partition.topic_id)
        except SiltstoneError:
            return None  # the write says why
        log = self._manager.get(TopicPartition(topic.name, partition.partition))
        return None if log is None else log.directory.parent

    def _note_hung(self, directories: Collection[Path | None]) -> None:
        if directories:
            names = ", ".join(sorted(str(each or "without a log") for each in directories))
            self._failed = RetryableError(
                f"log directories do not respond, and their partitions wait for markers: {names}",
                remedy="check the disks; restart the agent if they work",
            )

    async def _write_in(self, groups: Sequence[Sequence[PendingMarker]]) -> None:
        """Write the markers of the partitions of a directory, and complete those that are durable."""
        for start in range(0, len(groups), _MAX_COMPLETED):
            some = groups[start : start + _MAX_COMPLETED]
            written = await map_bounded(self._write, some, limit=_MAX_PARTITIONS_AT_ONCE)
            if complete := [marker for markers in written for marker in markers]:
                await self._pool.run(partial(self._table.complete, complete))

    async def _write(self, markers: Sequence[PendingMarker]) -> Sequence[PendingMarker]:
        """Write the markers of a partition durably; return those that are complete, none after a failure."""
        partition = markers[0].partition
        try:
            topic = await self._directory.get_by_id(partition.topic_id)
            async with self._logs.changing(topic, partition) as (log, epoch):
                write = partial(write_markers, log, epoch, markers)
                written = await self._end_in(log, partition, {each.producer_id for each in markers}, write)
                self.written_markers += written  # not before the call has ended: others count meanwhile
            self._commit_notifier.wake([partition])
            await self._disks.of(log).run(log.flush)
        except NotFoundError:
            return []  # the topic was deleted with its markers
        except Exception as error:  # noqa: BLE001  # the other partitions must not wait
            self._fail(error)
            return []
        return markers

    async def _end_in(
        self, log: UnifiedLog, partition: PartitionId, producer_ids: Collection[int], end: Callable[[], T]
    ) -> T:
        """Let `end` append markers of these producers, under the lock of the partition.

        It voids their verifications afterwards, so also those that began meanwhile. A transaction that is
        still open is not that of its marker: another one of the producer, which must stay watched.
        """
        open_after = set(producer_ids)  # after a failure it is not known

        def end_and_look() -> tuple[T, set[int]]:
            return end(), {each for each in producer_ids if log.open_transaction(each) is not None}

        try:
            ended, open_after = await self._disks.of(log).run(end_and_look)
        finally:
            for each in producer_ids:
                self._verifier.void((partition, each), is_open=each in open_after)
        return ended

    async def _check_open(self) -> None:
        """Abort the open transactions that the catalog does not know."""
        self._check_at = self._clock.monotonic() + _CHECK_SECONDS
        watched = self._verifier.open_transactions()
        logs = self._logs_of({partition for partition, _ in watched})
        known = {partition for each in logs.values() for partition in each}
        for key in watched:
            if key[0] not in known:
                self._verifier.drop(key, watched[key])
        self._note_hung(
            await self._checks.run({path: partial(self._check_in, each) for path, each in logs.items()})
        )

    async def _check_in(self, logs: Mapping[PartitionId, UnifiedLog]) -> None:
        watched = self._verifier.open_transactions()
        found: list[OpenTransaction] = []
        known: set[PartitionId] = set()
        for partition, log in logs.items():
            if (transactions := await self._read(log, partition)) is not None:
                known.add(partition)
                found += transactions
        for start in range(0, len(found), _MAX_CHECKED):
            await self._abort_unknown(found[start : start + _MAX_CHECKED])
        for key in watched.keys() - {(each.partition, each.producer_id) for each in found}:
            if key[0] in known:
                self._verifier.drop(key, watched[key])

    def _logs_of(
        self, partitions: Collection[PartitionId]
    ) -> dict[Path | None, dict[PartitionId, UnifiedLog]]:
        """Return the logs of these partitions that are open, by log directory."""
        logs: dict[Path | None, dict[PartitionId, UnifiedLog]] = {}
        for log in self._manager.logs():
            if log.topic_id is None or log.is_offline:
                continue
            partition = PartitionId(log.topic_id, log.topic_partition.partition)
            if partition in partitions:
                logs.setdefault(log.directory.parent, {})[partition] = log
        return logs

    async def _read(self, log: UnifiedLog, partition: PartitionId) -> list[OpenTransaction] | None:
        """Return the open transactions of a log; None after a failure, which another check follows soon.

        A log may be closed, because it was deleted or replaced by its copy.
        """
        try:
            return await self._disks.of(log).run(partial(open_transactions, log, partition))
        except SiltstoneError as error:
            self._failed = error
            self._check_at = float("-inf")
            return None

    async def _abort_unknown(self, found: Sequence[OpenTransaction]) -> None:
        confirm = partial(self._unknown.confirm_unknown_transactions, found)
        for unknown in await self._pool.run(confirm):
            try:
                await self._abort_in_log(unknown)
            except NotFoundError:
                pass  # the topic was deleted with its transactions
            except SiltstoneError as error:
                self._failed = error  # another check repeats it; other partitions must not wait
                self._check_at = float("-inf")

    async def _abort_in_log(self, unknown: OpenTransaction) -> None:
        partition = unknown.partition
        topic = await self._directory.get_by_id(partition.topic_id)
        async with self._logs.changing(topic, partition) as (log, epoch):
            end = partial(abort, log, epoch, unknown, self._clock.now_ms())
            was_open = await self._end_in(log, partition, {unknown.producer_id}, end)
        if was_open:
            self.aborted_unknown += 1
            _log.warning(
                "a transaction that the catalog has lost was aborted in a local log",
                partition=f"{topic.name}-{partition.partition}",
                producer_id=unknown.producer_id,
                first_offset=unknown.first_offset,
            )
            self._commit_notifier.wake([partition])

    async def _end_earlier(self, partition: PartitionId, earlier: OpenTransaction | None) -> None:
        await self.write_pending()
        await self._writes.settle(await self._directory_of(partition))
        if earlier is not None:
            await self._abort_unknown([earlier])
