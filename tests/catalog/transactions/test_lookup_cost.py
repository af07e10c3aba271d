"""The cost of a lookup of transactions does not depend on the size of the catalog."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.rows import scalar_row

from catalog.database import arrays
from catalog.database.pool import Database
from catalog.model import PartitionId

if TYPE_CHECKING:
    from catalog.database.sql_files import Query
    from tests.catalog.scene import Scene

ABORTED = 10_000
_FILL = b"""
INSERT INTO aborted_transactions (
    topic_id, partition, last_offset, first_offset, last_stable_offset, producer_id
)
SELECT gen_random_uuid(), 0, number, 0, number, number FROM generate_series(1, %s) AS number
"""


_FILL_OFFSETS = (
    b"""
    INSERT INTO consumer_groups (group_id, claim_id, state_ms)
    SELECT 'group-' || number, gen_random_uuid(), 0 FROM generate_series(1, 1000) AS number
    """,
    b"""
    INSERT INTO committed_offsets (group_id, topic_id, partition, committed_offset, committed_ms)
    SELECT group_id, %s, number, 0, 0 FROM consumer_groups, generate_series(0, 99) AS number
    """,
    b"""
    INSERT INTO pending_offsets (group_id, topic_id, partition, producer_id, committed_offset)
    SELECT group_id, topic_id, partition, 1, 0 FROM committed_offsets WHERE partition < 5
    """,
)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Query, Any]]:
    """Return a list to which the statements of lookups are added."""
    statements: list[tuple[Query, Any]] = []
    read = Database.read

    def record(database: Database, operation: str, query: Query, params: Any = None) -> Any:  # noqa: ANN401
        statements.append((query, params))
        return read(database, operation, query, params)

    monkeypatch.setattr(Database, "read", record)
    return statements


def test_a_reader_looks_its_aborted_transactions_up_in_a_large_catalog(
    scene: Scene, catalog_url: str, sent: list[tuple[Query, Any]]
) -> None:
    """PostgreSQL plans the statement once, and each fetch of committed records sends it."""
    topic = scene.topic("t", 2)
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


def test_a_group_fetches_all_of_its_offsets_without_reading_those_of_others(
    scene: Scene, catalog_url: str, sent: list[tuple[Query, Any]]
) -> None:
    """Each group may have offsets that ongoing transactions have not committed yet."""
    topic = scene.topic("t", 100)
    scene.catalog.group_offsets.fetch_all(["group-1"])
    ((query, params),) = sent
    with psycopg.connect(catalog_url, row_factory=scalar_row) as connection:
        for fill in _FILL_OFFSETS:
            connection.execute(fill, (topic.topic_id,) if b"%s" in fill else None)
        connection.execute(b"ANALYZE committed_offsets, pending_offsets, topics")
        assert len(connection.execute(query.sql, params).fetchall()) == 100
        scanned = connection.execute(
            b"SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'pending_offsets'"
        )
        assert scanned.fetchall() == [0]
        connection.rollback()
