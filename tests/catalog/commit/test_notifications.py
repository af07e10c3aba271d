"""Notifications of commits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.commit.notifications import (
    BUCKETS,
    CHANNEL,
    LEASE_SECONDS,
    MAX_REGISTERED,
    bucket_of,
    channel_of,
    decode_partitions,
    encode_notifications,
    encode_partitions,
)
from catalog.database import arrays
from catalog.database.pool import Database
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import ManualClock
from tests.catalog.database.wire import WireProxy
from tests.catalog.scene import run_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from catalog.database.sql_files import Query
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


@given(st.sets(_PARTITIONS, min_size=1, max_size=400))
def test_notifications_announce_each_partition_on_a_channel_of_its_watchers(
    partitions: set[PartitionId],
) -> None:
    announced: set[PartitionId] = set()
    for channel, payload in encode_notifications(partitions, _SELF):
        assert len(payload) < 8000, "PostgreSQL's limit"
        origin, some = decode_partitions(payload)
        assert origin == _SELF
        assert some is not None
        assert channel == CHANNEL or {channel_of(bucket_of(each)) for each in some} == {channel}
        announced |= some
    assert announced == partitions


def test_a_commit_of_very_many_partitions_is_one_notification() -> None:
    (wide,) = encode_notifications((PartitionId(UUID(int=1), n) for n in range(5000)), _SELF)
    assert wide == (CHANNEL, f"{_SELF.hex}!")
    deep = [PartitionId(UUID(int=BUCKETS * n + 1), 0) for n in range(76)]
    assert encode_notifications(deep, _SELF) == [(channel_of(1), f"{_SELF.hex}!")]
    mixed = encode_notifications([*deep, *(PartitionId(UUID(int=2), n) for n in range(10))], _SELF)
    assert mixed == [(CHANNEL, f"{_SELF.hex}!")]


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
        assert changes == frozenset()
    watcher.close()


def _partitions(changed: frozenset[PartitionId] | None) -> frozenset[PartitionId]:
    return changed or frozenset()


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
        assert watcher.wait(0) == frozenset()
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


def test_only_partitions_with_a_registered_watcher_are_notified(scene: Scene) -> None:
    topic = scene.topic(partitions=3)
    wanted, other, third = (PartitionId(topic.topic_id, number) for number in range(3))
    announce = scene.catalog.commits.announce
    assert announce([wanted, other], _OTHER) == 0, "nobody waits"
    watcher = scene.catalog.watcher(ignored_origin=_SELF)
    assert watcher.wait(0, frozenset()) == frozenset(), "without a reader, it needs no connection"
    assert watcher.wait(0, frozenset({wanted})) is None
    assert announce([other, third], _OTHER) == 0
    assert announce([wanted], _SELF) == 0, "its own commits"
    sent = announce([wanted, other, third], _OTHER)
    assert sent == announce([wanted], _OTHER) > 0
    received = watcher.wait(120, frozenset({wanted}))
    assert received == frozenset({wanted})
    watcher.close()


def test_a_watcher_is_not_notified_of_other_partitions_in_its_buckets(scene: Scene) -> None:
    topic = scene.topic(partitions=2 * BUCKETS + 2)
    watcher = scene.catalog.watcher()
    wanted = frozenset(PartitionId(topic.topic_id, number) for number in range(BUCKETS))
    watcher.wait(0, wanted)
    others = [PartitionId(topic.topic_id, BUCKETS + number) for number in range(BUCKETS)]
    assert scene.catalog.commits.announce(others, _OTHER) == 0
    last = PartitionId(topic.topic_id, BUCKETS - 1)
    scene.catalog.commits.announce([*others, last], _OTHER)
    assert watcher.wait(120, wanted) == frozenset({last})
    watcher.close()


def test_partitions_that_are_no_longer_wanted_are_removed(
    scene: Scene, catalog_url: str, clock: Clock
) -> None:
    assert isinstance(clock, ManualClock)
    topic = scene.topic(partitions=3)
    first, second, third = (PartitionId(topic.topic_id, number) for number in range(3))
    announce = scene.catalog.commits.announce
    watcher, other = scene.catalog.watcher(ignored_origin=_SELF), scene.catalog.watcher()
    watcher.wait(0, frozenset({first, second}))
    other.wait(0, frozenset({second, third}))
    clock.advance(LEASE_SECONDS * 2 / 3)
    assert watcher.wait(0, frozenset({first})) == frozenset()
    assert other.wait(0, frozenset({third})) == frozenset()
    assert announce([second], _OTHER) == 0
    assert announce([first], _OTHER) > 0
    assert announce([third], _OTHER) > 0
    with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
        rows = connection.execute(b"SELECT partition FROM listened_partitions ORDER BY 1").fetchall()
    assert rows == [(0,), (2,)]
    watcher.close()
    other.close()


def test_a_watcher_that_connects_again_registers_what_it_wants_now(
    scene: Scene, catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    topic = scene.topic(partitions=2)
    first, second = (PartitionId(topic.topic_id, number) for number in range(2))
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        watcher = catalog.watcher()
        watcher.wait(0, frozenset({first}))
        wire.break_connections()
        with pytest.raises(CatalogUnavailableError):
            watcher.wait(120, frozenset({first}))
        assert watcher.wait(0, frozenset({second})) is None
        assert scene.catalog.commits.announce([first], _OTHER) == 0
        assert scene.catalog.commits.announce([second], _OTHER) > 0
        watcher.close()


def test_a_registration_that_was_removed_is_made_again(scene: Scene, catalog_url: str, clock: Clock) -> None:
    """Another process may find it expired although its own process does not: clocks may be set."""
    assert isinstance(clock, ManualClock)
    topic = scene.topic(partitions=2)
    first, second = (PartitionId(topic.topic_id, number) for number in range(2))
    watcher = scene.catalog.watcher()
    watcher.wait(0, frozenset({first}))
    with psycopg.connect(catalog_url, options="-c search_path=siltstone", autocommit=True) as connection:
        connection.execute(b"DELETE FROM commit_listeners")
        both = frozenset({first, second})
        assert watcher.wait(0, both) is None, "notifications were lost"
        rows = connection.execute(b"SELECT partition FROM listened_partitions ORDER BY 1").fetchall()
    assert rows == [(0,), (1,)]
    watcher.close()


def test_a_watcher_of_very_many_partitions_registers_for_all(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    topic = scene.topic(partitions=2)
    first, second = (PartitionId(topic.topic_id, number) for number in range(2))
    announce = scene.catalog.commits.announce
    watcher = scene.catalog.watcher()
    few = frozenset({first})
    many = few | {PartitionId(UUID(int=number), 0) for number in range(MAX_REGISTERED)}
    watcher.wait(0, few)
    assert watcher.wait(0, many) is None, "any other partition is new to it"
    assert announce([second], _OTHER) > 0
    assert watcher.wait(120, many) == frozenset({second})
    assert watcher.wait(0, few) == frozenset(), "it stays registered until it renews"
    clock.advance(LEASE_SECONDS / 2)
    assert watcher.wait(0, few) == frozenset()
    assert announce([second], _OTHER) == 0
    assert announce([first], _OTHER) > 0
    watcher.close()


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
def test_a_commit_looks_its_partitions_up_among_those_of_all_watchers(
    scene: Scene, catalog_url: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many partitions it has, and whatever plan PostgreSQL prefers."""
    sent: list[tuple[Query, dict[str, object]]] = []

    def record(database: Database, operation: str, query: Query, params: dict[str, object]) -> list[object]:
        del database, operation
        sent.append((query, params))
        return []

    with monkeypatch.context() as patch:
        patch.setattr(Database, "read", record)
        scene.catalog.commits.announce([PartitionId(UUID(int=9), n) for n in range(1000)], _OTHER)
    ((query, params),) = sent
    with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
        arrays.register(connection)
        connection.execute(
            b"INSERT INTO commit_listeners (listener_id, buckets, until_ms, is_exact)"
            b" SELECT lpad(to_hex(n), 32, '0')::uuid, repeat('1', 256)::bit(256), 1::bigint << 60, true"
            b" FROM generate_series(1, 20) AS n"
        )
        connection.execute(
            b"INSERT INTO listened_partitions SELECT listener_id, n, listener_id"
            b" FROM commit_listeners, generate_series(0, 999) AS n"
        )
        connection.execute(b"ANALYZE listened_partitions")
        connection.execute(f"SET plan_cache_mode = {mode}".encode())
        scans = (
            b"SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0) FROM pg_stat_xact_user_tables"
            b" WHERE relname = 'listened_partitions'"
        )
        before = connection.execute(scans).fetchone()
        assert connection.execute(query.sql, params, prepare=True).rowcount == 1000
        after = connection.execute(scans).fetchone()
        assert before is not None
        assert after is not None
        assert after[0] - before[0] <= 1000
        connection.rollback()


