"""The cost of a commit, in pages, does not depend on the size of the catalog."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import scalar_row

from benchmarks.catalog_commit import fill
from catalog.database import arrays
from catalog.database.pool import Transaction
from catalog.model import PartitionId
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    import pytest

    from catalog.database.sql_files import Query
    from tests.catalog.scene import Scene

PARTITIONS = 100
BEFORE = 100_000


class Sent:
    """Recorder of the statements that commits send."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[tuple[Query, Any]] = []
        send = Transaction.send

        def record(transaction: Transaction, query: Query, params: Any = None) -> Any:  # noqa: ANN401
            self.statements.append((query, params))
            return send(transaction, query, params)

        monkeypatch.setattr(Transaction, "send", record)

    def of_a_commit(self, scene: Scene, keys: list[PartitionId]) -> dict[str, tuple[Query, Any]]:
        """Commit one section per partition; return the statements by name."""
        self.statements.clear()
        scene.catalog.commits.commit(scene.file({key: [run_of(1)] for key in keys}))
        return {query.name: (query, params) for query, params in self.statements}


def test_a_small_commit_sends_as_few_statements_as_it_can(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement costs more than the rows of a small file."""
    topic = scene.topic("t", 1)
    keys = [PartitionId(topic.topic_id, 0)]
    sent = Sent(monkeypatch)
    sent.of_a_commit(scene, keys)  # the first one begins the leader epoch
    assert list(sent.of_a_commit(scene, keys)) == [
        "lock_file_id",
        "find_result",
        "lock_session",
        "lock_partitions",
        "advance_partitions",
        "insert_extents",
        "insert_file",
        "insert_result",
    ]


def pages(node: dict[str, Any]) -> tuple[int, set[str]]:
    """Return the number of pages that a plan read, and the tables that it scanned sequentially."""
    scans = {f"{node['Relation Name']}"} if node["Node Type"] == "Seq Scan" else set()
    for child in node.get("Plans", ()):
        scans |= pages(child)[1]
    return node["Shared Hit Blocks"] + node["Shared Read Blocks"], scans


def pages_read(url: str, statements: dict[str, tuple[Query, Any]], shift: int) -> dict[str, int]:
    """Repeat statements for unused offsets, and roll them back; return the pages that each one reads."""
    found = {}
    with psycopg.connect(url, row_factory=scalar_row) as connection:
        arrays.register(connection)
        for name in ("lock_partitions", "advance_partitions", "insert_extents"):
            query, params = statements[name]
            if name == "insert_extents":
                offsets = [shift + number for number in range(PARTITIONS)]
                params = {
                    **params,
                    "base_offsets": arrays.bigints(offsets),
                    "last_offsets": arrays.bigints(offsets),
                }
            statement = b"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + query.sql
            ((report,),) = connection.execute(statement, params).fetchall()
            found[name], scans = pages(report["Plan"])
            assert "extents" not in scans
        connection.rollback()
    return found


def test_a_commit_reads_as_many_pages_in_a_large_catalog(
    scene: Scene, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the levels of two indexes may add a few pages."""
    topic = scene.topic("t", PARTITIONS)
    keys = [PartitionId(topic.topic_id, number) for number in range(PARTITIONS)]
    sent = Sent(monkeypatch)
    empty = pages_read(catalog_url, sent.of_a_commit(scene, keys), 1_000)
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        fill(connection, BEFORE)
    large = pages_read(catalog_url, sent.of_a_commit(scene, keys), 1_000)
    assert large["insert_extents"] <= empty["insert_extents"] + 2 * 2 * PARTITIONS
    assert large["lock_partitions"] <= empty["lock_partitions"] + PARTITIONS
    assert large["advance_partitions"] <= empty["advance_partitions"] + PARTITIONS


def test_a_commit_looks_its_partitions_up_in_a_large_catalog(
    scene: Scene, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL plans the statements of a connection once, and must not scan all partitions each time."""
    topic = scene.topic("t", PARTITIONS)
    scene.topic("other", 100 * PARTITIONS)
    sent = Sent(monkeypatch)
    keys = [PartitionId(topic.topic_id, number) for number in range(PARTITIONS)]
    statements = sent.of_a_commit(scene, keys)
    assert {"lock_partitions", "advance_partitions", "insert_extents"} <= set(statements)
    with psycopg.connect(catalog_url, row_factory=scalar_row) as connection:
        arrays.register(connection)
        connection.execute(b"SET plan_cache_mode = force_generic_plan")
        connection.execute(b"DELETE FROM extents")
        for query, params in statements.values():
            if query.name not in ("insert_file", "insert_result"):
                connection.execute(query.sql, params, prepare=True)
        scans = connection.execute(
            b"SELECT relname FROM pg_stat_xact_user_tables WHERE seq_tup_read > 10 * %s", (PARTITIONS,)
        )
        assert scans.fetchall() == []
        connection.rollback()


def test_a_commit_does_not_scan_the_results_of_others(
    scene: Scene, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL plans the statement once only if it knows how few expired results a commit deletes."""
    topic = scene.topic("t", 1)
    query, params = Sent(monkeypatch).of_a_commit(scene, [PartitionId(topic.topic_id, 0)])["insert_result"]
    with psycopg.connect(catalog_url, row_factory=scalar_row) as connection:
        arrays.register(connection)
        connection.execute(b"DELETE FROM commit_results WHERE file_id = %s", (params["file_id"],))
        connection.execute(
            b"INSERT INTO commit_results SELECT gen_random_uuid(), n, '' FROM generate_series(1, %s) AS n",
            (BEFORE // 10,),
        )
        connection.execute(b"ANALYZE commit_results")
        connection.execute(b"SET plan_cache_mode = force_generic_plan")
        scans = b"SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'commit_results'"
        before = connection.execute(scans).fetchall()
        connection.execute(query.sql, {**params, "expired_before_ms": BEFORE}, prepare=True)
        assert connection.execute(scans).fetchall() == before
        connection.rollback()


def test_a_section_writes_few_bytes_of_wal(scene: Scene, catalog_url: str) -> None:
    """The server of the tests writes no images of full pages, and no other client uses it."""
    topic = scene.topic("t", PARTITIONS)
    keys = [PartitionId(topic.topic_id, number) for number in range(PARTITIONS)]
    numbers = count()

    def commit(*, idempotent: bool) -> None:
        producer = (1, 0, next(numbers)) if idempotent else None
        scene.catalog.commits.commit(scene.file({key: [run_of(1, producer=producer)] for key in keys}))

    found = {}
    with psycopg.connect(catalog_url, autocommit=True, row_factory=scalar_row) as connection:
        for idempotent in (True, False):
            for _ in range(10):
                commit(idempotent=idempotent)
            before = connection.execute(b"SELECT pg_current_wal_insert_lsn()").fetchone()
            for _ in range(30):
                commit(idempotent=idempotent)
            query = b"SELECT (pg_current_wal_insert_lsn() - %s::pg_lsn)::bigint"
            written = connection.execute(query, (before,)).fetchone()
            assert written is not None
            found[idempotent] = written // (30 * PARTITIONS)
    assert found[False] <= 650
    assert found[True] <= 820
