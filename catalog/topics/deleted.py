"""Deleted topics, which can be undeleted until garbage collection begins to remove their extents.

A deletion moves the rows of the topic's partitions aside. Nothing that looks at partitions (commits, readers,
retention, the planner) sees the topic any more, and its extents, producers and committed offsets stay as they
are. Undeleting moves the rows back. A transaction that was open at the deletion is aborted in the topic. If
it is ongoing, its producer is fenced, so that it is aborted everywhere.

The logs of a local topic are on the disks of agents, which set them aside and open them again. The catalog
records their leaders, and the transactions that the leaders must end in the logs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from psycopg import errors as pg

from catalog.database.sql_files import load_queries
from catalog.errors import InvalidTopicError, TopicExistsError, TopicNotFoundError
from catalog.rows import topic_from_row
from catalog.topics.lost import check_no_lost_topics
from catalog.topics.names import check_topic_name
from catalog.topics.undeletion import bring_back
from core.errors import FatalError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from catalog.database.pool import Database, Transaction
    from catalog.lifecycle.incarnation import Incarnations
    from catalog.model import Topic

_SQL = load_queries("deleted_topics")
_TOPICS = load_queries("topics")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """Deleted topic. Its data is kept for some time after `deleted_ms`, unless `is_purged`."""

    topic: Topic
    deleted_ms: int
    is_purged: bool


class DeletedTopics:
    """Deleted topics of a catalog; part of `Topics`, thread-safe."""

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def list(self) -> list[DeletedTopic]:
        """Return the deleted topics whose rows are not removed yet, the last deleted first."""
        return [
            DeletedTopic(topic=topic_from_row(row), deleted_ms=row.deleted_ms, is_purged=row.is_purged)
            for row in self._database.read("topics.list_deleted", _SQL["list_deleted"])
        ]

    def undelete(self, name: str, *, topic_id: UUID | None = None, new_name: str | None = None) -> Topic:
        """Bring a deleted topic back with its records, settings and committed offsets; return it.

        With `topic_id`, a repeated call returns the topic that exists again. A call that does not know the
        result of the last one repeats it.

        TopicNotFoundError: no such topic can be brought back. TopicExistsError: another topic has the name
        now. InvalidTopicError: several deleted topics had the name, or an earlier release deleted a local
        topic.
        CatalogUnavailableError: after a failover, agents may still have to create lost topics again.
        """
        target = name if new_name is None else new_name
        check_topic_name(target)
        deleted = self.list()
        if (existing := self._find_undeleted(deleted, target, topic_id)) is not None:
            return existing
        topic = _choose(deleted, name, topic_id).topic

        def work(transaction: Transaction) -> None:
            check_no_lost_topics(transaction, self._incarnations)
            params = {"topic_id": topic.topic_id, "name": target}
            if not _lock_deleted(transaction, params, name):
                return
            if (
                topic.is_local
                and not transaction.rows(_SQL["has_local_leaders"], params)[0].has_local_leaders
            ):
                raise _deleted_by_earlier_release(name)
            if transaction.rows(_TOPICS["find_conflicting_topics"], {"names": [target]}):
                raise _taken(target)
            now_ms = self._database.injected_now_ms
            if not bring_back(transaction, topic.topic_id, target, topic.partition_count, now_ms):
                raise _purged(name)  # an earlier version deleted it, and kept no rows

        try:
            self._database.transact("topics.undelete", work)
        except FatalError as error:
            if isinstance(error.__cause__, pg.UniqueViolation):  # created at the same time
                raise _taken(target) from error
            raise
        (row,) = self._database.read("topics.by_id", _TOPICS["topic_by_id"], {"topic_id": topic.topic_id})
        return topic_from_row(row)

    def _find_undeleted(
        self, deleted: Sequence[DeletedTopic], target: str, topic_id: UUID | None
    ) -> Topic | None:
        """Return the topic with an id that is not deleted and has the name already, or None."""
        if topic_id is None or topic_id in {each.topic.topic_id for each in deleted}:
            return None
        rows = self._database.read("topics.by_id", _TOPICS["topic_by_id"], {"topic_id": topic_id})
        return next((topic_from_row(row) for row in rows if row.name == target), None)


def _lock_deleted(transaction: Transaction, params: Mapping[str, object], name: str) -> bool:
    """Lock a deleted topic. Return False if it exists under the new name already.

    An earlier attempt has succeeded then, and its response was lost.
    """
    rows = transaction.rows(_SQL["lock_deleted"], params)
    if rows and rows[0].is_purged:
        raise _purged(name)
    if rows or params["name"] in {row.name for row in transaction.rows(_TOPICS["topic_by_id"], params)}:
        return bool(rows)
    raise TopicNotFoundError(
        f"deleted topic {name!r} was undeleted or removed meanwhile",
        remedy="list the topics: siltstone topics list",
    )


def _choose(deleted: Sequence[DeletedTopic], name: str, topic_id: UUID | None) -> DeletedTopic:
    found = [each for each in deleted if each.topic.name == name and topic_id in {None, each.topic.topic_id}]
    if not found:
        which = repr(name) if topic_id is None else f"{name!r} with identifier {topic_id}"
        raise TopicNotFoundError(
            f"there is no deleted topic {which}", remedy="list them: siltstone topics list --deleted"
        )
    kept = [each for each in found if not each.is_purged]
    if not kept:
        raise _purged(name)
    if len(kept) > 1:
        ids = ", ".join(str(each.topic.topic_id) for each in kept)
        raise InvalidTopicError(
            f"several deleted topics had the name {name!r}", remedy=f"choose one by its identifier: {ids}"
        )
    return kept[0]


def _purged(name: str) -> TopicNotFoundError:
    return TopicNotFoundError(
        f"garbage collection has begun to remove the records of deleted topic {name!r}",
        remedy="raise topic_delete_delay_ms for the next time",
    )


def _deleted_by_earlier_release(name: str) -> InvalidTopicError:
    return InvalidTopicError(
        f"an earlier release deleted local topic {name!r} and did not record which agents have its logs",
        remedy="restore the log directories from a copy; the object store has no such records",
    )


def _taken(name: str) -> TopicExistsError:
    return TopicExistsError(
        f"another topic has the name {name!r} now, or one that differs only by '.' and '_'",
        remedy="undelete under another name: siltstone topics undelete NAME --as NEWNAME",
    )
