"""Topics, their configuration, and the bounds of their partitions."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg.types.json import Jsonb

from catalog.config.values import TopicConfig
from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import (
    CatalogUnavailableError,
    InvalidTopicError,
    TopicCollisionError,
    TopicExistsError,
    TopicNotFoundError,
)
from catalog.model import PartitionId
from catalog.rows import state_from_row, topic_from_row
from catalog.topics.changes import read_version
from catalog.topics.deleted import DeletedTopics
from catalog.topics.lost import LostTopics, check_no_lost_topics, require_current_history
from catalog.topics.names import check_partition_count, check_topic_id, check_topic_name
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.lifecycle.incarnation import Incarnations
    from catalog.model import PartitionState, Topic
    from catalog.topics.changes import TopicVersion
    from core.ids import Ids

_SQL = load_queries("topics")
_CREATE_ATTEMPTS: Final = 5


class TopicList(NamedTuple):
    """All topics by name, and a version that is not newer than they are."""

    version: TopicVersion
    topics: list[Topic]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """Topic to be created; `config` has the settings that differ from their defaults.

    A topic gets a new identifier, unless it has the `topic_id` of one that the catalog has lost.
    """

    name: str
    partition_count: int
    config: Mapping[str, str] = field(default_factory=dict)
    topic_id: UUID | None = None

    def validated(self) -> NewTopic:
        """Return the topic with its settings in the form in which they are stored.

        Raises InvalidTopicError or InvalidConfigError if the topic is invalid.
        """
        check_topic_name(self.name)
        check_partition_count(self.name, self.partition_count)
        if self.topic_id is not None:
            check_topic_id(self.topic_id)
        return replace(self, config=TopicConfig.of(self.config).as_strings())


class Topics:
    """Topics of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, ids: Ids, incarnations: Incarnations) -> None:
        self.deleted = DeletedTopics(database, incarnations)
        self.lost = LostTopics(database, incarnations)
        self._database = database
        self._ids = ids
        self._incarnations = incarnations

    def create(
        self,
        name: str,
        partition_count: int,
        config: Mapping[str, str] | None = None,
        *,
        topic_id: UUID | None = None,
    ) -> Topic:
        """Create a topic, with `topic_id` if the catalog has lost the topic of that identifier.

        TopicExistsError: the name or the identifier is taken. InvalidTopicError, InvalidConfigError: the
        topic is invalid.
        """
        if topic_id is not None and self._is_known(topic_id):
            raise _id_conflict(topic_id)
        new = NewTopic(name=name, partition_count=partition_count, config=config or {}, topic_id=topic_id)
        (result,) = self.create_many([new])
        if isinstance(result, SiltstoneError):
            raise result
        return result

    def create_many(self, new_topics: Sequence[NewTopic]) -> list[Topic | SiltstoneError]:
        """Create several topics in one transaction; return a topic or an error for each, in their order.

        CatalogUnavailableError: after a failover, agents may still have to create lost topics again.
        """
        results: dict[int, Topic | SiltstoneError] = {}
        topic_ids: dict[int, UUID] = {}
        configs: dict[int, Mapping[str, str]] = {}
        for index, new in enumerate(new_topics):
            try:
                configs[index] = new.validated().config
                topic_ids[index] = new.topic_id or self._ids.new_uuid()
            except SiltstoneError as error:
                results[index] = error
        for _ in range(_CREATE_ATTEMPTS):
            pending = [index for index in topic_ids if index not in results]
            if not pending:
                break
            names = [new_topics[index].name for index in pending]
            params = {
                "topic_ids": arrays.uuids(topic_ids[index] for index in pending),
                "names": names,
                "partition_counts": arrays.integers([new_topics[index].partition_count for index in pending]),
                "configs": [Jsonb(dict(configs[index])) for index in pending],
            }
            for number, topic in self._insert(params).items():
                index = pending[number]
                is_new = topic.topic_id == topic_ids[index]
                results[index] = topic if is_new else _name_conflict(names[number], topic.name)
            for index in pending:
                given = new_topics[index].topic_id
                if given is not None and index not in results and self._is_known(given):
                    results[index] = _id_conflict(given)  # another process has created it meanwhile
        # The remaining topics collided with topics that were deleted between two statements.
        return [results.get(index) or _unstable_conflict(new.name) for index, new in enumerate(new_topics)]

    def _insert(self, params: Mapping[str, object]) -> dict[int, Topic]:
        """Insert topics; return the topics that have their names afterwards, by index."""

        def work(transaction: Transaction) -> dict[int, Topic]:
            check_no_lost_topics(transaction, self._incarnations)
            transaction.send(_SQL["insert_topics"], {**params, "created_ms": transaction.now_ms()})
            transaction.send(_SQL["insert_partitions"], params)
            return _topics_by_index(transaction.rows(_SQL["find_conflicting_topics"], params))

        return self._database.transact("topics.create", work)

    def _is_known(self, topic_id: UUID) -> bool:
        return bool(self._database.read("topics.is_known", _SQL["is_known_topic"], {"topic_id": topic_id}))

    def get(self, name: str) -> Topic:
        """Return the topic of that name, or raise TopicNotFoundError."""
        # PostgreSQL does not accept a NUL as a parameter, and no topic's name contains one.
        rows: Sequence[Row] = ()
        if "\0" not in name:
            rows = self._database.read("topics.get", _SQL["find_topic"], {"name": name})
        if not rows or rows[0].name != name:
            raise TopicNotFoundError(f"there is no topic {name!r}", remedy="list the topics, or create it")
        return topic_from_row(rows[0])

    def name_conflicts(self, names: Sequence[str]) -> dict[str, TopicExistsError]:
        """Return an error for each of these names that a new topic could not have."""
        params = {"names": list(names)}
        rows = self._database.read("topics.name_conflicts", _SQL["find_conflicting_topics"], params)
        return {
            names[index]: _name_conflict(names[index], topic.name)
            for index, topic in _topics_by_index(rows).items()
        }

    def by_id(self, topic_id: UUID) -> Topic:
        """Return the topic with that id, or raise TopicNotFoundError (also after its deletion)."""
        rows = self._database.read("topics.by_id", _SQL["topic_by_id"], {"topic_id": topic_id})
        if not rows:
            raise TopicNotFoundError(f"there is no topic with identifier {topic_id}")
        return topic_from_row(rows[0])

    def by_names(self, names: Sequence[str]) -> list[Topic]:
        """Return the topics with these distinct names; unknown names are left out."""
        params = {"names": [name for name in names if "\0" not in name]}
        rows = self._database.read("topics.by_names", _SQL["topics_by_names"], params)
        return [topic_from_row(row) for row in rows]

    def by_ids(self, topic_ids: Sequence[UUID]) -> list[Topic]:
        """Return the topics with these distinct ids; unknown ids are left out."""
        params = {"topic_ids": arrays.uuids(topic_ids)}
        rows = self._database.read("topics.by_ids", _SQL["topics_by_ids"], params)
        return [topic_from_row(row) for row in rows]

    def alter_config(
        self, name: str, changes: Mapping[str, str | None] | Callable[[TopicConfig], Mapping[str, str | None]]
    ) -> Topic:
        """Change settings of a topic; return the topic.

        None resets a setting to its default; settings without a change stay. `changes` may be a function of
        the current configuration.
        """
        topic_id = self.get(name).topic_id

        def work(transaction: Transaction) -> None:
            rows = transaction.rows(_SQL["lock_topic"], {"topic_id": topic_id})
            if not rows:
                raise _deleted_meanwhile(name)
            before = TopicConfig.from_stored(rows[0].config)
            config = before.with_changes(changes(before) if callable(changes) else changes)
            transaction.send(_SQL["set_config"], {"topic_id": topic_id, "config": Jsonb(config.as_strings())})

        self._database.transact("topics.alter_config", work)
        return self.by_id(topic_id)

    def add_partitions(self, name: str, partition_count: int) -> Topic:
        """Increase a topic's partitions to `partition_count`; InvalidTopicError if it has as many already."""
        check_partition_count(name, partition_count)
        topic = self.get(name)
        params = {
            "topic_id": topic.topic_id,
            "topic_ids": arrays.uuids([topic.topic_id]),
            "partition_count": partition_count,
        }
        if partition_count <= topic.partition_count:
            raise InvalidTopicError(
                f"topic {name!r} has {topic.partition_count} partitions, {partition_count} were requested",
                remedy="the number of partitions can only increase",
            )

        def work(transaction: Transaction) -> None:
            if not transaction.rows(_SQL["lock_topic"], params):
                raise _deleted_meanwhile(name)
            transaction.send(_SQL["set_partition_count"], params)
            transaction.send(_SQL["insert_partitions"], params)

        self._database.transact("topics.add_partitions", work)
        return self.by_id(topic.topic_id)

    def delete(self, name: str, topic_id: UUID | None = None) -> UUID:
        """Delete a topic; return its id.

        With `topic_id`, TopicNotFoundError is raised if the topic of that name has another id. From then on
        the name is free and commits to the topic are rejected. Garbage collection removes the data later, and
        until then `deleted.undelete` brings the topic back.

        After a failover, the next epoch begins first: otherwise the deletion would seem to be one of the
        history before (`catalog.topics.lost`). CatalogUnavailableError: the catalog fails over meanwhile.
        """
        found = self.get(name).topic_id
        if topic_id not in {None, found}:
            raise TopicNotFoundError(f"topic {name!r} does not have the identifier {topic_id}")
        params = {"topic_id": found}

        def work(transaction: Transaction) -> None:
            require_current_history(transaction, self._incarnations)
            deleted = {**params, "now_ms": transaction.now_ms()}
            transaction.send(_SQL["mark_topic_deleted"], deleted)
            transaction.send(_SQL["lock_topic_partitions"], params)
            transaction.send(_SQL["lock_local_leaders"], params)
            transaction.send(_SQL["lock_local_transactions"], params)
            transaction.send(_SQL["record_deleted_topic"], deleted)
            transaction.send(_SQL["keep_deleted_partitions"], params)
            transaction.send(_SQL["delete_partitions"], params)

        self._incarnations.ensure()
        self._database.transact("topics.delete", work)
        return found

    def partitions(self, topic_id: UUID) -> list[PartitionState]:
        """Return the bounds of all partitions of a topic, or raise TopicNotFoundError."""
        rows = self._database.read("topics.partitions", _SQL["partition_states"], {"topic_id": topic_id})
        if not rows:
            raise TopicNotFoundError(f"there is no topic with identifier {topic_id}")
        return [state_from_row(row) for row in rows]

    def sizes(self, topic_ids: Sequence[UUID]) -> dict[PartitionId, int]:
        """Return the bytes of live data by partition; unknown topics are left out."""
        params = {"topic_ids": arrays.uuids(topic_ids)}
        rows = self._database.read("topics.sizes", _SQL["live_bytes_of_partitions"], params)
        return {PartitionId(row.topic_id, row.partition): row.live_bytes for row in rows}

    def states(self, partitions: Sequence[PartitionId]) -> list[PartitionState]:
        """Return the bounds of the given partitions in section order; unknown ones are left out."""
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in partitions),
            "partitions": arrays.integers([partition.partition for partition in partitions]),
        }
        return [
            state_from_row(row) for row in self._database.read("topics.states", _SQL["states_of"], params)
        ]

    def list(self) -> list[Topic]:
        """Return all topics by name."""
        return [topic_from_row(row) for row in self._database.read("topics.list", _SQL["list_topics"])]

    def changed_since(self, known: TopicVersion | None) -> TopicList | None:
        """Return all topics; None if their version is still `known`. An unchanged version costs one row."""
        version = read_version(self._database)
        return None if version == known else TopicList(version, self.list())


def _topics_by_index(rows: Sequence[Row]) -> dict[int, Topic]:
    """Convert the rows of `find_conflicting_topics`; their ordinals count from 1."""
    return {row.number - 1: topic_from_row(row) for row in rows}


def _name_conflict(name: str, other: str) -> TopicExistsError:
    """Return the error for a name that equals, or collides with, the name of topic `other`."""
    if name == other:
        return TopicExistsError(f"topic {name!r} exists", remedy="choose another name, or use that topic")
    return TopicCollisionError(
        f"topic {name!r} collides with topic {other!r}",
        remedy="choose another name; metric names do not distinguish '.' and '_'",
    )


def _id_conflict(topic_id: UUID) -> TopicExistsError:
    return TopicExistsError(
        f"a topic with the identifier {topic_id} exists",
        remedy="if it was deleted, undelete it: siltstone topics list --deleted",
    )


def _unstable_conflict(name: str) -> CatalogUnavailableError:
    return CatalogUnavailableError(
        f"topics that collide with {name!r} are created and deleted all the time",
        remedy="try again",
        retry_after_seconds=1.0,
    )


def _deleted_meanwhile(name: str) -> TopicNotFoundError:
    return TopicNotFoundError(f"topic {name!r} was deleted meanwhile")
