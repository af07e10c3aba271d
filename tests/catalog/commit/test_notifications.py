"""Notifications of commits."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.commit.notifications import (
    BUCKETS,
    LEASE_SECONDS,
    Changes,
    bucket_of,
    decode_partitions,
    encode_partitions,
)
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import ManualClock
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
    parts = encode_partitions(partitions)
    decoded = [decode_partitions(f"{_SELF.hex}!{part}") for _, part in parts]
    assert {origin for origin, _ in decoded} == {_SELF}
    assert frozenset().union(*(each or () for _, each in decoded)) == partitions
    for (bucket, _), (_, some) in zip(parts, decoded, strict=True):
        assert {bucket_of(each) for each in some or ()} == {bucket}


def test_a_payload_for_too_many_partitions_names_none() -> None:
    ((_, short),) = encode_partitions(PartitionId(UUID(int=BUCKETS * n), 2**31 - 1) for n in range(75))
    assert len(short) < 3500
    ((_, payload),) = encode_partitions(PartitionId(UUID(int=BUCKETS * n), 0) for n in range(76))
    assert payload == ""
    assert {
        payload for _, payload in encode_partitions(PartitionId(UUID(int=1), n) for n in range(5000))
    } == {""}
    assert encode_partitions([]) == []
    for payload in ("", "no", "ab:1", f"{UUID(int=1).hex}:x", f"x!{UUID(int=1).hex}:1", f"{_SELF.hex}!;;"):
        assert decode_partitions(payload)[1] is None
    origin, partitions = decode_partitions(f"{UUID(int=1).hex}:4")
    assert (origin, partitions) == (None, frozenset({PartitionId(UUID(int=1), 4)})), (
        "the format of an earlier version"
    )


def test_a_wide_file_is_announced_in_few_notifications(scene: Scene, catalog_url: str) -> None:
    topic = scene.topic(partitions=1000)
    keys = frozenset(PartitionId(topic.topic_id, number) for number in range(1000))
    watcher = scene.catalog.watcher()
    assert watcher.wait(0) is None
    with psycopg.connect(catalog_url, autocommit=True) as other:
        other.execute(b"LISTEN siltstone_commits")
        assert scene.catalog.commits.announce(keys, _OTHER) < 20_000
        sent = list(other.notifies(timeout=120, stop_after=4))
    assert frozenset().union(*(decode_partitions(each.payload)[1] or () for each in sent)) == keys
    received: set[PartitionId] = set()
    while len(received) < len(keys):
        received |= _partitions(watcher.wait(120))
    assert received == keys
    scene.catalog.commits.announce((PartitionId(topic.topic_id, number) for number in range(5000)), _OTHER)
    while (changes := watcher.wait(120)) is not None:
        assert changes == Changes()
    watcher.close()


def _partitions(changes: Changes | None) -> frozenset[PartitionId]:
    return frozenset() if changes is None else changes.partitions


def _commit(scene: Scene, topic: Topic, partition: int = 0, origin: UUID = _OTHER) -> None:
    scene.commit(topic, run_of(1), partition=partition)
    scene.catalog.commits.announce([PartitionId(topic.topic_id, partition)], origin)


def test_a_commit_sends_no_notification(scene: Scene) -> None:
    """A notification would take a lock for which other commits would wait."""
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    scene.commit(scene.topic(), run_of(1))
    assert watcher.wait(0.05) == Changes()
    watcher.close()


def test_notifications_of_the_ignored_origin_are_not_reported(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    watcher = scene.catalog.watcher(ignored_origin=_SELF)
    watcher.wait(0)
    _commit(scene, topic, 0, _SELF)
    _commit(scene, topic, 1, _OTHER)
    received: set[PartitionId] = set()
    while not received:
        received |= _partitions(watcher.wait(120))
    assert received == {PartitionId(topic.topic_id, 1)}
    watcher.close()


def test_a_commit_of_another_process_is_reported(
    scene: Scene, catalog_url: str, clock: Clock, ids: Ids
) -> None:
    topic = scene.topic(partitions=3)
    with open_catalog(catalog_url, clock, ids) as other:
        watcher = other.watcher()
        assert watcher.wait(0) is None, "any partition may have changed before the watcher listened"
        assert watcher.wait(0) == Changes()
        _commit(scene, topic, 2)
        _commit(scene, topic, 0)
        received: set[PartitionId] = set()
        while len(received) < 2:
            received |= _partitions(watcher.wait(120))
        assert received == {PartitionId(topic.topic_id, 0), PartitionId(topic.topic_id, 2)}
        watcher.close()


def test_a_wait_ends_with_a_commit(scene: Scene) -> None:
    topic = scene.topic()
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    committing = threading.Timer(0.1, _commit, (scene, topic))
    committing.start()
    assert _partitions(watcher.wait(120)) == {PartitionId(topic.topic_id, 0)}
    committing.join()
    watcher.close()


def test_only_channels_with_a_registered_watcher_are_notified(scene: Scene) -> None:
    topic = scene.topic(partitions=3)
    wanted, other, third = (PartitionId(topic.topic_id, number) for number in range(3))
    announce = scene.catalog.commits.announce
    assert announce([wanted, other], _OTHER) == 0, "nobody waits"
    watcher = scene.catalog.watcher(ignored_origin=_SELF)
    assert watcher.wait(0, frozenset()) == Changes(), "without a reader, it needs no connection"
    assert watcher.wait(0, frozenset({bucket_of(wanted)})) is None
    assert announce([other, third], _OTHER) == 0
    assert announce([wanted], _SELF) == 0, "its own commits"
    sent = announce([wanted, other, third], _OTHER)
    assert sent == announce([wanted], _OTHER) > 0
    received = watcher.wait(120, frozenset({bucket_of(wanted)}))
    assert received == Changes(partitions=frozenset({wanted}))
    watcher.close()


def test_a_commit_before_a_watcher_has_registered_is_reported_with_its_bucket(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    first, second = (PartitionId(topic.topic_id, number) for number in range(2))
    watcher = scene.catalog.watcher()
    watcher.wait(0, frozenset({bucket_of(first)}))
    _commit(scene, topic, 1)
    both = frozenset({bucket_of(first), bucket_of(second)})
    assert watcher.wait(120, both) == Changes(buckets=frozenset({bucket_of(second)}))
    _commit(scene, topic, 1)
    assert watcher.wait(120, both) == Changes(partitions=frozenset({second}))
    watcher.close()


def test_a_registration_is_renewed_and_expires(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    key = PartitionId(scene.topic().topic_id, 0)
    announce, buckets = scene.catalog.commits.announce, frozenset({bucket_of(key)})
    watcher = scene.catalog.watcher()
    watcher.wait(0, buckets)
    clock.advance(LEASE_SECONDS * 2 / 3)
    assert watcher.wait(0, buckets) == Changes()
    clock.advance(LEASE_SECONDS * 2 / 3)
    assert announce([key], _OTHER) > 0, "it was renewed"
    while not (changes := watcher.wait(120, buckets)):
        assert changes is not None
    assert changes == Changes(partitions=frozenset({key}))
    clock.advance(LEASE_SECONDS + 1)
    assert announce([key], _OTHER) == 0, "its process is frozen or gone"
    assert watcher.wait(0, buckets) is None, "notifications were lost"
    assert announce([key], _OTHER) > 0
    watcher.close()


def test_expired_registrations_are_deleted(scene: Scene, catalog_url: str, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    watchers = [scene.catalog.watcher(ignored_origin=UUID(int=number)) for number in range(3)]
    for watcher in watchers:
        watcher.wait(0)
    clock.advance(LEASE_SECONDS + 1)
    watchers[0].wait(0)
    with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
        rows = connection.execute(b"SELECT listener_id FROM commit_listeners").fetchall()
    assert rows == [(UUID(int=0),)]
    for watcher in watchers:
        watcher.close()


def test_a_watcher_without_buckets_closes_its_connection(scene: Scene, catalog_url: str) -> None:
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    count = (
        b"SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%INTO commit_listeners%'"
        b" AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        assert connection.execute(count).fetchone() == (1,)
        assert watcher.wait(0, frozenset()) == Changes()
        while connection.execute(count).fetchone() != (0,):
            pass


def test_commits_of_the_previous_release_are_reported(scene: Scene, catalog_url: str) -> None:
    key = PartitionId(scene.topic().topic_id, 0)
    watcher = scene.catalog.watcher()
    watcher.wait(0, frozenset({bucket_of(key)}))
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        payload = f"{_OTHER.hex}!{key.topic_id.hex}:0"
        connection.execute(b"SELECT pg_notify('siltstone_commits', %s)", (payload,))
    assert watcher.wait(120, frozenset({bucket_of(key)})) == Changes(partitions=frozenset({key}))
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
        assert _partitions(watcher.wait(120)) == {PartitionId(topic.topic_id, 0)}
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
    assert watcher.wait(0.01) == Changes()
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
