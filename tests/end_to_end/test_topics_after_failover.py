"""A failover loses the deletion of a topic, or its undeletion: acknowledged records are not deleted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maintenance.fsck import fsck
from maintenance.garbage_collection import collect_garbage
from maintenance.settings import MaintenanceSettings
from tests.end_to_end.test_failover import Cluster, check_nothing_is_missing, open_cluster, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.end_to_end.test_failover import Ledger
    from tests.fixtures.postgres_pair import PostgresPair

pytestmark = pytest.mark.integration
_TOPIC = "ledger"
_AT_ONCE = MaintenanceSettings(grace_ms=0, topic_delete_delay_ms=0)


@pytest.fixture
def cluster(postgres_pair: PostgresPair, tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster with an empty topic and no agent."""
    with open_cluster(postgres_pair, tmp_path) as cluster:
        yield cluster


def _send(ledger: Ledger, name: str) -> None:
    ledger.send(name, 10)
    assert ledger.producer.flush(120) == 0


def _is_settled(cluster: Cluster) -> bool:
    return not cluster.catalog.lost_commits.is_any_unsettled()


def test_a_topic_whose_deletion_was_lost_is_there_with_all_of_its_records(cluster: Cluster) -> None:
    """Its extents were removed already, and its files are dead: the grace period exceeds the lag."""
    ledger = cluster.ledger(cluster.start_agent(), idempotent=True)
    _send(ledger, "a")

    def lose() -> None:
        _send(ledger, "b")
        cluster.catalog.topics.delete(_TOPIC)
        settings = MaintenanceSettings(topic_delete_delay_ms=0)
        collect_garbage(cluster.catalog, cluster.store, cluster.clock, settings)
        assert cluster.catalog.topics.deleted.list() == []
        assert cluster.catalog.garbage.dead_files(2**62, 10)

    cluster.lose_commits(lose)
    _send(ledger, "c")
    wait_until(lambda: _is_settled(cluster))
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    assert len(ledger.acknowledged) == 30
    check_nothing_is_missing(cluster, ledger)
    assert not fsck(cluster.catalog, cluster.store, cluster.clock, deep=True).differences_total


def test_a_topic_whose_undeletion_was_lost_is_undeleted_again(cluster: Cluster) -> None:
    """Agents had acknowledged records to it, which they commit again; garbage collection runs meanwhile."""
    agent = cluster.start_agent()
    ledger = cluster.ledger(agent, idempotent=True)
    _send(ledger, "a")
    topic_id = cluster.catalog.topics.delete(_TOPIC)

    def lose() -> None:
        cluster.catalog.topics.deleted.undelete(_TOPIC)
        _send(ledger, "b")

    cluster.lose_commits(lose)
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    _send(ledger, "c")
    wait_until(lambda: _is_settled(cluster))
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    assert cluster.catalog.topics.get(_TOPIC).topic_id == topic_id
    assert len(ledger.acknowledged) == 30
    check_nothing_is_missing(cluster, ledger)
    assert not fsck(cluster.catalog, cluster.store, cluster.clock, deep=True).differences_total
