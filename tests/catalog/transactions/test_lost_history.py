"""Transactions after a failover or a restore that may have lost their ends, or beside agents without them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.database.schema_version import check_schema_version, read_schema_version
from catalog.errors import EarlierAgentsError, SchemaVersionError, TransactionRefusedError
from catalog.model import PartitionId, RunRefusal
from catalog.transactions.lookups import TimedOutTransaction
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from catalog.open import Catalog
    from core.ids import Ids


@pytest.mark.parametrize("is_aborted_first", [False, True])
@pytest.mark.parametrize("losses", [1, 2])
def test_no_transaction_continues_in_another_history(
    catalog: Catalog, ids: Ids, losses: int, *, is_aborted_first: bool
) -> None:
    """The end of the transaction may be lost. A producer of version 1 would add the next one to it."""
    topic = Scene.set_up(catalog, ids).topic()
    key = PartitionId(topic.topic_id, 0)
    transactions = catalog.transactions
    producer = transactions.initialize("t", 60_000).producer
    transactions.add_partitions("t", producer, [key])
    for _ in range(losses):
        catalog.incarnations.declare_restore("a test")
    scene = Scene.set_up(catalog, ids)
    late = scene.commit(topic, run_of(1, producer=(*producer, 0), in_transaction=True))
    assert late.runs[0].refusal is RunRefusal.INVALID_PRODUCER_EPOCH
    with pytest.raises(TransactionRefusedError):
        transactions.end("t", producer, commits=True)
    (found,) = catalog.transaction_lookups.timed_out()
    assert found == TimedOutTransaction("t", found.producer, 0)
    if is_aborted_first:
        transactions.abort("t", found.producer)
    (continued,) = {transactions.initialize("t", 60_000, producer).producer for _ in range(2)}
    # The lost history may have used every later epoch of the producer, and the next producer ids.
    assert continued.producer_id > producer.producer_id + 1_000_000
    assert continued.producer_epoch == 0
    transactions.add_partitions("t", continued, [key])
    appended = scene.commit(topic, run_of(1, producer=(*continued, 0), in_transaction=True))
    assert appended.runs[0].refusal is None


def test_no_transaction_begins_while_an_agent_ignores_transactions(scene: Scene, catalog_url: str) -> None:
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute("UPDATE siltstone.sessions SET knows_transactions = false")
        with pytest.raises(EarlierAgentsError):
            scene.catalog.transactions.initialize("t", 60_000)
        assert connection.execute("SELECT min_version FROM siltstone.schema_version").fetchone() == (11,)
    scene.catalog.sessions.end(scene.session_id)
    assert scene.catalog.transactions.initialize("t", 60_000).producer.producer_epoch == 0


def test_the_first_producer_excludes_releases_that_ignore_transactions(
    scene: Scene, catalog_url: str
) -> None:
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        check_schema_version(read_schema_version(connection), 31)
        for _ in range(2):
            scene.catalog.transactions.initialize("t", 60_000)
        found = read_schema_version(connection)
    with pytest.raises(SchemaVersionError, match="upgrade Siltstone"):
        check_schema_version(found, 31)
    check_schema_version(found)
    scene.catalog.sessions.heartbeat(scene.session_id)
