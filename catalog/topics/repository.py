"""Topics and the bounds of their partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from catalog.config.topic_config import TopicConfig
from catalog.database import arrays
from catalog.database.rows import state_of, topic_of
from catalog.database.sql_files import load_queries
from catalog.errors import InvalidTopicError, TopicNotFoundError
from catalog.model import PartitionId
from catalog.topics.creation import NewTopic, create_topics, exists, holders
from catalog.topics.names import check_partition_count
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from catalog.database.pool import Database, Transaction
    from catalog.errors import TopicExistsError
    from catalog.lifecycle.garbage import Garbage
    from catalog.model import PartitionState, Topic
    from core.ids import Ids

_SQL = load_queries("topics")


class Topics:
    """What topics there are; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database, ids: Ids, garbage: Garbage) -> None:
        self._database = database
        self._ids = ids
        self._garbage = garbage

    def create(self, name: str, partition_count: int, config: Mapping[str, str] | None = None) -> Topic:
        """Make a topic; TopicExistsError, InvalidTopicError and InvalidConfigError say what is in the way."""
        wanted = NewTopic(name=name, partition_count=partition_count, config=config or {})
        (made,) = self.create_many([wanted])
        if isinstance(made, SiltstoneError):
            raise made
        return made

    def create_many(self, wanted: Sequence[NewTopic]) -> list[Topic | SiltstoneError]:
        """The same of several, in one transaction: in their order what was made, or what is in the way."""
        return create_topics(self._database, self._ids, wanted)

    def get(self, name: str) -> Topic:
        """The topic of that name, or TopicNotFoundError."""
        # What no topic may be named is not asked for: PostgreSQL takes no NUL.
        is_name = "\0" not in name
        rows = self._database.read("topics.get", _SQL["find_topic"], {"name": name}) if is_name else ()
        if not rows or rows[0][1] != name:
            raise TopicNotFoundError(f"there is no topic {name!r}", remedy="list the topics, or create it")
        return topic_of(rows[0])

    def occupied(self, names: Sequence[str]) -> dict[str, TopicExistsError]:
        """Which of these names a new topic could not have, and why."""
        rows = self._database.read("topics.occupied", _SQL["find_holders"], {"names": list(names)})
        return {names[place]: exists(names[place], topic.name) for place, topic in holders(rows).items()}

    def by_id(self, topic_id: UUID) -> Topic:
        """The topic of that identifier, or TopicNotFoundError once it is deleted."""
        rows = self._database.read("topics.by_id", _SQL["topic_by_id"], {"topic_id": topic_id})
        if not rows:
            raise TopicNotFoundError(f"there is no topic with identifier {topic_id}")
        return topic_of(rows[0])

    def named(self, names: Sequence[str]) -> list[Topic]:
        """The topics of these names, which are all different; those that do not exist are left out."""
        params = {"names": [name for name in names if "\0" not in name]}
        return [topic_of(row) for row in self._database.read("topics.named", _SQL["topics_named"], params)]

    def identified(self, topic_ids: Sequence[UUID]) -> list[Topic]:
        """The topics of these identifiers, which are all different; those that do not exist are left out."""
        params = {"topic_ids": arrays.uuids(topic_ids)}
        rows = self._database.read("topics.identified", _SQL["topics_identified"], params)
        return [topic_of(row) for row in rows]

    def alter_config(
        self, name: str, changes: Mapping[str, str | None] | Callable[[TopicConfig], Mapping[str, str | None]]
    ) -> Topic:
        """Change settings, None taking one back to its default; what is not named stays as it is.

        Changes may depend on the settings that the topic has then.
        """
        topic_id = self.get(name).topic_id

        def work(transaction: Transaction) -> None:
            rows = transaction.rows(_SQL["lock_topic"], {"topic_id": topic_id})
            if not rows:
                raise TopicNotFoundError(f"topic {name!r} was deleted meanwhile")
            before = TopicConfig.stored(rows[0][0])
            config = before.altered(changes(before) if callable(changes) else changes)
            transaction.send(_SQL["set_config"], {"topic_id": topic_id, "config": Jsonb(config.as_strings())})

        self._database.transact("topics.alter_config", work)
        return self.by_id(topic_id)

    def add_partitions(self, name: str, partition_count: int) -> Topic:
        """Let a topic have `partition_count` partitions; InvalidTopicError unless it has fewer now."""
        check_partition_count(name, partition_count)
        topic = self.get(name)
        params = {
            "topic_id": topic.topic_id,
            "topic_ids": arrays.uuids([topic.topic_id]),
            "partition_count": partition_count,
        }
        if partition_count <= topic.partition_count:
            raise InvalidTopicError(
                f"topic {name!r} has {topic.partition_count} partitions, {partition_count} were asked for",
                remedy="a topic's partitions can only grow in number",
            )

        def work(transaction: Transaction) -> None:
            if not transaction.rows(_SQL["lock_topic"], params):
                raise TopicNotFoundError(f"topic {name!r} was deleted meanwhile")
            transaction.send(_SQL["set_partition_count"], params)
            transaction.send(_SQL["insert_partitions"], params)

        self._database.transact("topics.add_partitions", work)
        return self.by_id(topic.topic_id)

    def delete(self, name: str, topic_id: UUID | None = None) -> UUID:
        """Delete a topic at once, and then what it held, in transactions of bounded size; gives its id.

        With `topic_id` no other topic of that name is deleted: TopicNotFoundError.

        From the first transaction on the name is free and commits to the topic are refused. When the
        process dies before the last one, `garbage.remove_deleted` goes on where it stopped.
        """
        found = self.get(name).topic_id
        if topic_id not in {None, found}:
            raise TopicNotFoundError(f"topic {name!r} is another one than {topic_id}")
        params = {"topic_id": found}

        def work(transaction: Transaction) -> None:
            deleted = {**params, "now_ms": transaction.now_ms()}
            transaction.send(_SQL["mark_topic_deleted"], deleted)
            transaction.send(_SQL["lock_topic_partitions"], params)
            transaction.send(_SQL["note_past_topic"], deleted)
            transaction.send(_SQL["delete_partitions"], params)

        self._database.transact("topics.delete", work)
        while self._garbage.remove_deleted():
            pass
        return found

    def partitions(self, topic_id: UUID) -> list[PartitionState]:
        """Bounds of all partitions of a topic; TopicNotFoundError when it is deleted."""
        rows = self._database.read("topics.partitions", _SQL["partition_states"], {"topic_id": topic_id})
        if not rows:
            raise TopicNotFoundError(f"there is no topic with identifier {topic_id}")
        return [state_of(row) for row in rows]

    def sizes(self, topic_ids: Sequence[UUID]) -> dict[PartitionId, int]:
        """Bytes of live data by partition; those of topics that do not exist are left out."""
        params = {"topic_ids": arrays.uuids(topic_ids)}
        rows = self._database.read("topics.sizes", _SQL["partition_sizes"], params)
        return {PartitionId(row[0], row[1]): row[2] for row in rows}

    def states(self, partitions: Sequence[PartitionId]) -> list[PartitionState]:
        """Bounds of the given partitions, in section order; those that do not exist are left out."""
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in partitions),
            "partitions": arrays.integers([partition.partition for partition in partitions]),
        }
        return [state_of(row) for row in self._database.read("topics.states", _SQL["states_of"], params)]

    def list(self) -> list[Topic]:
        """All topics by name."""
        return [topic_of(row) for row in self._database.read("topics.list", _SQL["list_topics"])]
