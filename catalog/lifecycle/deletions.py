"""Last confirmations before objects are deleted.

A deletion cannot be undone, so a read does not decide about it: it may come from a standby, or from an old
primary that does not know about its successor. Each confirmation here is one transaction that writes a row.
It waits until that is durable, with synchronous standbys on them, too. A standby and a demoted primary reject
it. An isolated primary with synchronous standbys never completes it. After a failover that lost commits,
nothing is confirmed before a new incarnation has fenced all sessions. Their orphans wait until the sessions
are settled.

A confirmation stays true however late the deletion follows, because dead files and ended owners never come
back to life. Rows are locked in the order: owner, files by id, `deletions`.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, TypeVar

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.lifecycle.expiry import OwnerKind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from uuid import UUID

    from catalog.database.pool import Database, Transaction
    from catalog.database.sql_files import Query
    from catalog.lifecycle.incarnation import Incarnations
    from catalog.model import OpenTransaction

T = TypeVar("T")
_SQL = load_queries("deletions")
_OWNER_QUERIES = {
    OwnerKind.SESSION: (_SQL["lock_ended_session"], _SQL["find_session"]),
    OwnerKind.JOB: (_SQL["lock_finished_job"], _SQL["find_job"]),
}


class TopicAbsence(Enum):
    """Why a topic of a local log does not exist, which decides about the log.

    `UNKNOWN`: its creation may have been lost by a failover, so the log is kept. `DELETED`: the topic may be
    undeleted, with its log. `PURGED`: it cannot be, or its records are in the object store; the log may go.
    """

    UNKNOWN = auto()
    DELETED = auto()
    PURGED = auto()


class Deletions:
    """Confirmations of deletions; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def confirm_dead_files(self, file_ids: Sequence[UUID], before_ms: int) -> frozenset[UUID]:
        """Return those of the files whose objects may be deleted.

        They died before `before_ms`, have no extents, and no open job reads them.
        """
        params = {"file_ids": arrays.uuids(file_ids), "before_ms": before_ms}

        def work(transaction: Transaction) -> frozenset[UUID]:
            return frozenset(row.file_id for row in transaction.rows(_SQL["lock_dead_files"], params))

        return self._confirm("deletions.confirm_dead_files", work)

    def confirm_orphans(
        self, kind: OwnerKind, owner_id: UUID, before_ms: int, object_names: Sequence[str]
    ) -> frozenset[str]:
        """Return those of the objects of one owner that may be deleted as orphans.

        The owner ended before `before_ms`, and no file has the object's name. The owner is locked and read
        first, so that the second statement sees everything that it committed before its end.
        """
        lock_ended, _ = _OWNER_QUERIES[kind]
        params = {"owner_id": owner_id, "before_ms": before_ms, "object_names": list(object_names)}

        def work(transaction: Transaction) -> frozenset[str]:
            if not transaction.rows(lock_ended, params):
                return frozenset()
            files = {row.object_name for row in transaction.rows(_SQL["find_files"], params)}
            return frozenset(object_names) - files

        return self._confirm("deletions.confirm_orphans", work)

    def confirm_ended(self, kind: OwnerKind, owner_id: UUID, before_ms: int) -> bool:
        """Return True if the owner ended before `before_ms`: its unfinished uploads may be aborted."""
        lock_ended, _ = _OWNER_QUERIES[kind]
        params = {"owner_id": owner_id, "before_ms": before_ms}
        return self._confirm("deletions.confirm_ended", lambda each: bool(each.rows(lock_ended, params)))

    def confirm_unknown(self, kind: OwnerKind, owner_id: UUID) -> bool:
        """Return True if the catalog does not know the owner."""
        find: Query = _OWNER_QUERIES[kind][1]
        params = {"owner_id": owner_id}
        return self._confirm("deletions.confirm_unknown", lambda each: not each.rows(find, params))

    def confirm_gone_topics(self, topic_ids: Collection[UUID]) -> dict[UUID, TopicAbsence]:
        """Return those of the topics that do not exist, and why."""
        params = {"topic_ids": arrays.uuids(topic_ids)}

        def work(transaction: Transaction) -> dict[UUID, TopicAbsence]:
            gone = dict.fromkeys(topic_ids, TopicAbsence.UNKNOWN)
            for row in transaction.rows(_SQL["lock_topics"], params):
                if row.is_deleted:
                    gone[row.topic_id] = TopicAbsence.PURGED if row.needs_no_log else TopicAbsence.DELETED
                else:
                    del gone[row.topic_id]
            return gone

        return self._confirm("deletions.confirm_gone_topics", work)

    def find_purged_topics(self, topic_ids: Collection[UUID]) -> list[UUID]:
        """Return those of the topics that seem to be purged; `confirm_gone_topics` confirms it."""
        params = {"topic_ids": arrays.uuids(topic_ids)}
        rows = self._database.read("deletions.find_purged_topics", _SQL["find_purged_topics"], params)
        return [row.topic_id for row in rows]

    def confirm_unknown_transactions(self, transactions: Sequence[OpenTransaction]) -> list[OpenTransaction]:
        """Return those open transactions of local logs that the catalog does not know.

        A failover has lost them. The catalog knows a transaction before its first batch is appended, and
        until its marker is durable in the log.
        """
        params = {
            "producer_ids": arrays.bigints([each.producer_id for each in transactions]),
            "topic_ids": arrays.uuids(each.partition.topic_id for each in transactions),
            "partitions": arrays.integers([each.partition.partition for each in transactions]),
            "epochs": arrays.integers([each.producer_epoch for each in transactions]),
            "first_sequences": arrays.integers([each.first_sequence for each in transactions]),
        }

        def work(transaction: Transaction) -> list[OpenTransaction]:
            rows = transaction.rows(_SQL["unknown_local_transactions"], params)
            return [transactions[row.number - 1] for row in rows]

        return self._confirm("deletions.confirm_unknown_transactions", work)

    def _confirm(self, operation: str, decide: Callable[[Transaction], T]) -> T:
        """Return what `decide` returns in a transaction that writes durably.

        CatalogReplacedError: the server continues on another history, whose losses are not known yet.
        """

        def work(transaction: Transaction) -> T:
            transaction.send(_SQL["require_durability"])
            params = {"now_ms": transaction.now_ms()}
            self._incarnations.check(transaction)
            decision = decide(transaction)
            transaction.send(_SQL["record_confirmation"], params)
            return decision

        return self._database.transact(operation, work)
