"""Notifications of commits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.commit.notifications import decode_partitions, encode_partitions
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from catalog.open import open_catalog
from tests.catalog.database.wire import WireProxy
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from catalog.model import Topic
    from core.clock import Clock
    from core.ids import Ids
    from tests.catalog.scene import Scene

_PARTITIONS = st.builds(
    PartitionId, st.uuids() | st.sampled_from([UUID(int=1), UUID(int=2)]), st.integers(0, 2**31 - 1)
)
_SELF, _OTHER = UUID(int=77), UUID(int=78)


@given(st.sets(_PARTITIONS, min_size=1, max_size=400))
def test_payloads_contain_their_partitions(partitions: set[PartitionId]) -> None:
    payloads = encode_partitions(partitions, _SELF)
    assert all(len(payload) < 8000 for payload in payloads)
    decoded = [decode_partitions(payload) for payload in payloads]
    assert {origin for origin, _ in decoded} == {_SELF}
    assert frozenset().union(*(each or () for _, each in decoded)) == partitions


def test_the_longest_payloads_fit_a_notification() -> None:
    partitions = [PartitionId(UUID(int=number), 2**31 - 1) for number in range(1000)]
    assert all(len(payload) < 8000 for payload in encode_partitions(partitions, _SELF))


def test_a_payload_for_too_many_partitions_names_none() -> None:
    (payload,) = encode_partitions((PartitionId(UUID(int=n), 0) for n in range(10_000)), _SELF)
    assert decode_partitions(payload) == (_SELF, None)
    assert encode_partitions([], _SELF) == []
    for payload in ("", "no", "ab:1", f"{UUID(int=1).hex}:x", f"x!{UUID(int=1).hex}:1"):
        assert decode_partitions(payload)[1] is None
    origin, partitions = decode_partitions(f"{UUID(int=1).hex}:4")
    assert (origin, partitions) == (None, frozenset({PartitionId(UUID(int=1), 4)})), (
        "the format of an earlier version"
    )


def _commit(scene: Scene, topic: Topic, partition: int = 0, origin: UUID = _OTHER) -> None:
    scene.commit(topic, run_of(1), partition=partition)
    scene.catalog.commits.announce([PartitionId(topic.topic_id, partition)], origin)


def test_a_commit_sends_no_notification(scene: Scene) -> None:
    """A notification would take a lock for which other commits would wait."""
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    scene.commit(scene.topic(), run_of(1))
    assert watcher.wait(0.05) == frozenset()
    watcher.close()


def test_notifications_of_the_ignored_origin_are_not_reported(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    watcher = scene.catalog.watcher(ignored_origin=_SELF)
    watcher.wait(0)
    _commit(scene, topic, 0, _SELF)
    _commit(scene, topic, 1, _OTHER)
    received: set[PartitionId] = set()
    while not received:
        received |= watcher.wait(120) or set()
    assert received == {PartitionId(topic.topic_id, 1)}
    watcher.close()


def test_a_commit_of_another_process_is_reported(
    scene: Scene, catalog_url: str, clock: Clock, ids: Ids
) -> None:
    topic = scene.topic(partitions=3)
    with open_catalog(catalog_url, clock, ids) as other:
        watcher = other.watcher()
        assert watcher.wait(0) is None, "any partition may have changed before the watcher listened"
        assert watcher.wait(0) == frozenset()
        _commit(scene, topic, 2)
        _commit(scene, topic, 0)
        received: set[PartitionId] = set()
        while len(received) < 2:
            received |= watcher.wait(120) or set()
        assert received == {PartitionId(topic.topic_id, 0), PartitionId(topic.topic_id, 2)}
        watcher.close()


def test_a_wait_ends_with_a_commit(scene: Scene) -> None:
    topic = scene.topic()
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    committing = threading.Timer(0.1, _commit, (scene, topic))
    committing.start()
    assert watcher.wait(120) == frozenset({PartitionId(topic.topic_id, 0)})
    committing.join()
    watcher.close()


def test_a_lost_connection_is_reopened(
    scene: Scene, catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    topic = scene.topic()
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        watcher = catalog.watcher()
        watcher.wait(0)
        wire.break_connections()
        with pytest.raises(CatalogUnavailableError):
            watcher.wait(120)
        _commit(scene, topic)
        assert watcher.wait(0) is None, "any partition may have changed meanwhile"
        _commit(scene, topic)
        assert watcher.wait(120) == frozenset({PartitionId(topic.topic_id, 0)})
        watcher.close()


def test_a_wait_blocks_in_the_kernel(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Psycopg is called only when there is data, because it spends the last millisecond in a busy loop."""
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    timeouts: list[float | None] = []
    notifies = psycopg.Connection.notifies

    def record(
        self: psycopg.Connection, *, timeout: float | None = None, stop_after: int | None = None
    ) -> object:
        timeouts.append(timeout)
        return notifies(self, timeout=timeout, stop_after=stop_after)

    monkeypatch.setattr(psycopg.Connection, "notifies", record)
    assert watcher.wait(0.01) == frozenset()
    assert not timeouts
    _commit(scene, scene.topic())
    assert watcher.wait(120)
    assert timeouts == [0]
    watcher.close()


def test_a_malformed_notification_means_that_any_partition_may_have_changed(
    scene: Scene, catalog_url: str
) -> None:
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        connection.execute("NOTIFY siltstone_commits, 'hello'")
    assert watcher.wait(120) is None
    watcher.close()


def test_a_watcher_fails_when_the_server_is_unreachable(
    new_catalog_url: Callable[..., str], clock: Clock, ids: Ids, tmp_path: Path
) -> None:
    with WireProxy(new_catalog_url(), tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        watcher = catalog.watcher()
        (tmp_path / ".s.PGSQL.5432").unlink()
        with pytest.raises(CatalogUnavailableError, match="stopped"):
            watcher.wait(0)
        watcher.close()
