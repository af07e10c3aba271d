"""Local topics (`storage.mode=local`): appends and reads of the partitions that this agent leads.

One node leads a partition as long as its log lies there. It acknowledges an append after its own write,
durable by the topic's `flush.messages`. An append that must be durable shares its fsync with all appends that
arrived during the previous one. Offsets do not involve the catalog, only leadership does.

The appends of a partition are written in the order in which they were enqueued. Each transactional producer
has a separate queue, because the first batch of a transaction waits for the catalog, and must not hold up
other producers. The bytes that wait are bounded for each log directory. Beyond the bound,
producers must retry. A disk that hangs holds up its own partitions only.

A batch that comes after a failed one of its producer is refused, also if the log has no state of the producer
and would accept it. As for object topics, the refusal is retriable for a time (`FailedProducers`).
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from agent.cluster.errors import AppendFailedError, DiskLateError, NotLeaderError
from agent.local_topics.disks.disk_pools import PATIENCE_SECONDS
from agent.local_topics.disks.log_config import log_config_of
from agent.local_topics.partition_locks import PartitionLocks
from agent.read.fetch_result import offset_error
from agent.read.hot_tail import TailRead
from agent.runtime.cooperative_yield import CooperativeYield
from agent.runtime.errors import BusyError, StoppingError
from agent.write.failed_producers import FOLLOWS_FAILED_DETAIL
from agent.write.pending_append import AppendResult, PendingAppend
from agent.write.validation import append_rules_of
from catalog.errors import TransactionRefusal, TransactionRefusedError
from catalog.model import AbortedTransaction, PartitionId, PartitionState, RunRefusal
from catalog.topics.local_leaders import UNASSIGNED
from core.errors import SiltstoneError
from local_tier.errors import (
    InvalidProducerEpochError,
    InvalidTransactionError,
    LogClosedError,
    LogDirectoryOfflineError,
    OutOfOrderSequenceError,
)
from local_tier.log.unified_log import Isolation
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
    from pathlib import Path
    from uuid import UUID

    from agent.cluster.brokers import Brokers
    from agent.local_topics.disks.disk_pools import DiskPools
    from agent.local_topics.disks.known_topics import KnownTopics
    from agent.local_topics.leaders import LeaderDirectory
    from agent.local_topics.moves.log_mover import LogMover
    from agent.local_topics.transactions.transaction_verifier import TransactionVerifier
    from agent.read.commit_notifier import CommitNotifier
    from agent.read.fetch_plan import Cursor
    from agent.runtime.byte_budget import ByteBudget
    from agent.runtime.work_pool import WorkPool
    from agent.write.failed_producers import FailedProducers
    from agent.write.validation import ValidatedAppend
    from catalog.model import ProducerStamp, Topic
    from catalog.topics.local_leaders import LocalLeader
    from local_tier.log.local_log import LogRead
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager
    from local_tier.manager.set_aside_logs import SetAsideLog

T = TypeVar("T")
_log = structlog.get_logger(__name__)
_REFUSALS = {
    OutOfOrderSequenceError: RunRefusal.OUT_OF_ORDER_SEQUENCE,
    InvalidProducerEpochError: RunRefusal.INVALID_PRODUCER_EPOCH,
    InvalidTransactionError: RunRefusal.INVALID_TXN_STATE,
}
_VERIFICATION_REFUSALS = {
    TransactionRefusal.INVALID_PRODUCER_ID_MAPPING: RunRefusal.INVALID_PRODUCER_ID_MAPPING,
    TransactionRefusal.PRODUCER_FENCED: RunRefusal.INVALID_PRODUCER_EPOCH,
    TransactionRefusal.INVALID_TXN_STATE: RunRefusal.INVALID_TXN_STATE,
}


@dataclass(frozen=True, slots=True)
class _Item:
    """An append that waits, its result, and the budget that counts its bytes."""

    validated: ValidatedAppend
    pending: PendingAppend
    budget: ByteBudget

    @property
    def transactional(self) -> ProducerStamp | None:
        """The transactional producer, if it has one."""
        stamp = self.validated.stamp
        return stamp if stamp is not None and stamp.is_transactional else None


def no_local_disks_error(name: str) -> NotLeaderError:
    """Return the error of an agent without disks for a local topic."""
    return NotLeaderError(
        f"topic {name!r} has storage.mode=local, and this agent leads no local topic",
        remedy="send the request to an agent that serves Kafka clients and has a log directory",
    )


class LocalTopics:
    """The partitions that this agent leads. Belongs to the event loop."""

    def __init__(
        self,
        manager: LogManager,
        leaders: LeaderDirectory,
        brokers: Brokers,
        *,
        pool: WorkPool,
        disks: DiskPools,
        commit_notifier: CommitNotifier,
        changes: PartitionLocks,
        mover: LogMover,
        verifier: TransactionVerifier,
        failed_producers: FailedProducers,
        sync_soon: Callable[[Path], None],
        known_topics: KnownTopics,
        recorded_directories: Collection[UUID] = (),
    ) -> None:
        self._manager = manager
        self._leaders = leaders
        self._brokers = brokers
        self._pool = pool
        self._disks = disks
        self._commit_notifier = commit_notifier
        self._changes = changes
        self.mover = mover
        self._verifier = verifier
        self._failed = failed_producers
        self._sync_soon = sync_soon
        self._known_topics = known_topics
        self._reopening = PartitionLocks()
        self._queues: dict[tuple[PartitionId, int | None], deque[_Item]] = {}
        self._recorded_directories = set(recorded_directories)
        self._running: set[asyncio.Task[None]] = set()

    async def find_leaders(self, topics: Sequence[Topic]) -> None:
        """Look up the leaders of these topics together, for the operations of the next moment."""
        await self._leaders.of_many(topics, await self._brokers.live())

    async def log(self, topic: Topic, partition: int) -> tuple[UnifiedLog, int]:
        """Return the log that this agent leads, and its leader epoch.

        Raises `NotLeaderError` if another agent leads it, or none, and `LogDirectoryOfflineError` if the log
        is not in the directory that the catalog has recorded.
        """
        leader = (await self._leaders.of(topic, await self._brokers.live())).get(partition)
        current = self._current(topic, partition)
        if current is None and self._find_set_aside(topic, partition, leader) is not None:
            leader = await self._reopen(topic, partition)
            current = self._current(topic, partition)
        where = f"{topic.name}-{partition}"
        if leader is None:
            raise NotLeaderError(
                f"no live agent with local disks can lead {where}", remedy="start one with a log directory"
            )
        if leader.node_id != self._brokers.own.node_id:
            raise NotLeaderError(
                f"{where} is led by node {leader.node_id}", remedy="send the request to that agent"
            )
        name = TopicPartition(topic.name, partition)
        if leader.directory_id is None and leader.leader_epoch > 0:
            raise LogDirectoryOfflineError(
                f"log {name} may be in a log directory that was not open when this agent started",
                remedy="repair or mount all disks of the agent, then start it again",
            )
        partition_id = PartitionId(topic.topic_id, partition)
        if current is not None and self.mover.is_switching(partition_id):
            return current, leader.leader_epoch
        if leader.directory_id in {None, UNASSIGNED}:
            return await self._create(topic, partition, leader), leader.leader_epoch
        assert leader.directory_id is not None
        if current is None and (misnamed := self._manager.find_misnamed(name, topic.topic_id)) is not None:
            self._sync_soon(misnamed.directory.parent)  # the client retries, and finds it under its new name
        directory_id = await self._directory_of(partition_id, current, leader.directory_id)
        return self._manager.get_existing(name, topic.topic_id, directory_id), leader.leader_epoch

    def _current(self, topic: Topic, partition: int) -> UnifiedLog | None:
        """Return the log of a partition, unless it is that of another topic of the same name."""
        log = self._manager.get(TopicPartition(topic.name, partition))
        return log if log is not None and log.topic_id == topic.topic_id else None

    def _find_set_aside(self, topic: Topic, partition: int, leader: LocalLeader | None) -> SetAsideLog | None:
        """Return the log of a partition that was set aside, if this agent may open it again."""
        if leader is None or leader.node_id != self._brokers.own.node_id:
            return None
        recorded = None if leader.directory_id == UNASSIGNED else leader.directory_id
        return self._manager.reopening.find(topic.topic_id, partition, recorded)

    async def _reopen(self, topic: Topic, partition: int) -> LocalLeader | None:
        """Open the log of an undeleted topic again; return the leader of the partition.

        It stays as it is if another node leads the partition, or if the topic was deleted again. Raises
        LogDirectoryOfflineError if the log is not open in time: the disk may hang. Opening it continues then.
        """
        partition_id = PartitionId(topic.topic_id, partition)
        async with self._reopening.hold(partition_id):
            self._known_topics.note_new_log(topic)
            leader = (await self._leaders.refresh(topic, await self._brokers.live())).get(partition)
            found = self._find_set_aside(topic, partition, leader)
            if found is not None:
                name, config = TopicPartition(topic.name, partition), log_config_of(topic.config)
                reopen = partial(self._manager.reopening.reopen, name, found, config)
                call = asyncio.ensure_future(self._disks.at(found.path.parent).run(reopen))
                if not (await asyncio.wait([call], timeout=PATIENCE_SECONDS))[0]:
                    call.add_done_callback(_ignore_result)
                    raise LogDirectoryOfflineError(f"log {name} is being opened again", remedy="retry")
                call.result()
            return leader

    async def _directory_of(self, partition: PartitionId, log: UnifiedLog | None, recorded: UUID) -> UUID:
        """Return the directory of a log, and record it if the catalog has another one.

        What is known as recorded may be a moment old. A failover of the catalog may have lost the record of a
        move, and a record of a process that has ended may arrive late.
        """
        directory_id = None if log is None else self._manager.directory_id(log.directory.parent)
        if directory_id in {None, recorded}:
            return recorded
        assert directory_id is not None
        node_id = self._brokers.own.node_id
        return await self._leaders.assign(partition, node_id, directory_id, source=recorded) or recorded

    @property
    def directories_away(self) -> int:
        """The number of log directories of this node's partitions that are not open."""
        recorded = self._recorded_directories | self.mover.target_ids
        return len(recorded - self._manager.directory_ids)

    async def _create(self, topic: Topic, partition: int, leader: LocalLeader) -> UnifiedLog:
        """Create a log, and record its directory in the catalog before it gets a record."""
        create = partial(
            self._manager.get_or_create,
            topic.name,
            topic.topic_id,
            partition,
            log_config_of(topic.config),
        )
        log = await self._pool.run(create)
        self._known_topics.note_new_log(topic)  # before it has a record
        directory_id = self._manager.directory_id(log.directory.parent)
        if directory_id is None:
            raise LogDirectoryOfflineError(
                f"log directory {log.directory.parent} has failed", remedy="retry, to use another directory"
            )
        recorded = await self._leaders.assign(
            PartitionId(topic.topic_id, partition), leader.node_id, directory_id
        )
        if recorded is None:
            raise NotLeaderError(
                f"this agent does not lead {topic.name}-{partition} any more", remedy="retry"
            )
        self._recorded_directories.add(recorded)
        return self._manager.get_existing(log.topic_partition, topic.topic_id, recorded)

    def enqueue(self, validated: ValidatedAppend) -> PendingAppend:
        """Append after the batches that were enqueued before. The append fails if the buffer is full."""
        topic = validated.topic
        budget = self._disks.budget_of(self._manager.get(TopicPartition(topic.name, validated.partition)))
        pending = PendingAppend(len(validated.batches))
        partition = PartitionId(topic.topic_id, validated.partition)
        item = _Item(validated, pending, budget)
        try:
            budget.reserve(len(validated.data))
        except BusyError as error:
            pending.complete(0, self._judge(item, [AppendResult(error=error)] * len(validated.batches)))
            if (stamp := item.transactional) is not None:
                self._verifier.note_failure((partition, stamp.producer_id), stamp)
            return pending
        stamp = item.transactional
        key = partition, None if stamp is None else stamp.producer_id
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = deque()
            task = asyncio.get_running_loop().create_task(
                self._drain(topic, key, queue), name="local appends"
            )
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        queue.append(item)
        return pending

    async def _drain(self, topic: Topic, key: tuple[PartitionId, int | None], queue: deque[_Item]) -> None:
        partition, _ = key
        while queue:
            items = self._take(partition, queue)
            outcomes = await self._outcomes(topic, partition, items)
            if outcomes is None:
                queue.extendleft(reversed(items))
                continue
            for item, results in zip(items, outcomes, strict=True):
                item.pending.complete(0, self._judge(item, results))
                item.budget.release(len(item.validated.data))
            self._commit_notifier.wake([partition])
        del self._queues[key]

    def _judge(self, item: _Item, results: list[AppendResult]) -> list[AppendResult]:
        """Return the results of an append, with a refusal if the log rejected it; note another failure."""
        stamp, error = item.validated.stamp, results[0].error if results else None
        if error is None:
            return results
        refusal = _REFUSALS.get(type(error))
        if refusal is None:
            if stamp is not None:
                self._failed.note([stamp.identity])
            return results
        result = AppendResult(refusal=refusal, detail=error.message)
        is_gap = isinstance(error, OutOfOrderSequenceError) and not error.is_behind
        if is_gap and self._failed.include(stamp):
            result = AppendResult(refusal=RunRefusal.FOLLOWS_FAILED, detail=FOLLOWS_FAILED_DETAIL)
        return [result] * len(results)

    def _take(self, partition: PartitionId, queue: deque[_Item]) -> list[_Item]:
        """Return the first item, and those that follow if none of them needs verification.

        The first batch that is appended identifies the transaction, so it is appended alone.
        """
        items = [queue.popleft()]
        if not self._needs_verification(partition, items[0]):
            while queue and not self._needs_verification(partition, queue[0]):
                items.append(queue.popleft())
        return items

    def _needs_verification(self, partition: PartitionId, item: _Item) -> bool:
        stamp = item.transactional
        return stamp is not None and self._verifier.needs_verification(partition, stamp)

    async def _outcomes(
        self, topic: Topic, partition: PartitionId, items: Sequence[_Item]
    ) -> list[list[AppendResult]] | None:
        """Append the items of `_take`; None if a marker made verification necessary meanwhile."""
        try:
            if self._needs_verification(partition, items[0]):
                return [await self._append_first(topic, partition, items[0])]
            return await self._append(topic, partition, items)
        except TransactionRefusedError as error:
            refusal = _VERIFICATION_REFUSALS.get(error.refusal, RunRefusal.INVALID_TXN_STATE)
            result = AppendResult(refusal=refusal, detail=error.message)
        except SiltstoneError as error:
            result = AppendResult(error=error)
        except Exception:  # noqa: BLE001  # producers must get a result after any failure
            where = f"{topic.name}-{partition.partition}"
            _log.exception("an append to a local topic failed", partition=where)
            failure = AppendFailedError(
                f"the append to {where} failed; the agent's log says why", remedy="retry it"
            )
            result = AppendResult(error=failure)
        return [[result] * len(each.validated.batches) for each in items]

    async def _append(
        self, topic: Topic, partition: PartitionId, items: Sequence[_Item]
    ) -> list[list[AppendResult]] | None:
        async with self.changing(topic, partition) as (log, epoch):
            if any(self._needs_verification(partition, each) for each in items):
                return None
            stamps = [each.validated.stamp for each in items]
            failed = self._failed.among({each.identity for each in stamps if each is not None})
            return await self._disks.of(log).run(partial(_append_all, log, epoch, items, failed))

    async def _append_first(self, topic: Topic, partition: PartitionId, item: _Item) -> list[AppendResult]:
        """Append what may be the first batch of a transaction, after the earlier ones of its producer."""
        stamp = item.transactional
        assert stamp is not None
        key = partition, stamp.producer_id
        if self._verifier.follows_failed(key, stamp):
            raise OutOfOrderSequenceError(FOLLOWS_FAILED_DETAIL)
        try:
            results = await self._append_verified(topic, key, item, stamp)
        except TransactionRefusedError:
            raise
        except Exception:
            self._verifier.note_failure(key, stamp)
            raise
        if results[0].appended:
            self._verifier.repeated(key)
        elif results[0].error is not None and type(results[0].error) not in _REFUSALS:
            self._verifier.note_failure(key, stamp)
        return results

    async def _append_verified(
        self, topic: Topic, key: tuple[PartitionId, int], item: _Item, stamp: ProducerStamp
    ) -> list[AppendResult]:
        """Verify the transaction of an item, and append it unless a marker was written meanwhile."""
        partition, producer_id = key
        while True:
            log, _ = await self.log(topic, partition.partition)
            token = await self._verifier.verify(partition, log, stamp)
            try:
                async with self.changing(topic, partition) as (log, epoch):
                    if not self._verifier.is_valid(key, token):
                        continue
                    append = partial(_append_and_look, log, epoch, item, producer_id)
                    results, is_open = await self._disks.of(log).run(append)
                    self._verifier.appended(key, token, is_open=is_open)
                    return results
            finally:
                if not token.is_open:
                    self._verifier.drop(key, token)

    @asynccontextmanager
    async def changing(self, topic: Topic, partition: PartitionId) -> AsyncIterator[tuple[UnifiedLog, int]]:
        """Yield the log and its leader epoch to a writer, under the lock of the partition."""
        async with self._changes.hold(partition):
            yield await self._log_to_change(topic, partition)

    async def _log_to_change(self, topic: Topic, partition: PartitionId) -> tuple[UnifiedLog, int]:
        """Return the log and its leader epoch for a writer, which holds the lock of the partition.

        Raises StoppingError if it is not known which of two copies is the log. Only a restart decides that.
        """
        if self.mover.is_switching(partition):
            raise StoppingError(
                f"the directory of {topic.name}-{partition.partition} is not known", remedy="retry"
            )
        return await self.log(topic, partition.partition)

    async def move(self, topic: Topic, partition: int, directory: Path) -> None:
        """Begin to move a partition's log to another log directory of this agent, or cancel such a move."""
        log, _ = await self.log(topic, partition)
        await self.mover.move(PartitionId(topic.topic_id, partition), log, directory)

    async def stop(self) -> None:
        """Complete every append that was taken."""
        while self._running:
            await asyncio.wait(self._running)

    async def find_bounds(self, cursor: Cursor) -> None:
        """Set a cursor's state, or its error."""
        try:
            cursor.state = await self.state(cursor.fetch.topic, cursor.fetch.partition)
        except SiltstoneError as error:
            cursor.error = error
        else:
            cursor.error = offset_error(cursor)

    async def state(self, topic: Topic, partition: int) -> PartitionState:
        """Return the bounds of a partition; raise `NotLeaderError` as `log` does."""
        log, epoch = await self.log(topic, partition)
        return PartitionState(
            topic_id=topic.topic_id,
            partition=partition,
            log_start_offset=log.log_start_offset,
            last_stable_offset=log.last_stable_offset,
            high_watermark=log.high_watermark,
            log_end_offset=log.log_end_offset,
            first_dirty_offset=log.log_start_offset,
            leader_epoch=epoch,
        )

    async def serve(self, cursor: Cursor, max_bytes: int, seconds: float) -> None:
        """Serve records from the cursor's position on. The cursor is done afterwards in any case.

        If the disk hangs, there are no records. It hangs if it does not respond for `seconds`. The waiters of
        the partition are woken when it responds.
        """
        fetch, offset = cursor.fetch, cursor.served.next_offset
        isolation = Isolation.TXN_COMMITTED if fetch.committed_only else Isolation.HIGH_WATERMARK

        async def run(log: UnifiedLog) -> LogRead:
            return await self._disks.read_in_time(
                log,
                partial(log.read, offset, max_bytes, isolation),
                seconds=seconds,
                responded=partial(self._commit_notifier.wake, [fetch.partition_id]),
            )

        try:
            found = await self._on_log(fetch.topic, fetch.partition, run)
        except DiskLateError as error:
            cursor.late, cursor.served.is_cut = error, True
            return
        except SiltstoneError as error:
            cursor.error = error
            return
        if found.data:
            cursor.served.take(TailRead([found.data], len(found.data), found.next_offset))
            cursor.aborted = [
                AbortedTransaction(each.producer_id, each.first_offset, each.last_offset)
                for each in found.aborted
            ]
        cursor.served.is_cut = True

    async def delete_records(self, wanted: Sequence[tuple[Topic, int, int]]) -> list[int | SiltstoneError]:
        """Delete the records of partitions below an offset (-1: all), durably.

        Return the new log start offset of each partition, or its error. A log directory writes the log starts
        of all its logs to one file, so they become durable together. A log that moves to another directory
        meanwhile has its log start in the file there.
        """
        yielding = CooperativeYield()
        results: list[int | SiltstoneError] = []
        directories: dict[Path, list[int]] = {}
        for number, (topic, partition, before_offset) in enumerate(wanted):
            try:
                async with self.changing(topic, PartitionId(topic.topic_id, partition)) as (log, _):
                    path = log.directory.parent
                    start = await self._disks.at(path).run(partial(log.delete_records, before_offset))
            except SiltstoneError as error:
                results.append(error)
            else:
                results.append(start)
                directories.setdefault(path, []).append(number)
            await yielding.step()
        for path, numbers in directories.items():
            try:
                await self._disks.at(path).run(partial(self._manager.checkpoint_log_starts, path))
            except SiltstoneError as error:
                for number in numbers:
                    results[number] = error
        return results

    async def query(self, topic: Topic, partition: int, query: Callable[[UnifiedLog], T]) -> T:
        """Run a query on a partition's log in the pool; it may block."""

        async def run(log: UnifiedLog) -> T:
            return await self._disks.of(log).run(partial(query, log))

        return await self._on_log(topic, partition, run)

    async def _on_log(
        self, topic: Topic, partition: int, run: Callable[[UnifiedLog], Coroutine[Any, Any, T]]
    ) -> T:
        """Run a call on a partition's log.

        If the log was replaced by its copy in another directory meanwhile, run it on the copy.
        """
        log, _ = await self.log(topic, partition)
        try:
            return await run(log)
        except LogClosedError:
            log, _ = await self.log(topic, partition)
            return await run(log)


