"""Expiry of rows that would otherwise accumulate: inactive sessions and jobs, idle producers, old results.

The row of a session or a job proves that an object without a file row is garbage. So such a row is deleted
only after a sweep of the bucket for the objects that the owner left (`maintenance.garbage_collection`).
Deletions come in bounded batches, and several callers may run them at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.lifecycle.garbage import RETRY_PAUSES
from core.clock import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import psycopg

    from catalog.database.connection import Row, TupleRow
    from catalog.database.pool import Database, Transaction
    from catalog.database.sql_files import Query

_SQL = load_queries("expiry")
_BATCH: Final = 5000
COMMIT_RESULT_RETENTION_MS: Final = 60 * 60 * 1000
"""How long the results of a commit are stored for a retry."""
# A producer that outlives this, and continues in a recreated topic of the same name, must begin a new epoch.
_DELETED_TOPIC_RETENTION_MS: Final = 90 * DAY_MS


class OwnerKind(StrEnum):
    """Kind of writer of objects: an agent's session, or a job's attempts."""

    SESSION = "session"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class InactiveOwner:
    """Session or job that can publish nothing any more, and the time when it was closed or finished."""

    kind: OwnerKind
    owner_id: UUID
    closed_ms: int


class Expiry:
    """Expired rows of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def inactive_owners(
        self,
        kind: OwnerKind,
        min_age_ms: int,
        limit: int,
        *,
        unswept: bool = False,
        after: InactiveOwner | None = None,
    ) -> list[InactiveOwner]:
        """Return up to `limit` owners that have been inactive for more than `min_age_ms`, oldest first.

        The page begins after the owner `after`. Owners that `postpone` has put off are left out. With
        `unswept`, return only owners whose objects were not swept yet.
        """
        params = {
            "before_ms": self._database.now_ms() - min_age_ms,
            "unswept": unswept,
            "limit": limit,
            "after_ms": -1 if after is None else after.closed_ms,
            "after_id": UUID(int=0) if after is None else after.owner_id,
            "now_ms": self._database.injected_now_ms,
        }
        query = _SQL["closed_sessions"] if kind is OwnerKind.SESSION else _SQL["finished_jobs"]
        rows = self._database.read("expiry.inactive_owners", query, params)
        return [InactiveOwner(kind=kind, owner_id=row.owner_id, closed_ms=row.closed_ms) for row in rows]

    def postpone(self, owners: Sequence[InactiveOwner]) -> None:
        """Put off owners whose objects could not be deleted; the pause doubles with each failure."""
        self._change("expiry.postpone", owners, _SQL["postpone_sessions"], _SQL["postpone_jobs"])

    def mark_swept(self, owners: Sequence[InactiveOwner]) -> None:
        """Record that the objects that these owners left were deleted from the bucket."""
        self._change("expiry.mark_swept", owners, _SQL["mark_sessions_swept"], _SQL["mark_jobs_swept"])

    def delete_owners(self, owners: Sequence[InactiveOwner]) -> int:
        """Delete owners whose objects were swept; return the number of deleted rows."""
        return self._change("expiry.delete_owners", owners, _SQL["delete_sessions"], _SQL["delete_jobs"])

    def _change(self, operation: str, owners: Sequence[InactiveOwner], sessions: Query, jobs: Query) -> int:
        def work(transaction: Transaction) -> int:
            now_ms = transaction.now_ms()
            changed = 0
            for kind, query in ((OwnerKind.SESSION, sessions), (OwnerKind.JOB, jobs)):
                owner_ids = sorted(owner.owner_id for owner in owners if owner.kind is kind)
                if owner_ids:
                    params = {"owner_ids": arrays.uuids(owner_ids), "now_ms": now_ms, **RETRY_PAUSES}
                    changed += transaction.count(query, params)
            return changed

        return self._database.transact(operation, work)

    def claim_periodic_task(self, name: str, interval_ms: int) -> bool:
        """Return True if the caller must run a task that one process runs once per `interval_ms`."""

        def work(transaction: Transaction) -> list[Row]:
            params = {"name": name, "interval_ms": interval_ms, "now_ms": transaction.now_ms()}
            return transaction.rows(_SQL["claim_periodic_task"], params)

        # Not idempotent: after a lost result, a retry would find the task claimed by the first attempt.
        return bool(self._database.transact("expiry.claim_periodic_task", work, idempotent=False))

    def expire_producers(self, idle_ms: int) -> int:
        """Delete the producer states that did not change for `idle_ms`, as Kafka does; return their number.

        This reads all states, page by page, with one transaction per page.
        """
        key: tuple[UUID, int, int] = (UUID(int=0), -1, -1)
        expired = 0

        def work(transaction: Transaction) -> list[Row]:
            params = {
                "after_topic": key[0],
                "after_partition": key[1],
                "after_producer": key[2],
                "before_ms": transaction.now_ms() - idle_ms,
                "limit": _BATCH,
            }
            transaction.send(_SQL["accept_any_sequence_of_idle_producers"], params)
            return transaction.rows(_SQL["delete_idle_producers"], params)

        while rows := self._database.transact("expiry.expire_producers", work):
            (last,) = rows
            key = (last.topic_id, last.partition, last.producer_id)
            expired += last.deleted
        return expired

    def expire_commit_results(self) -> int:
        """Delete the commit results that are too old for a retry; return their number."""
        return self._expire("expiry.expire_commit_results", expire_commit_results)

    def expire_deleted_topics(self) -> int:
        """Delete the records of topics that were deleted too long ago for their producers to continue."""

        def expire(transaction: Transaction, now_ms: int, *, limit: int) -> psycopg.Cursor[TupleRow]:
            params = {"before_ms": now_ms - _DELETED_TOPIC_RETENTION_MS, "limit": limit}
            return transaction.send(_SQL["expire_deleted_topics"], params)

        return self._expire("expiry.expire_deleted_topics", expire)

    def _expire(self, operation: str, expire: Callable[..., psycopg.Cursor[TupleRow]]) -> int:
        def work(transaction: Transaction) -> int:
            cursor = expire(transaction, transaction.now_ms(), limit=_BATCH)
            transaction.wait()
            return cursor.rowcount

        total = 0
        while expired := self._database.transact(operation, work):
            total += expired
        return total


def expire_commit_results(transaction: Transaction, now_ms: int, *, limit: int) -> psycopg.Cursor[TupleRow]:
    """Send a statement that deletes up to `limit` commit results that are too old for a retry."""
    params = {"before_ms": now_ms - COMMIT_RESULT_RETENTION_MS, "limit": limit}
    return transaction.send(_SQL["expire_commit_results"], params)