def test_a_commit_before_a_watcher_has_registered_is_reported_by_it(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    first, second = (PartitionId(topic.topic_id, number) for number in range(2))
    watcher = scene.catalog.watcher()
    watcher.wait(0, frozenset({first}))
    _commit(scene, topic, 1)
    both = frozenset({first, second})
    assert watcher.wait(120, both) == frozenset({second})
    _commit(scene, topic, 1)
    assert watcher.wait(120, both) == frozenset({second})
    watcher.close()


def test_a_registration_is_renewed_and_expires(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    key = PartitionId(scene.topic().topic_id, 0)
    announce, wanted = scene.catalog.commits.announce, frozenset({key})
    watcher = scene.catalog.watcher()
    watcher.wait(0, wanted)
    clock.advance(LEASE_SECONDS * 2 / 3)
    assert watcher.wait(0, wanted) == frozenset()
    clock.advance(LEASE_SECONDS * 2 / 3)
    assert announce([key], _OTHER) > 0, "it was renewed"
    while not (changes := watcher.wait(120, wanted)):
        assert changes is not None
    assert changes == frozenset({key})
    clock.advance(LEASE_SECONDS + 1)
    assert announce([key], _OTHER) == 0, "its process is frozen or gone"
    assert watcher.wait(0, wanted) is None, "notifications were lost"
    assert announce([key], _OTHER) > 0
    watcher.close()


def test_a_registration_that_expires_while_it_is_renewed_has_lost_notifications(
    scene: Scene, catalog_url: str, clock: Clock
) -> None:
    """The catalog may be slow just then."""
    assert isinstance(clock, ManualClock)
    key = PartitionId(scene.topic().topic_id, 0)
    announce, wanted = scene.catalog.commits.announce, frozenset({key})
    watcher = scene.catalog.watcher(ignored_origin=_SELF)
    watcher.wait(0, wanted)
    clock.advance(LEASE_SECONDS - 1)
    waiting = b"SELECT count(*) FROM pg_locks WHERE NOT granted"
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection,
    ):
        connection.execute(b"SELECT FROM commit_listeners FOR UPDATE")
        renewal = pool.submit(watcher.wait, 0, wanted)
        while connection.execute(waiting).fetchone() == (0,):
            pass
        clock.advance(2)
        assert announce([key], _OTHER) == 0
        connection.rollback()
        assert renewal.result() is None
    watcher.close()


def test_a_registration_that_has_expired_in_the_catalog_has_lost_notifications(
    scene: Scene, catalog_url: str
) -> None:
    """The clock of this machine stands still while the machine is suspended."""
    topic = scene.topic(partitions=2)
    first, second = (PartitionId(topic.topic_id, number) for number in range(2))
    watcher = scene.catalog.watcher(ignored_origin=_SELF)
    watcher.wait(0, frozenset({first}))
    with psycopg.connect(catalog_url, options="-c search_path=siltstone", autocommit=True) as connection:
        connection.execute(b"UPDATE commit_listeners SET until_ms = 0")
    assert scene.catalog.commits.announce([first], _OTHER) == 0
    assert watcher.wait(0, frozenset({first, second})) is None
    assert scene.catalog.commits.announce([first], _OTHER) > 0
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


def test_a_watcher_that_wants_nothing_closes_its_connection(scene: Scene, catalog_url: str) -> None:
    watcher = scene.catalog.watcher()
    watcher.wait(0)
    assert watcher._connection is not None
    pid = (watcher._connection.info.backend_pid,)
    count = b"SELECT count(*) FROM pg_stat_activity WHERE pid = %s"
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        assert connection.execute(count, pid).fetchone() == (1,)
        assert watcher.wait(0, frozenset()) == frozenset()
        while connection.execute(count, pid).fetchone() != (0,):
            pass


def test_commits_of_the_previous_release_are_reported(scene: Scene, catalog_url: str) -> None:
    key = PartitionId(scene.topic().topic_id, 0)
    watcher = scene.catalog.watcher()
    watcher.wait(0, frozenset({key}))
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        payload = f"{_OTHER.hex}!{key.topic_id.hex}:0"
        connection.execute(b"SELECT pg_notify('siltstone_commits', %s)", (payload,))
    assert watcher.wait(120, frozenset({key})) == frozenset({key})
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


def test_a_watcher_listens_again_after_a_registration_has_failed(scene: Scene, catalog_url: str) -> None:
    """It had already stopped listening to the channel of a partition that is wanted again."""
    topic = scene.topic(partitions=2)
    first, second = (PartitionId(topic.topic_id, number) for number in range(2))
    calls: list[str] = []
    watcher = scene.catalog.watcher(listeners={"other": lambda: calls.append("other")})
    watcher.wait(0, frozenset({first}))
    with psycopg.connect(catalog_url, options="-c search_path=siltstone", autocommit=True) as connection:
        connection.execute(b"ALTER TABLE listened_partitions ADD CONSTRAINT refusal CHECK (partition <> 1)")
        with pytest.raises(psycopg.IntegrityError):
            watcher.wait(0, frozenset({second}))
        connection.execute(b"ALTER TABLE listened_partitions DROP CONSTRAINT refusal")
    assert watcher.wait(0, frozenset({first})) is None, "any partition may have changed meanwhile"
    assert calls == ["other"] * 2
    _commit(scene, topic)
    assert _partitions(watcher.wait(120, frozenset({first}))) == {first}
    watcher.close()


def test_a_notification_of_a_listener_during_the_registration_is_not_delayed(
    scene: Scene, catalog_url: str
) -> None:
    """It has arrived before the first wait for the socket."""
    calls: list[int] = []

    def listener() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            with psycopg.connect(catalog_url, autocommit=True) as connection:
                connection.execute(b"NOTIFY other")

    watcher = scene.catalog.watcher(listeners={"other": listener})
    assert watcher.wait(0) is None
    watcher.wait(0.1)
    assert calls == [0, 1]
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