def _ignore_result(call: asyncio.Future[Any]) -> None:
    """Mark the error of a call as retrieved. The log manager has logged it."""
    if not call.cancelled():
        call.exception()


def _append_all(
    log: UnifiedLog, epoch: int, items: Sequence[_Item], failed: Collection[tuple[int, int]] = ()
) -> list[list[AppendResult]]:
    """Append in order, make all durable together, then advance the high watermark. For the pool.

    `failed` are the producers that have a failed batch to send again.
    """
    outcomes = [_append_one(log, epoch, item.validated, failed) for item in items]
    try:
        log.flush_appended()
    except SiltstoneError as error:
        return [[AppendResult(error=error)] * len(results) for results in outcomes]
    log.update_high_watermark(log.log_end_offset)
    return outcomes


def _append_and_look(
    log: UnifiedLog, epoch: int, item: _Item, producer_id: int
) -> tuple[list[AppendResult], bool]:
    """Append a batch that was verified; also return whether its producer has an open transaction then.

    A batch whose flush has failed may be in the log.
    """
    (results,) = _append_all(log, epoch, [item])
    return results, log.open_transaction(producer_id) is not None


def _append_one(
    log: UnifiedLog, epoch: int, validated: ValidatedAppend, failed: Collection[tuple[int, int]]
) -> list[AppendResult]:
    try:
        _require_no_gap(log, validated.stamp, failed)
        rules = append_rules_of(validated.topic.config)
        appended = log.append_as_leader(validated.data, epoch, validated_by=rules, flush=False)
    except SiltstoneError as error:
        return [AppendResult(error=error)] * len(validated.batches)
    results = []
    offset = appended.first_offset
    for batch in validated.batches:
        results.append(
            AppendResult(
                base_offset=offset,
                duplicate=appended.is_duplicate,
                log_start_offset=appended.log_start_offset,
                high_watermark=appended.last_offset + 1,
            )
        )
        offset += batch.offset_count
    return results


def _require_no_gap(
    log: UnifiedLog, stamp: ProducerStamp | None, failed: Collection[tuple[int, int]]
) -> None:
    """Raise OutOfOrderSequenceError if a batch would pass a failed one, and the log does not notice it.

    A log without state of a producer accepts any sequence. `TransactionVerifier` does the same for the first
    batch of a transaction.
    """
    if stamp is None or not failed or stamp.identity not in failed:
        return
    if stamp.base_sequence and not log.knows_producer(stamp.producer_id):
        raise OutOfOrderSequenceError(FOLLOWS_FAILED_DETAIL)
