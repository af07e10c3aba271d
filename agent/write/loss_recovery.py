"""Recovery of an agent when the catalog begins a new incarnation, before its new session writes anything.

1. The agent compares the commits that it acknowledged recently with the catalog, by one query.
2. It creates topics again that got records by lost commits and whose creation was lost, too, and undeletes
   those whose undeletion was lost (`catalog.topics.lost`). It reports the lost commits only then, so that no
   agent commits them before. Until then, no client takes the names of these topics. The names of local topics
   need this, too, so it restores those of its logs with records (`restore_local`).
3. It waits until the other agents that lived have done so, for 10 s at most: a producer may have moved
   between agents.
4. With `automatic_readoption` it commits all reported files again, its own and those of other agents, in the
   order of their commits. All agents do the same at once, and each file is committed once. So no agent writes
   before the last of these files is in the log, and idempotent producers continue without a gap in their
   sequence numbers. A file with records of a topic that no agent remembers waits for the operator.
5. It settles its old sessions, so that garbage collection may delete what they left.

The agent still remembers its commits then, because the next failover may lose what this one has kept. Their
old offsets and epochs stay valid for the order: files of one epoch are compared with each other only.

Each step may be repeated after an error. Batches that come after a gap are retried by their producers while
an agent has not reported its lost commits, or while some wait (`catalog.commit.attempt`).
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from catalog.errors import CatalogReplacedError
from catalog.model import PartitionId
from catalog.topics.lost import Restored
from core.errors import RetryableError, SiltstoneError
from maintenance.readopt import Outcome, ReadAhead, read_lost_file, readopt_file, reported_files
from object_store.binding import require_bound
from object_store.errors import StoreUnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.work_pool import WorkPool
    from agent.write.acknowledged_commits import AcknowledgedCommits
    from catalog.lifecycle.incarnation import Incarnation
    from catalog.lifecycle.lost_commits import AcknowledgedCommit
    from catalog.model import FileCommit, Topic
    from catalog.open import Catalog
    from catalog.topics.lost import RestoredTopic
    from maintenance.readopt import LostFile, ReadoptedFile
    from object_store.interface import ObjectStore

_log = structlog.get_logger(__name__)
_IDS_PER_QUERY: Final = 5_000
_POLL_SECONDS: Final = 0.2
MAX_WAIT_SECONDS: Final = 10.0
"""Time for which an agent waits until the others have reported. They may still report later."""
MAX_FILE_SECONDS: Final = 60.0
"""Time for which an agent tries to read a lost file while the store responds to other requests."""


class LossRecovery:
    """Recovery of one agent. Belongs to the event loop; its calls run in `pool`."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        acknowledged: AcknowledgedCommits,
        *,
        automatic: bool,
        silent_ms: int,
        pool: WorkPool,
        metrics: AgentMetrics,
        restore_local: Callable[[], None] = lambda: None,
    ) -> None:
        self._catalog = catalog
        self._store = store
        self._acknowledged = acknowledged
        self._automatic = automatic
        self._silent_ms = silent_ms
        self._pool = pool
        self._metrics = metrics
        self._restore_local = restore_local
        self._checking = threading.Lock()
        self._noted: set[UUID] = set()
        self._noted_epoch = -1

    async def run(self, incarnation: Incarnation, sessions: Sequence[UUID]) -> None:
        """Recover what was lost when the incarnation began; `sessions` are the agent's earlier ones."""
        complete = await self._compare(incarnation, sessions) if sessions else set()
        await self._wait_for_others()
        if self._automatic:
            await self._readopt_reported(incarnation.epoch)
        if sessions:
            settle = partial(self._catalog.lost_commits.settle, sorted(complete), incarnation.epoch)
            await self._pool.run(settle)
            self._acknowledged.recovered()

    async def _compare(self, incarnation: Incarnation, sessions: Sequence[UUID]) -> set[UUID]:
        """Report the lost commits; return the sessions whose lost commits are all known.

        An older session of the agent may be active in a history that ended before an earlier failover. It is
        compared, too, while commits of it are remembered.
        """
        recent = self._acknowledged.recent()
        found = await self._pool.run(partial(self._catalog.lost_commits.compare, recent))
        lost = [commit for commit in recent if commit.file_id in found.lost]
        await self._pool.run(self._restore_local)
        await self._restore_topics(lost, incarnation)
        older = self._acknowledged.sessions()
        of_agent = sorted(older.union(sessions))
        heartbeats = await self._pool.run(partial(self._catalog.lost_commits.heartbeats, of_agent))
        is_affected = heartbeats.keys() | {commit.session_id for commit in lost}
        compared = {*sessions, *(older & is_affected)}
        knows_dropped = bool(recent) and recent[0].file_id not in found.lost and not found.forgotten
        self._acknowledged.drop(found.forgotten)
        complete = {
            session_id
            for session_id in compared
            if self._acknowledged.is_complete(
                session_id, knows_dropped=knows_dropped, heartbeat_ms=heartbeats.get(session_id)
            )
        }
        self._acknowledged.keep_incomplete(compared - complete)
        report = partial(self._catalog.lost_commits.report, sorted(complete), lost, incarnation.epoch)
        await self._pool.run(report)
        self._note(lost, incarnation)
        return complete

    async def _restore_topics(self, lost: Sequence[AcknowledgedCommit], incarnation: Incarnation) -> None:
        """Create or undelete the topics of lost commits that the catalog lacks, before any agent readopts."""
        found = self._acknowledged.topics_of(lost)
        remembered = [topic for topic in found.values() if topic is not None]
        forgotten = [topic_id for topic_id, topic in found.items() if topic is None]
        known: dict[UUID, Topic] = {}
        for start in range(0, len(remembered), _IDS_PER_QUERY):
            ids = [topic.topic_id for topic in remembered[start : start + _IDS_PER_QUERY]]
            topics = await self._pool.run(partial(self._catalog.topics.by_ids, ids))
            known |= {topic.topic_id: topic for topic in topics}
        changed = [topic for topic in remembered if _is_changed(topic, known.get(topic.topic_id))]
        if changed:
            epochs = self._acknowledged.epochs_of(lost)
            restore = partial(self._catalog.topics.lost.restore, changed, incarnation.epoch, epochs)
            log_restored_topics(await self._pool.run(restore))
        for start in range(0, len(forgotten), _IDS_PER_QUERY):
            some = [PartitionId(topic_id, 0) for topic_id in forgotten[start : start + _IDS_PER_QUERY]]
            for topic in await self._pool.run(partial(self._catalog.lost_commits.missing_topics, some)):
                _log.error(
                    "the catalog has lost a topic that this agent does not remember",
                    topic_id=str(topic.topic_id),
                    consequence="lost files with its records wait, unless another agent creates it again",
                    remedy="siltstone fsck --readopt names the commands that keep its records",
                )

    def _note(self, lost: Sequence[AcknowledgedCommit], incarnation: Incarnation) -> None:
        """Count and log what is lost, once for each file and loss."""
        is_first = incarnation.epoch != self._noted_epoch
        noted, self._noted = self._noted, {commit.file_id for commit in lost}
        self._noted_epoch = incarnation.epoch
        lost = [commit for commit in lost if commit.file_id not in noted]
        if not lost and not is_first:
            return
        records = sum(each.end_offset - each.base_offset for commit in lost for each in commit.offsets)
        self._metrics.lost_files.inc(len(lost))
        self._metrics.lost_records.inc(records)
        if not lost:
            _log.warning(
                "the catalog began a new epoch; it lacks no further commit of this agent"
                if self._noted
                else "the catalog began a new epoch; it knows every commit of this agent",
                epoch=incarnation.epoch,
                reason=incarnation.reason,
            )
            return
        _log.error(
            "the catalog lost commits that this agent had acknowledged",
            epoch=incarnation.epoch,
            reason=incarnation.reason,
            files=len(lost),
            records=records,
            first_object=lost[0].object_name,
            last_object=lost[-1].object_name,
            remedy="the agent commits them again now"
            if self._automatic
            else "run `siltstone fsck --readopt`, then `siltstone fsck --readopt --apply`",
        )

    async def _readopt_reported(self, epoch: int) -> None:
        """Commit all reported files again; after a minute, leave those to the operator that cannot be read.

        One object that cannot be read does not hold up all agents for ever; a store that is away does.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + MAX_FILE_SECONDS
        require_store = partial(require_bound, self._store, self._catalog.store_binding)
        waiting = await self._pool.run(partial(reported_files, self._catalog))
        failed: dict[UUID, StoreUnavailableError] = {}
        while waiting:
            failed.clear()
            ahead = ReadAhead(waiting, self._read)
            try:
                for lost in waiting:
                    # Another agent may have committed it. If both try at once, the second gets the result.
                    if await self._pool.run(partial(self._is_unknown, lost)):
                        try:
                            await self._readopt(lost, ahead, epoch)
                        except StoreUnavailableError as error:
                            await self._pool.run(require_store)
                            failed[lost.file_id] = error
            finally:
                ahead.cancel()
            waiting = [lost for lost in waiting if lost.file_id in failed]
            if loop.time() >= until:
                break
            await asyncio.sleep(_POLL_SECONDS if waiting else 0)
        for lost in waiting:
            _log_left(lost, failed[lost.file_id])

    def _is_unknown(self, lost: LostFile) -> bool:
        return bool(self._catalog.lost_commits.unknown([lost.file_id]))

    def _read(self, lost: LostFile) -> FileCommit | None:
        """Read a file before its turn, unless another agent has committed it already."""
        with self._checking:  # several threads would take the connections of other calls
            is_unknown = self._is_unknown(lost)
        return read_lost_file(self._store, lost) if is_unknown else None

    async def _readopt(self, lost: LostFile, ahead: ReadAhead[FileCommit | None], epoch: int) -> None:
        """Commit a lost file again; if that can never succeed, leave it to the operator."""

        def read(lost: LostFile) -> FileCommit:
            return ahead.take(lost) or read_lost_file(self._store, lost)

        readopt = partial(readopt_file, self._catalog, read, lost, epoch=epoch)
        try:
            done = await self._pool.run(readopt)
        except (RetryableError, CatalogReplacedError):
            raise  # the whole recovery is repeated, after another failover with another incarnation
        except SiltstoneError as error:
            _log_left(lost, error)
            return
        self._count(done)

    def _count(self, done: ReadoptedFile) -> None:
        if done.outcome is Outcome.READOPTED:
            self._metrics.readopted_files.inc()
            self._metrics.readopted_records.inc(done.records - done.duplicates - done.rejected)
            self._metrics.readoption_rejected_records.inc(done.rejected_acknowledged)
            _log.warning(
                "a lost file was committed again",
                object=done.object_name,
                records=done.records,
                duplicates=done.duplicates,
                rejected=done.rejected,
                old_offsets=[tuple(each) for each in done.old_offsets],
                new_offsets=[tuple(each) for each in done.new_offsets],
            )

    async def _wait_for_others(self) -> None:
        """Wait until the other agents that lived have compared their commits, or 10 s have passed."""
        loop = asyncio.get_running_loop()
        until = loop.time() + MAX_WAIT_SECONDS
        unverified = partial(self._catalog.lost_commits.unverified, self._silent_ms)
        while await self._pool.run(unverified) and loop.time() < until:  # noqa: ASYNC110  # polls the catalog
            await asyncio.sleep(_POLL_SECONDS)


def _is_changed(topic: Topic, found: Topic | None) -> bool:
    """Return True if the catalog lacks a topic, or has it with fewer partitions or by another name."""
    return found is None or found.partition_count < topic.partition_count or found.name != topic.name


def _log_left(lost: LostFile, error: SiltstoneError) -> None:
    _log.error("a lost file is not committed again", object=lost.object_name, reason=str(error))


def log_restored_topics(topics: Sequence[RestoredTopic]) -> None:
    """Log what became of topics whose creation or undeletion was lost."""
    for each in topics:
        topic, namesake = each.topic, each.namesake
        log = _log.bind(topic=topic.name, topic_id=str(topic.topic_id), partitions=topic.partition_count)
        if each.outcome is Restored.CREATED:
            log.warning("a topic that the catalog had lost was created again")
        elif each.outcome is Restored.EXTENDED:
            log.warning("partitions that the catalog had lost were added again", name=each.name)
        elif each.outcome is Restored.UNDELETED:
            log.warning("a topic whose undeletion the catalog had lost was undeleted again")
        elif each.outcome is Restored.DELETED:
            log.warning(
                "a topic of lost files is deleted, and its records are rejected",
                remedy="none is needed: its deletion was not lost",
            )
        else:
            log.error(
                "a lost topic has another name now, because another topic has its name",
                name=each.name,
                other_topic=None if namesake is None else namesake.name,
                other_topic_id=None if namesake is None else str(namesake.topic_id),
                consequence="its records are kept under the new name, which its clients do not use",
                remedy="read the records by the new name, or delete the other topic, and then: "
                f"siltstone topics delete {each.name}; "
                f"siltstone topics undelete {each.name} --as {topic.name}",
            )
