"""Moves of logs between the log directories of this agent (AlterReplicaLogDirs, KIP-113).

A move copies the log to a future log in the target directory while clients write and read. When little is
left, it holds up the writers, copies the rest, makes the copy durable, and records the target directory in
the catalog. From that moment on, the copy is the log, also after a crash. Then the copy takes the name of the
log, and the old files are deleted.

Before the record, every failure ends the move and leaves the log as it was. An unknown outcome of the record
is asked for again until it is known, and no client writes meanwhile. A restart ends the move: the directory
that the catalog has decides which of the two logs stays.

Reads run on threads of the source's disk, writes on those of the target's. One log at a time moves to each
directory.

Source: ReplicaManager.alterReplicaLogDirs and ReplicaAlterLogDirsThread of Kafka.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from agent.local_topics.partition_locks import PartitionLocks
from agent.runtime.errors import BusyError, StoppingError
from core.errors import RetryableError, SiltstoneError, StaleStateError
from core.outage import Outage
from local_tier.errors import LogDirectoryOfflineError
from local_tier.manager.log_copy import LogCopy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from uuid import UUID

    from agent.local_topics.disks.disk_pools import DiskPools
    from agent.local_topics.leaders import LeaderDirectory
    from agent.local_topics.moves.move_throttle import MoveThrottle
    from catalog.model import PartitionId
    from core.clock import Clock
    from core.ids import Ids
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_manager import LogManager

_REST_BYTES: Final = 4 << 20
"""A move holds up writers when its last round of copying had at most this size."""
_MAX_REST_BYTES: Final = 64 << 20
_MAX_ROUNDS: Final = 16
"""After so many rounds, the larger limit counts: the writers are about as fast as the copy."""
_BUSY_SECONDS: Final = 0.5
_CANCEL_SECONDS: Final = 10.0
T = TypeVar("T")
_log = structlog.get_logger(__name__)


class _CancelledMoveError(StaleStateError):
    """The move is not wanted any more: a client has cancelled it, or the log is gone."""


@dataclass(eq=False, slots=True)
class _Move:
    """One move. `task` ends after the copy is the log or is deleted."""

    partition: PartitionId
    copy: LogCopy
    target: Path
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class LogMover:
    """The moves of an agent. Belongs to the event loop.

    `changes` are the locks that writers hold. `target_ids` are the directories that logs have moved to.
    """

    def __init__(
        self,
        manager: LogManager,
        leaders: LeaderDirectory,
        *,
        node_id: int,
        disks: DiskPools,
        changes: PartitionLocks,
        throttle: MoveThrottle,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._manager = manager
        self._leaders = leaders
        self._node_id = node_id
        self._disks = disks
        self._changes = changes
        self._throttle = throttle
        self._clock = clock
        self._ids = ids
        self._requests = PartitionLocks()
        self._slots: dict[Path, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._moves: dict[PartitionId, _Move] = {}
        self._switching: set[PartitionId] = set()
        self.target_ids: set[UUID] = set()
        self._beginning: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self.moved_logs = 0
        self.moved_bytes = 0
        self.failed_moves = 0

    @property
    def running(self) -> int:
        """The number of moves that run or wait."""
        return len(self._moves)

    def target_of(self, partition: PartitionId) -> Path | None:
        """Return the target directory of a log that moves, or None."""
        move = self._moves.get(partition)
        return None if move is None else move.target

    def is_switching(self, partition: PartitionId) -> bool:
        """Return True while the catalog may have the target although the log is still at the source."""
        return partition in self._switching

    async def move(self, partition: PartitionId, log: UnifiedLog, target: Path) -> None:
        """Begin to move a log. A move to the directory where it is cancels a running move.

        Raises LogDirectoryOfflineError while any directory is offline, and RetryableError if a move that must
        end first does not.
        """
        name = log.topic_partition
        async with self._requests.hold(partition):
            running = self._moves.get(partition)
            if running is not None and running.target == target and not running.cancelled.is_set():
                return
            if running is not None:
                await self._cancel(running)
            current = self._manager.get(name)
            if current is None or current.topic_id != log.topic_id or self._stopping.is_set():
                raise RetryableError(f"log {name} was closed meanwhile", remedy="retry the request")
            if current.directory.parent == target:
                return
            begin = asyncio.get_running_loop().create_task(self._begin(partition, current, target))
            self._beginning.add(begin)
            begin.add_done_callback(self._beginning.discard)
            await asyncio.shield(begin)  # a client that leaves must not leave a copy behind

    async def _begin(self, partition: PartitionId, current: UnifiedLog, target: Path) -> None:
        create = partial(self._manager.moves.create_future_log, current.topic_partition, target)
        future = await self._disks.at(target).run(create)
        move = self._moves[partition] = _Move(partition, LogCopy(current, future), target)
        if self._stopping.is_set():
            move.cancelled.set()
        move.task = asyncio.get_running_loop().create_task(self._run(move), name="log move")

    async def _cancel(self, move: _Move) -> None:
        move.cancelled.set()
        assert move.task is not None
        await asyncio.wait([move.task], timeout=_CANCEL_SECONDS)
        if not move.task.done():
            raise RetryableError(
                f"the move of log {move.copy.source.topic_partition} to {move.target} has not ended yet",
                remedy="retry the request",
            )

    async def stop(self) -> None:
        """End all moves. A copy that is not the log yet is deleted at the next start."""
        self._stopping.set()
        if self._beginning:
            await asyncio.wait(self._beginning)
        for move in self._moves.values():
            move.cancelled.set()
        tasks = [move.task for move in self._moves.values() if move.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, move: _Move) -> None:
        name, source = str(move.copy.source.topic_partition), move.copy.source.directory.parent
        began = self._clock.monotonic()
        _log.info("log_move_began", log=name, source=str(source), target=str(move.target))
        try:
            async with self._slot(move):
                await self._copy_and_switch(move)
        except _CancelledMoveError as error:
            _log.info("log_move_cancelled", log=name, target=str(move.target), reason=error.message)
        except Exception as error:  # noqa: BLE001  # after any error, the log stays where it is
            is_gone = self._manager.get(move.copy.source.topic_partition) is not move.copy.source
            if is_gone and {source, move.target} <= {*self._manager.live_directories}:
                _log.info("log_move_cancelled", log=name, target=str(move.target), reason=str(error))
            else:
                self.failed_moves += 1
                _log.exception("log_move_failed", log=name, target=str(move.target))
        else:
            self.moved_logs += 1
            seconds = round(self._clock.monotonic() - began, 3)
            _log.info("log_moved", log=name, target=str(move.target), seconds=seconds)
        finally:
            del self._moves[move.partition]

    @asynccontextmanager
    async def _slot(self, move: _Move) -> AsyncIterator[None]:
        """Wait until no other log moves to the target, or until the move is cancelled."""
        slot = self._slots[move.target]
        waits = [asyncio.ensure_future(slot.acquire()), asyncio.ensure_future(move.cancelled.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        has_slot, _ = await asyncio.gather(*waits, return_exceptions=True)
        try:
            yield
        finally:
            if has_slot is True:
                slot.release()

    async def _copy_and_switch(self, move: _Move) -> None:
        source, future = move.copy.source, move.copy.future
        source_path = source.directory.parent
        try:
            self._require_wanted(move)
            await self._call(source_path, partial(self._manager.moves.pause_cleaning, source))
            try:
                await self._copy(move)
                async with self._changes.hold(move.partition):
                    await self._copy_to(move, source.log_end_offset, is_throttled=False)
                    await self._switch(move)
            finally:
                await self._call(source_path, partial(self._manager.moves.resume_cleaning, source))
        except BaseException:
            # A copy that may be recorded as the log is kept. So is that of a log whose disk has failed.
            if not self.is_switching(move.partition) and source_path in self._manager.live_directories:
                with suppress(SiltstoneError):
                    await self._call(move.target, partial(self._manager.moves.remove_future_log, future))
            raise

    async def _copy(self, move: _Move) -> None:
        """Copy until little is left. Clients write meanwhile."""
        for number in count(1):
            copied = await self._copy_to(move, move.copy.source.log_end_offset, is_throttled=True)
            await self._call(move.target, move.copy.future.flush)
            if copied <= (_REST_BYTES if number <= _MAX_ROUNDS else _MAX_REST_BYTES):
                return

    async def _copy_to(self, move: _Move, end_offset: int, *, is_throttled: bool) -> int:
        """Copy everything below an offset, and return the number of bytes."""
        copy, copied = move.copy, 0
        source_path = copy.source.directory.parent
        while not copy.is_at(end_offset):
            self._require_wanted(move)
            found = await self._call(source_path, copy.read)
            size = await self._call(move.target, partial(copy.write, found))
            copied += size
            self.moved_bytes += size
            if is_throttled:
                await self._throttle.take(size, move.cancelled)
        return copied

    async def _switch(self, move: _Move) -> None:
        """Replace the log by its complete copy. The caller prevents writes."""
        partition, copy = move.partition, move.copy
        await self._call(move.target, copy.follow_start)
        await self._call(move.target, partial(self._manager.moves.make_replaceable, copy.source, copy.future))
        self._require_wanted(move)
        source_id = self._manager.directory_id(copy.source.directory.parent)
        target_id = self._manager.directory_id(move.target)
        if source_id is None or target_id is None:
            raise self._offline_error(move)
        self._switching.add(partition)  # until the outcome is known
        recorded = await self._record(move, target_id, source=source_id)
        if recorded != target_id:
            self._switching.remove(partition)
            raise StaleStateError(f"log {copy.source.topic_partition} is not recorded at the source any more")
        try:
            await self._replace(move)
        except Exception:
            await self._record(move, source_id, source=target_id)
            self._switching.remove(partition)
            raise
        self.target_ids.add(target_id)
        self._switching.remove(partition)

    async def _replace(self, move: _Move) -> None:
        name, future = move.copy.source.topic_partition, move.copy.future
        try:
            await self._call(move.target, partial(self._manager.moves.replace_current_with_future_log, name))
        except (SiltstoneError, OSError) as error:
            if self._manager.get(name) is not future:
                raise
            _log.warning("files_of_moved_log_remain", log=str(name), reason=str(error))

    async def _record(self, move: _Move, directory_id: UUID, *, source: UUID) -> UUID | None:
        """Record the directory of the log, and return the recorded one.

        Raises StoppingError, with an unknown outcome, if the agent stops while the catalog does not respond.
        """
        name = move.copy.source.topic_partition
        outage = Outage(f"record of the directory of log {name}", clock=self._clock, ids=self._ids)
        while True:
            try:
                recorded = await self._leaders.assign(
                    move.partition, self._node_id, directory_id, source=source
                )
            except SiltstoneError as error:
                if self._stopping.is_set():
                    raise StoppingError(
                        f"the agent stops before the directory of log {name} is known",
                        remedy="start the agent again: the catalog decides which copy is the log",
                    ) from error
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), outage.failed(error))
            else:
                outage.succeeded()
                return recorded

    def _require_wanted(self, move: _Move) -> None:
        """Raise unless the log and its copy are still in use and the move was not cancelled."""
        source, future = move.copy.source, move.copy.future
        name = source.topic_partition
        if not {source.directory.parent, move.target} <= {*self._manager.live_directories}:
            raise self._offline_error(move)
        if self._manager.get(name) is not source or self._manager.get(name, future=True) is not future:
            raise _CancelledMoveError("the log was deleted or set aside")
        if move.cancelled.is_set():
            raise _CancelledMoveError("a client has cancelled the move, or the agent stops")

    def _offline_error(self, move: _Move) -> LogDirectoryOfflineError:
        return LogDirectoryOfflineError(
            f"the source or the target of log {move.copy.source.topic_partition} has failed",
            remedy="repair or replace the disk, then start the agent again",
        )

    async def _call(self, directory: Path, call: Callable[[], T]) -> T:
        """Run a call on a thread of a directory. If all are busy, wait."""
        while True:
            try:
                return await self._disks.at(directory).run(call)
            except BusyError:
                await asyncio.sleep(_BUSY_SECONDS)
