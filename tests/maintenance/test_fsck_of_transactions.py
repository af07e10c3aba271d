"""fsck finds each contradiction between transactions, producers and bytes, and none in a sound log."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.model import PartitionId
from maintenance.fsck import DifferenceKind, fsck
from tests.planner.transactional_log import TransactionalLog

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.planner.system import System

pytestmark = pytest.mark.integration

TRANSACTIONS, PRODUCERS = DifferenceKind.TRANSACTIONS, DifferenceKind.PRODUCERS
_ROWS = [(b"k", b"v")]


@pytest.fixture
def log(system: System) -> TransactionalLog:
    """Offsets 0 and 1 are committed at 2, offset 3 is aborted at 4, and offset 5 is open."""
    log = TransactionalLog(system)
    key = PartitionId(system.topic("plain", cleanup_policy="delete").topic_id, 0)
    one, two, three = (log.producer(name) for name in "abc")
    log.write({key: [(one, _ROWS), (one, _ROWS)]})
    log.end(one, commits=True)
    log.write({key: [(two, _ROWS)]})
    log.end(two, commits=False)
    log.write({key: [(three, _ROWS)]})
    return log


def _found(log: TransactionalLog, *, deep: bool) -> set[DifferenceKind]:
    report = fsck(log.catalog, log.system.store, log.system.clock, deep=deep)
    assert report.checked.get("producer_batches", 0) == (4 if deep else 0)
    return {each.kind for each in report.differences}


def test_a_sound_log_has_no_differences(log: TransactionalLog) -> None:
    assert _found(log, deep=True) == set()


@pytest.mark.parametrize(
    ("damage", "in_catalog", "in_bytes"),
    [
        pytest.param("DELETE FROM aborted_transactions", set(), {PRODUCERS}, id="aborted range lost"),
        pytest.param(
            "UPDATE aborted_transactions SET first_offset = last_offset",
            {TRANSACTIONS},
            {PRODUCERS},
            id="aborted range too short",
        ),
        pytest.param(
            "INSERT INTO aborted_transactions"
            " (topic_id, partition, last_offset, first_offset, last_stable_offset, producer_id)"
            " SELECT topic_id, partition, 2, 0, 3, control_producer_id FROM extents WHERE base_offset = 2",
            {TRANSACTIONS},
            {PRODUCERS},
            id="committed records in an aborted range",
        ),
        pytest.param(
            "UPDATE extents SET control_commits = true WHERE base_offset = 4",
            {TRANSACTIONS},
            {PRODUCERS},
            id="aborted records with a commit marker",
        ),
        pytest.param(
            "UPDATE extents SET control_commits = false WHERE base_offset = 2",
            set(),
            {PRODUCERS},
            id="committed records with an abort marker",
        ),
        pytest.param(
            "UPDATE partitions SET last_stable_offset = 6, unstable_offset = NULL",
            {TRANSACTIONS},
            {PRODUCERS},
            id="last stable offset behind an open transaction",
        ),
        pytest.param(
            "DELETE FROM transaction_partitions", {TRANSACTIONS}, {PRODUCERS}, id="open transaction lost"
        ),
        pytest.param("UPDATE producers SET producer_epoch = 7", set(), {PRODUCERS}, id="other epoch"),
        pytest.param(
            "UPDATE producers SET batches = substring(batches for 16) WHERE length(batches) = 32",
            set(),
            {PRODUCERS},
            id="newest batch of a producer lost",
        ),
        pytest.param(
            "UPDATE producers SET batches = overlay(batches placing '\\x00000009' from 1 for 4)",
            set(),
            {PRODUCERS},
            id="other sequence numbers",
        ),
    ],
)
def test_a_contradiction_is_found(
    log: TransactionalLog,
    catalog_url: str,
    damage: str,
    in_catalog: Collection[DifferenceKind],
    in_bytes: Collection[DifferenceKind],
) -> None:
    """Some are visible in the catalog alone, all of them in the bytes."""
    _damage(catalog_url, damage)
    assert _found(log, deep=False) == in_catalog
    assert _found(log, deep=True) == {*in_catalog, *in_bytes}


def test_an_aborted_record_in_a_compacted_file_is_found(log: TransactionalLog, catalog_url: str) -> None:
    _damage(catalog_url, "UPDATE files SET kind = 'compacted'")
    assert PRODUCERS not in _found(log, deep=False)
    assert PRODUCERS in _found(log, deep=True)


def _damage(catalog_url: str, statement: str) -> None:
    """Change rows directly in PostgreSQL, without checking constraints."""
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(statement.encode())
