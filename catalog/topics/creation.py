"""Topics that come into being: many in one transaction, each of them or what is in its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from psycopg.types.json import Jsonb

from catalog.config.topic_config import TopicConfig
from catalog.database import arrays
from catalog.database.rows import topic_of
from catalog.database.sql_files import load_queries
from catalog.errors import CatalogUnavailableError, TopicCollisionError, TopicExistsError
from catalog.topics.names import check_partition_count, check_topic_name
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.model import Topic
    from core.ids import Ids

_SQL = load_queries("topics")
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic that is wanted; `config` has what is not by default."""

    name: str
    partition_count: int
    config: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """Raise InvalidTopicError or InvalidConfigError for a topic that cannot be."""
        check_topic_name(self.name)
        check_partition_count(self.name, self.partition_count)
        TopicConfig.of(self.config)


def create_topics(database: Database, ids: Ids, wanted: Sequence[NewTopic]) -> list[Topic | SiltstoneError]:
    """Make topics in one transaction; in their order what was made, or what is in the way of it."""
    made: dict[int, Topic | SiltstoneError] = {}
    given = {}
    for place, each in enumerate(wanted):
        try:
            each.check()
            given[place] = ids.new_uuid()
        except SiltstoneError as error:
            made[place] = error
    for _ in range(_TRIES):
        left = [place for place in given if place not in made]
        if not left:
            break
        names = [wanted[place].name for place in left]
        params = {
            "topic_ids": arrays.uuids(given[place] for place in left),
            "names": names,
            "partition_counts": arrays.integers([wanted[place].partition_count for place in left]),
            "configs": [Jsonb(dict(wanted[place].config)) for place in left],
        }
        for found, topic in _insert(database, params).items():
            place = left[found]
            made[place] = topic if topic.topic_id == given[place] else exists(names[found], topic.name)
    # Those in the way of the others were deleted between two statements.
    return [made.get(place) or _restless(each.name) for place, each in enumerate(wanted)]


def _insert(database: Database, params: Mapping[str, object]) -> dict[int, Topic]:
    """The topics that have the names then, by their places."""

    def work(transaction: Transaction) -> dict[int, Topic]:
        transaction.send(_SQL["insert_topics"], {**params, "created_ms": transaction.now_ms()})
        transaction.send(_SQL["insert_partitions"], params)
        return holders(transaction.rows(_SQL["find_holders"], params))

    return database.transact("topics.create", work)


def holders(rows: Sequence[Row]) -> dict[int, Topic]:
    """The topics that `find_holders` gives, by places from 0 on."""
    return {row[0] - 1: topic_of(row[1:]) for row in rows}


def exists(name: str, other: str) -> TopicExistsError:
    """What is said of a name that a topic, or one whose name hardly differs, has already."""
    if name == other:
        return TopicExistsError(
            f"topic {name!r} exists", remedy="choose another name, or use the one there is"
        )
    return TopicCollisionError(
        f"topic {name!r} collides with topic {other!r}",
        remedy="choose another name; '.' and '_' are not told apart in names of metrics",
    )


def _restless(name: str) -> CatalogUnavailableError:
    return CatalogUnavailableError(
        f"topics in the way of {name!r} come and go", remedy="try again", retry_after_seconds=1.0
    )
