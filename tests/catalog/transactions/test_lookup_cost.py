"""The cost of a lookup of transactions does not depend on the size of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import scalar_row

from catalog.database import arrays
from catalog.database.pool import Database
from catalog.model import PartitionId

if TYPE_CHECKING:
    import pytest

    from catalog.database.sql_files import Query
    from tests.catalog.scene import Scene

ABORTED = 10_000
_FILL = b"""
INSERT INTO aborted_transactions (
    topic_id, partition, last_offset, first_offset, last_stable_offset, producer_id
)
SELECT gen_random_uuid(), 0, number, 0, number, number FROM generate_series(1, %s) AS number
"""


def test_a_reader_looks_its_aborted_transactions_up_in_a_large_catalog(
    scene: Scene, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL plans the statement once, and each fetch of committed records sends it."""
    topic = scene.topic("t", 2)
    sent: list[tuple[Query, Any]] = []
    read = Database.read

    def record(database: Database, operation: str, query: Query, params: Any = None) -> Any:  # noqa: ANN401
        sent.append((query, params))
        return read(database, operation, query, params)

    monkeypatch.setattr(Database, "read", record)
    keys = [PartitionId(topic.topic_id, number) for number in range(2)]
    scene.catalog.transaction_lookups.aborted(dict.fromkeys(keys, (0, 10)), epochs=[0, 0])
    ((query, params),) = sent
    with psycopg.connect(catalog_url, row_factory=scalar_row) as connection:
        arrays.register(connection)
        connection.execute(_FILL, (ABORTED,))
        connection.execute(b"ANALYZE aborted_transactions")
        connection.execute(b"SET plan_cache_mode = force_generic_plan")
        connection.execute(query.sql, params, prepare=True)
        scanned = connection.execute(
            b"SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'aborted_transactions'"
        )
        assert scanned.fetchall() == [0]
        connection.rollback()
