"""Ids of idempotent producers, and their states in partitions."""

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
    from catalog.lifecycle.incarnation import Incarnations

_SQL = load_queries("producers")


class Producers:
    """Idempotent producers of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def new_id(self) -> int:
        """Return a producer id that was never assigned before.

        A server that continues on another history may have assigned it before, so it first skips some.
        """
        while not (rows := self._database.read("producers.new_id", _SQL["new_producer_id"])):
            self._incarnations.ensure()
        return int(rows[0].producer_id)

    def accept_any_sequence(self, producers: Sequence[tuple[UUID, int, int]]) -> None:
        """Let producers, given by topic id, partition and producer id, begin with any sequence number.

        This is for producers whose first batches were rejected permanently: some clients never reuse the
        sequence numbers of such a batch. Existing producer states do not change.
        """
        topic_ids, partitions, producer_ids = zip(*producers, strict=True) if producers else ((), (), ())
        params = {
            "topic_ids": arrays.uuids(topic_ids),
            "partitions": arrays.integers(partitions),
            "producer_ids": arrays.bigints(producer_ids),
        }
        self._database.transact(
            "producers.accept_any_sequence",
            lambda transaction: transaction.send(_SQL["accept_any_sequence"], params),
        )

    def of_partitions(
        self, partitions: Collection[PartitionId], *, limit: int = 1000
    ) -> dict[PartitionId, list[KnownProducer]]:
        """Return the producers of each partition, at most `limit` each, the most recent first."""
        params = {
            "topic_ids": arrays.uuids(each.topic_id for each in partitions),
            "partitions": arrays.integers([each.partition for each in partitions]),
            "limit": limit,
        }
        found: dict[PartitionId, list[KnownProducer]] = {each: [] for each in partitions}
        for row in self._database.read("producers.of_partitions", _SQL["producers_of_partitions"], params):
            _, last_sequence, _ = BATCH.unpack(row.batches[-BATCH.size :])
            producer = KnownProducer(
                producer_id=row.producer_id,
                producer_epoch=row.producer_epoch,
                last_sequence=last_sequence,
                updated_ms=row.updated_ms,
            )
            found[PartitionId(row.topic_id, row.partition)].append(producer)
        return found
