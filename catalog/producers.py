"""Idempotent producers: their identifiers, and what partitions remember of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog import arrays
from catalog.model import KnownProducer
from catalog.sequences import BATCH
from catalog.sql_files import load_queries

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.database import Database

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

    def of_partition(self, topic_id: UUID, partition: int, *, limit: int = 1000) -> list[KnownProducer]:
        """The producers that a partition remembers, at most `limit`, the latest first."""
        params = {"topic_id": topic_id, "partition": partition, "limit": limit}
        rows = self._database.read("producers.of_partition", _SQL["producers_of"], params)
        return [
            KnownProducer(
                producer_id=row[0],
                producer_epoch=row[1],
                last_sequence=BATCH.unpack(row[2][-BATCH.size :])[1],
                updated_ms=row[3],
            )
            for row in rows
        ]
