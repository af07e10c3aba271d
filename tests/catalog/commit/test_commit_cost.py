"""What a commit touches does not follow from how much the catalog holds: pages are counted, not time."""

from __future__ import annotations

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
    """The statements of commits, as they are sent."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.statements: list[tuple[Query, Any]] = []
        send = Transaction.send

        def note(transaction: Transaction, query: Query, params: Any = None) -> Any:  # noqa: ANN401
            self.statements.append((query, params))
            return send(transaction, query, params)

        monkeypatch.setattr(Transaction, "send", note)

    def of_a_commit(self, scene: Scene, keys: list[PartitionId]) -> dict[str, tuple[Query, Any]]:
        """The statements of a commit of one section in each of the partitions, by name."""
        self.statements.clear()
        scene.catalog.commits.commit(scene.file({key: [run_of(1)] for key in keys}))
        return {query.name: (query, params) for query, params in self.statements}


def pages(node: dict[str, Any]) -> tuple[int, set[str]]:
    """How many pages a plan touched, and which of its nodes read a table from end to end."""
    scans = {f"{node['Relation Name']}"} if node["Node Type"] == "Seq Scan" else set()
    for child in node.get("Plans", ()):
        scans |= pages(child)[1]
    return node["Shared Hit Blocks"] + node["Shared Read Blocks"], scans


def touched(url: str, statements: dict[str, tuple[Query, Any]], shift: int) -> dict[str, int]:
    """The pages that each statement touches when it is repeated for offsets that are free, and undone."""
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


def test_a_commit_touches_as_many_pages_in_a_large_catalog(
    scene: Scene, catalog_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the levels of two indexes, which a table of any size has a handful of."""
    topic = scene.topic("t", PARTITIONS)
    keys = [PartitionId(topic.topic_id, number) for number in range(PARTITIONS)]
    sent = Sent(monkeypatch)
    empty = touched(catalog_url, sent.of_a_commit(scene, keys), 1_000)
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        fill(connection, BEFORE)
    large = touched(catalog_url, sent.of_a_commit(scene, keys), 1_000)
    assert large["insert_extents"] <= empty["insert_extents"] + 2 * 2 * PARTITIONS
    assert large["lock_partitions"] <= empty["lock_partitions"] + PARTITIONS
    assert large["advance_partitions"] <= empty["advance_partitions"] + PARTITIONS
