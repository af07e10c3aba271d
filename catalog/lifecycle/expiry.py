"""What the catalog lets go of, so that its rows stay bounded: past sessions and jobs, idle producers.

A session or a job is what proves that an object without a file is garbage, so it is forgotten only by whoever
has looked through what it left in the bucket (`maintenance.garbage_collection`). Everything goes in bounded
batches, and may be asked for by several at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.commit.log import ANSWERS_KEPT_MS
from catalog.database import arrays
from catalog.database.sql_files import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.database.sql_files import Query

_SQL = load_queries("expiry")
_BATCH: Final = 5000
# A producer that lives longer, and goes on in a topic that was made anew after so long, begins a new epoch.
_PAST_TOPICS_KEPT_MS: Final = 90 * 86_400_000


class OwnerKind(StrEnum):
    """Who writes objects: an agent's session, or a job's attempts."""

    SESSION = "session"
    JOB = "job"


@dataclass(frozen=True, slots=True, kw_only=True)
class PastOwner:
    """A session or a job that can publish nothing any more, and since when."""

    kind: OwnerKind
    owner_id: UUID
    over_ms: int


class Forgetting:
    """What is over; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def past_owners(
        self, kind: OwnerKind, over_for_ms: int, limit: int, *, unswept: bool = False
    ) -> list[PastOwner]:
        """At most `limit` owners that were over that long ago, the oldest first.

        With `unswept`, those that nobody has cleared up after.
        """
        before_ms = self._database.now_ms() - over_for_ms
        params = {"before_ms": before_ms, "unswept": unswept, "limit": limit}
        query = _SQL["sessions_over"] if kind is OwnerKind.SESSION else _SQL["jobs_over"]
        rows = self._database.read("forgetting.past_owners", query, params)
        return [PastOwner(kind=kind, owner_id=row[0], over_ms=row[1]) for row in rows]

    def swept(self, owners: Sequence[PastOwner]) -> None:
        """Note that what these owners left is gone from the bucket."""
        self._change("forgetting.swept", owners, _SQL["sessions_swept"], _SQL["jobs_swept"])

    def forget(self, owners: Sequence[PastOwner]) -> int:
        """Forget owners whose traces are gone from the bucket; returns how many."""
        return self._change("forgetting.forget", owners, _SQL["forget_sessions"], _SQL["forget_jobs"])

    def _change(self, operation: str, owners: Sequence[PastOwner], sessions: Query, jobs: Query) -> int:
        def work(transaction: Transaction) -> int:
            now_ms = transaction.now_ms()
            changed = 0
            for kind, query in ((OwnerKind.SESSION, sessions), (OwnerKind.JOB, jobs)):
                mine = sorted(owner.owner_id for owner in owners if owner.kind is kind)
                if mine:
                    changed += transaction.count(query, {"owner_ids": arrays.uuids(mine), "now_ms": now_ms})
            return changed

        return self._database.transact(operation, work)

    def take_chore(self, name: str, every_ms: int) -> bool:
        """Whether it is the caller's turn to do what anybody does once in that many milliseconds."""

        def work(transaction: Transaction) -> list[Row]:
            params = {"name": name, "every_ms": every_ms, "now_ms": transaction.now_ms()}
            return transaction.rows(_SQL["take_chore"], params)

        # Not repeated when the answer is lost: the second try would find the turn taken, by itself.
        return bool(self._database.transact("forgetting.take_chore", work, idempotent=False))

    def idle_producers(self, idle_ms: int) -> int:
        """Forget the producers that have written nothing for that long, as Kafka does; returns how many.

        Goes through all of them, a page at a time and each page in a transaction of its own.
        """
        key: tuple[UUID, int, int] = (UUID(int=0), -1, -1)
        forgotten = 0

        def work(transaction: Transaction) -> list[Row]:
            params = {
                "after_topic": key[0],
                "after_partition": key[1],
                "after_producer": key[2],
                "before_ms": transaction.now_ms() - idle_ms,
                "limit": _BATCH,
            }
            transaction.send(_SQL["admit_idle_producers"], params)
            return transaction.rows(_SQL["forget_producers"], params)

        while rows := self._database.transact("forgetting.idle_producers", work):
            ((topic_id, partition, producer_id, gone),) = rows
            key = (topic_id, partition, producer_id)
            forgotten += gone
        return forgotten

    def old_answers(self) -> int:
        """Forget answers to commits that no retry asks for any more; returns how many."""
        return self._older("forgetting.old_answers", _SQL["forget_answers"], ANSWERS_KEPT_MS)

    def past_topics(self) -> int:
        """Forget names of topics that were deleted so long ago that no client goes on with them."""
        return self._older("forgetting.past_topics", _SQL["forget_past_topics"], _PAST_TOPICS_KEPT_MS)

    def _older(self, operation: str, query: Query, kept_ms: int) -> int:
        def work(transaction: Transaction) -> int:
            before_ms = transaction.now_ms() - kept_ms
            return transaction.count(query, {"before_ms": before_ms, "limit": _BATCH})

        forgotten = 0
        while gone := self._database.transact(operation, work):
            forgotten += gone
        return forgotten
