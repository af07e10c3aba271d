"""Cached replicas are those that the rule chooses, and cost no hash again while the brokers stay the same."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agent.cluster import brokers as brokers_module
from agent.cluster import replica_cache as replica_cache_module
from agent.cluster.brokers import partition_subject, replicas
from agent.cluster.replica_cache import ReplicaCache
from catalog.model import Broker

if TYPE_CHECKING:
    import pytest

_TOPICS = [UUID(int=number) for number in range(1, 4)]
_BROKERS = st.lists(
    st.builds(
        Broker,
        node_id=st.integers(1, 9),
        host=st.just("h"),
        port=st.just(9092),
        rack=st.sampled_from(["a", "b", "c", None]),
    ),
    unique_by=lambda each: each.node_id,
    min_size=1,
)
_ZONES = st.sampled_from(["a", "b", "elsewhere", None])


class Hashes:
    """Counter of the hashes of brokers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count = 0
        score = brokers_module._score

        def count(subject: bytes, broker: Broker) -> bytes:
            self._count += 1
            return score(subject, broker)

        monkeypatch.setattr(brokers_module, "_score", count)

    def taken(self) -> int:
        """Return the number of hashes since the last call."""
        taken, self._count = self._count, 0
        return taken


def agents(count: int) -> list[Broker]:
    return [Broker(node_id=at, host="h", port=at, rack="abc"[at % 3]) for at in range(count)]


@given(
    st.lists(st.tuples(_BROKERS, _ZONES, st.sampled_from(_TOPICS), st.integers(0, 3)), max_size=30),
    st.integers(1, 10),
)
def test_cached_replicas_are_those_of_the_rule(
    requests: list[tuple[list[Broker], str | None, UUID, int]], bound: int
) -> None:
    cache = ReplicaCache(bound)
    for brokers, zone, topic_id, partition in [*requests, *requests]:
        chosen = replicas(brokers, partition_subject(topic_id, partition), zone)
        nodes = cache.among(brokers, zone).of(topic_id, partition)
        assert nodes == tuple(each.node_id for each in chosen)


def test_brokers_are_hashed_once_for_each_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another list of the same brokers, and any number of zones without brokers, need no hash."""
    hashes, cache = Hashes(monkeypatch), ReplicaCache()

    def describe(brokers: list[Broker], zone: str | None) -> int:
        table = cache.among(brokers, zone)
        steps = [table.steps_of(_TOPICS[0], partition) for partition in range(200)]
        for partition in range(200):
            table.of(_TOPICS[0], partition)
        assert set(steps) <= {0, len(brokers) // 4}
        taken = hashes.taken()
        assert (sum(steps) == 0) == (taken == 0)
        return taken

    assert describe(agents(50), None) == 200 * 50
    assert describe(agents(50), None) == 0
    assert [describe(agents(50), f"zone-{number}") for number in range(100)] == [0] * 100
    assert describe(agents(50), "a") == 200 * 50
    assert describe(agents(49), None) == 200 * 49
    assert describe(agents(50), None) == 0  # the broker is back


def test_the_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In partitions, and in sets of brokers."""
    hashes, cache = Hashes(monkeypatch), ReplicaCache(100)
    for partition in range(150):
        cache.among(agents(2), None).of(_TOPICS[0], partition)
    assert cache._partitions == 50
    for count in range(2, 40):
        cache.among(agents(count), None)
        assert len(cache._tables) <= replica_cache_module._MAX_TABLES
    assert hashes.taken() == 150 * 2


def test_a_response_with_very_many_partitions_keeps_no_more_of_them() -> None:
    cache = ReplicaCache(100)
    table = cache.among(agents(2), None)
    for partition in range(250):
        table.of(_TOPICS[partition % 2], partition)
        assert sum(map(len, table._nodes.values())) < 100
    assert cache.among(agents(2), None) is table
