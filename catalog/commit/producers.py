"""Idempotent producers: their identifiers, and what partitions remember of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.commit.sequences import BATCH
from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import KnownProducer, PartitionId

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from uuid import UUID

    from catalog.database.pool import Database

_SQL = load_queries("producers")


class Producers:
    """Part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def new_id(self) -> int:
        """A producer id that nobody had before."""
        return int(self._database.read("producers.new_id", _SQL["new_producer_id"])[0][0])

    def admit(self, producers: Sequence[tuple[UUID, int, int]]) -> None:
        """Let these, by topic, partition and producer id, begin there with any number, as in Kafka.

        For those whose first batches were refused for good: some clients never use the numbers of such a
        batch again. What a partition knows of a producer stays as it is.
        """
        topic_ids, partitions, producer_ids = zip(*producers, strict=True) if producers else ((), (), ())
        params = {
            "topic_ids": arrays.uuids(topic_ids),
            "partitions": arrays.integers(partitions),
            "producer_ids": arrays.bigints(producer_ids),
        }
        self._database.transact(
            "producers.admit", lambda transaction: transaction.send(_SQL["admit_producers"], params)
        )

    def of_partitions(
        self, partitions: Collection[PartitionId], *, limit: int = 1000
    ) -> dict[PartitionId, list[KnownProducer]]:
        """The producers that each partition remembers, at most `limit` of it, the latest first."""
        params = {
            "topic_ids": arrays.uuids(each.topic_id for each in partitions),
            "partitions": arrays.integers([each.partition for each in partitions]),
            "limit": limit,
        }
        found: dict[PartitionId, list[KnownProducer]] = {each: [] for each in partitions}
        for row in self._database.read("producers.of_partitions", _SQL["producers_of"], params):
            producer = KnownProducer(
                producer_id=row[2],
                producer_epoch=row[3],
                last_sequence=BATCH.unpack(row[4][-BATCH.size :])[1],
                updated_ms=row[5],
            )
            found[PartitionId(row[0], row[1])].append(producer)
        return found
