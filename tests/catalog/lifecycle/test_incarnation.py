"""A server that continues on another history of commits: each kind of evidence begins a new incarnation."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from catalog.database import pool
from catalog.database.pool import Transaction
from catalog.errors import CatalogReplacedError, SessionFencedError
from catalog.model import EPOCHS_IN_BATCHES, PartitionId
from catalog.open import open_catalog
from core.clock import ManualClock
from tests.catalog.scene import Scene, advance_log_start, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from catalog.database.connection import Row
    from catalog.database.sql_files import Query
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids


FIRST = 12_216_320
"""The first epoch after epoch 0, at the time of the clock of the tests: tens of seconds since 2020."""


@pytest.fixture
def connection(catalog_url: str, scene: Scene) -> Iterator[psycopg.Connection]:
    """Return a connection that changes the catalog behind its back; the scene has registered a session."""
    del scene
    with psycopg.connect(catalog_url, autocommit=True, options="-c search_path=siltstone") as opened:
        yield opened


def replace_server(connection: psycopg.Connection) -> None:
    """Make the recorded server another one than that which runs, as after a promotion."""
    connection.execute(
        "UPDATE catalog_incarnation SET server = regexp_replace(server, '/[^/]*', '/00000000')"
    )


def test_a_new_catalog_begins_with_epoch_0_and_records_its_server_once(scene: Scene) -> None:
    first = scene.catalog.incarnations.current()
    again = Scene.set_up(scene.catalog, scene.ids)
    assert (first.epoch, scene.catalog.incarnations.current()) == (0, first)
    assert again.commit(again.topic(), run_of(3)).leader_epoch == 0


def test_a_process_without_a_session_records_the_server_once(catalog: Catalog, catalog_url: str) -> None:
    """Otherwise another server could not be noticed later. The next look needs no lock."""
    server = "SELECT server FROM siltstone.catalog_incarnation"
    with psycopg.connect(catalog_url, autocommit=True) as opened:
        assert opened.execute(server).fetchone() == (None,)
        for _ in range(2):
            assert catalog.incarnations.ensure().epoch == 0
            assert opened.execute(server).fetchone() != (None,)
    assert catalog.operation_counts()["incarnation.ensure"].calls == 1


def test_no_session_commits_on_another_server_until_one_registers(
    scene: Scene, connection: psycopg.Connection
) -> None:
    """The registration begins the next epoch and fences all older sessions."""
    topic = scene.topic()
    scene.commit(topic, run_of(3))
    other = Scene.set_up(scene.catalog, scene.ids)
    replace_server(connection)
    for each in (scene, other):
        with pytest.raises(CatalogReplacedError):
            each.commit(topic, run_of(1))
    with pytest.raises(CatalogReplacedError):
        scene.catalog.sessions.heartbeat(scene.session_id)
    scene.session_id = scene.ids.new_uuid()
    assert scene.catalog.sessions.register(scene.session_id, "the first").epoch == FIRST
    with pytest.raises(SessionFencedError, match="is fenced"):
        other.commit(topic, run_of(1))
    other.session_id = other.ids.new_uuid()
    assert other.catalog.sessions.register(other.session_id, "the second").epoch == FIRST
    result = other.commit(topic, run_of(2))
    assert (result.leader_epoch, result.high_watermark) == (FIRST, 5)


def test_leader_epochs_begin_with_the_first_records_in_them(
    scene: Scene, connection: psycopg.Connection
) -> None:
    topic = scene.topic(partitions=2)
    key, idle = (PartitionId(topic.topic_id, number) for number in range(2))
    scene.commit(topic, run_of(3))
    repeated = run_of(1, producer=(1, 0, 0))
    scene.commit(topic, repeated, partition=1)
    for _ in range(3):  # nothing is written in the second of the three epochs
        replace_server(connection)
        scene.session_id = scene.ids.new_uuid()
        epoch = scene.catalog.sessions.register(scene.session_id, "again").epoch
        if epoch != FIRST + 1:
            scene.catalog.commits.commit(scene.file({key: [run_of(2)], idle: [repeated]}))
            scene.commit(topic, run_of(2))
    states = {state.partition: state for state in scene.catalog.topics.states([key, idle])}
    assert {state.leader_epoch for state in states.values()} == {FIRST + 2}
    assert [(extent.base_offset, extent.leader_epoch) for extent in scene.extents(topic)] == [
        (0, 0),
        (3, FIRST),
        (5, FIRST),
        (7, FIRST + 2),
        (9, FIRST + 2),
    ]
    histories = scene.catalog.leader_epochs.of_partitions([key, idle])
    assert list(histories) == [key]
    current, last = FIRST + 2, (FIRST, 7)
    ends = [
        histories[key].end_of(epoch, current=current, log_end_offset=11)
        for epoch in (-1, 0, FIRST - 1, FIRST, FIRST + 1, current, current + 1)
    ]
    assert ends == [(-1, -1), (0, 3), (0, 3), last, last, (current, 11), (-1, -1)]
    assert [
        histories[key].at(offset, current=current, log_end_offset=11) for offset in (0, 2, 3, 6, 7, 11)
    ] == [0, 0, FIRST, FIRST, current, current]


def test_epochs_below_the_log_start_are_removed(scene: Scene, connection: psycopg.Connection) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(3))
    for expected in range(FIRST, FIRST + 3):
        replace_server(connection)
        scene.session_id = scene.ids.new_uuid()
        scene.catalog.sessions.register(scene.session_id, "again")
        end = scene.commit(topic, run_of(2)).high_watermark
        advance_log_start(scene.catalog.retention, topic.topic_id, 0, end)
        kept = connection.execute("SELECT leader_epoch FROM leader_epochs ORDER BY leader_epoch").fetchall()
        assert kept == [(expected,)]


def test_ids_of_the_lost_history_are_not_assigned_again(scene: Scene, connection: psycopg.Connection) -> None:
    """The first request for an id begins the incarnation, too."""
    producer, node = scene.catalog.producers.new_id(), scene.catalog.brokers.new_node_id()
    replace_server(connection)
    assert scene.catalog.producers.new_id() > producer + 1_000_000
    assert scene.catalog.brokers.new_node_id() > node + 1_000
    assert scene.catalog.incarnations.current().epoch == FIRST


def test_a_backup_that_is_older_than_the_last_failover_assigns_nothing_again(
    scene: Scene, connection: psycopg.Connection, catalog_url: str, clock: Clock, ids: Ids
) -> None:
    """The backup does not know the last incarnations of the lost history, and no process remembers them."""
    assert isinstance(clock, ManualClock)
    key = PartitionId(scene.topic().topic_id, 0)
    scene.catalog.local_leaders.claim({key: 7})
    saved = connection.execute(
        "SELECT i.incarnation_id, i.epoch, p.last_value, b.last_value"
        " FROM catalog_incarnation AS i, producer_ids AS p, broker_ids AS b"
    ).fetchone()
    assert saved is not None

    def assigned(catalog: Catalog) -> tuple[int, ...]:
        replace_server(connection)
        epoch = catalog.incarnations.ensure().epoch
        local_epoch = catalog.local_leaders.begin_epochs(7)[key]
        return epoch, catalog.producers.new_id(), catalog.brokers.new_node_id(), local_epoch

    epoch, _, node_id, local_epoch = assigned(scene.catalog)
    connection.execute("SELECT setval('producer_ids', last_value + 2000000000) FROM producer_ids")
    lost = (epoch, scene.catalog.producers.new_id(), node_id, local_epoch)  # after so many producers
    clock.advance(3600)
    connection.execute("UPDATE catalog_incarnation SET incarnation_id = %s, epoch = %s", saved[:2])
    connection.execute("SELECT setval('producer_ids', %s), setval('broker_ids', %s)", saved[2:])
    connection.execute("UPDATE local_leaders SET leader_epoch = 0")
    with open_catalog(catalog_url, clock, ids) as fresh:
        found = assigned(fresh)
    assert all(new > old for new, old in zip(found, lost, strict=True)), (found, lost)


def test_a_running_attempt_is_superseded(scene: Scene, connection: psycopg.Connection) -> None:
    topic = scene.topic_with_extents(2)
    job = scene.claimed(scene.extents(topic))
    replace_server(connection)
    scene.catalog.incarnations.ensure()
    (again,) = scene.catalog.jobs.claim("application", 1)
    assert (again.spec.job_id, again.attempts) == (job.spec.job_id, 2)
    scene.catalog.jobs.complete(scene.result(again))
    assert {extent.leader_epoch for extent in scene.extents(topic)} == {EPOCHS_IN_BATCHES}


def test_a_shorter_wal_discards_open_jobs(scene: Scene) -> None:
    """The server is the same, so it is a restored copy and no promotion: inputs may be deleted already."""
    topic = scene.topic_with_extents(2)
    scene.claimed(scene.extents(topic))
    scene.catalog.incarnations._flushed += 1 << 40
    assert scene.catalog.incarnations.ensure().epoch == FIRST
    assert scene.catalog.jobs.claim("application", 1) == []


def test_a_missing_commit_is_noticed(
    scene: Scene, connection: psycopg.Connection, catalog_url: str, clock: Clock, ids: Ids
) -> None:
    """A snapshot of the disks was restored: the server is the same, and the process's last commit is gone."""
    topic = scene.topic()
    scene.commit(topic, run_of(3))
    scene.catalog.sessions.heartbeat(scene.session_id)
    with open_catalog(catalog_url, clock, ids) as other:
        Scene.set_up(other, ids).commit(topic, run_of(1))
        connection.execute("DELETE FROM files WHERE owner_id = %s", [scene.session_id])
        other.sessions.heartbeat(other.sessions.active()[0].session_id)  # its own commit is there
    connection.execute("DELETE FROM commit_results")
    with pytest.raises(CatalogReplacedError, match="acknowledged commit"):
        scene.catalog.sessions.heartbeat(scene.session_id)
    assert scene.catalog.incarnations.ensure().epoch == FIRST


def test_a_commit_notices_that_the_one_before_it_is_missing(
    scene: Scene, connection: psycopg.Connection
) -> None:
    """The WAL of a restored snapshot may be long again before the first heartbeat looks."""
    topic = scene.topic()
    scene.commit(topic, run_of(3))
    connection.execute("DELETE FROM files")
    scene.commit(topic, run_of(3))  # the results of the missing file are there
    connection.execute("DELETE FROM files")
    connection.execute("DELETE FROM commit_results")
    with pytest.raises(CatalogReplacedError):
        scene.commit(topic, run_of(1))
    assert scene.catalog.incarnations.ensure().epoch == FIRST


@pytest.mark.parametrize("is_committed_again", [False, True])
def test_an_old_commit_is_no_evidence_although_the_agent_has_noticed_no_time(
    scene: Scene, connection: psycopg.Connection, clock: Clock, *, is_committed_again: bool
) -> None:
    """Its machine was suspended, or the catalog's clock jumped. Meanwhile the commit was forgotten."""
    assert isinstance(clock, ManualClock)
    topic = scene.topic()
    scene.commit(topic, run_of(3))
    clock._start_ms += 2 * 3_600_000
    connection.execute("DELETE FROM files")
    connection.execute("DELETE FROM commit_results")
    scene.catalog.sessions.heartbeat(scene.session_id)
    if is_committed_again:
        scene.commit(topic, run_of(3))
    assert scene.catalog.sessions.register(scene.ids.new_uuid(), "another").epoch == 0


@pytest.mark.parametrize(("age_seconds", "is_noticed"), [(1_799, True), (1_801, False)])
def test_a_commit_is_evidence_for_half_an_hour(
    scene: Scene, connection: psycopg.Connection, clock: Clock, age_seconds: int, *, is_noticed: bool
) -> None:
    assert isinstance(clock, ManualClock)
    scene.commit(scene.topic(), run_of(3))
    connection.execute("DELETE FROM files")
    connection.execute("DELETE FROM commit_results")
    clock.advance(age_seconds)
    with pytest.raises(CatalogReplacedError) if is_noticed else nullcontext():
        scene.catalog.sessions.heartbeat(scene.session_id)


def test_an_epoch_is_current_until_the_server_continues_on_another_history(
    scene: Scene, connection: psycopg.Connection
) -> None:
    incarnations = scene.catalog.incarnations
    assert [incarnations.is_current(epoch) for epoch in (-1, 0, 1)] == [False, True, False]
    replace_server(connection)
    assert not incarnations.is_current(0)
    assert incarnations.ensure().epoch == FIRST
    assert [incarnations.is_current(epoch) for epoch in (0, FIRST)] == [False, True]
    incarnations._flushed += 1 << 40
    assert not incarnations.is_current(FIRST)


def test_a_shorter_wal_is_noticed_by_a_commit(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(3))
    scene.catalog.incarnations._flushed += 1 << 40
    with pytest.raises(CatalogReplacedError, match="WAL"):
        scene.commit(topic, run_of(1))
    assert scene.catalog.incarnations.ensure().epoch == FIRST


def test_a_commit_during_a_comparison_is_no_evidence(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread sees positions of the WAL that are later than those of the row that is compared."""
    topic = scene.topic()
    scene.commit(topic, run_of(1))
    rows = Transaction.rows

    def rows_before_commits(
        transaction: Transaction, query: Query, params: Mapping[str, object] | None = None
    ) -> list[Any]:
        found = rows(transaction, query, params)
        if query.name == "read_incarnation":
            for _ in range(2):  # the second one reads the durable position of the first one
                scene.commit(topic, run_of(1))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "rows", rows_before_commits)
        assert scene.catalog.sessions.register(scene.ids.new_uuid(), "another").epoch == 0
        scene.catalog.sessions.heartbeat(scene.session_id)
    scene.commit(topic, run_of(1))


def test_a_snapshot_of_an_earlier_epoch_continues_with_a_later_one(
    scene: Scene, connection: psycopg.Connection
) -> None:
    """No epoch of a lost history is used again."""
    saved = connection.execute("SELECT incarnation_id, epoch FROM catalog_incarnation").fetchone()
    assert saved is not None
    for _ in range(3):
        replace_server(connection)
        scene.catalog.incarnations.ensure()
    connection.execute("UPDATE catalog_incarnation SET incarnation_id = %s, epoch = %s", saved)
    assert scene.catalog.incarnations.ensure().epoch == FIRST + 3


def test_a_restore_without_traces_is_declared(scene: Scene) -> None:
    assert scene.catalog.incarnations.declare_restore("the operator says so").epoch == FIRST
    with pytest.raises(SessionFencedError):
        scene.catalog.sessions.heartbeat(scene.session_id)


def test_a_declaration_whose_response_is_lost_takes_effect_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = iter((psycopg.OperationalError("the connection was lost"), None))

    def lose_first_response(_connection: object) -> None:
        error = next(commits)
        if error is not None:
            raise error

    with monkeypatch.context() as patch:
        patch.setattr(pool, "_require_standby", lose_first_response)
        assert scene.catalog.incarnations.declare_restore("the operator says so").epoch == FIRST
    assert scene.catalog.incarnations.current().epoch == FIRST


def test_a_restored_copy_of_the_database_is_another_server(
    scene: Scene, catalog: Catalog, connection: psycopg.Connection
) -> None:
    """A table that was created again has another identity."""
    server = connection.execute("SELECT server FROM catalog_incarnation").fetchone()
    connection.execute("UPDATE catalog_incarnation SET server = regexp_replace(server, '[^/]*$', '1')")
    assert catalog.incarnations.ensure().epoch == FIRST
    assert connection.execute("SELECT server FROM catalog_incarnation").fetchone() == server
    assert scene.catalog.incarnations.ensure().epoch == FIRST


def test_a_heartbeat_reads_no_other_session(
    scene: Scene, connection: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each agent sends one every two seconds, and the sessions of dead agents stay for a time."""
    sent: list[tuple[Query, Mapping[str, object] | None]] = []
    rows = Transaction.rows

    def record(
        transaction: Transaction, query: Query, params: Mapping[str, object] | None = None
    ) -> list[Row]:
        sent.append((query, params))
        return rows(transaction, query, params)

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "rows", record)
        scene.catalog.sessions.heartbeat(scene.session_id)
    assert sent
    connection.execute(
        "INSERT INTO sessions (session_id, description, started_ms, heartbeat_ms)"
        " SELECT gen_random_uuid(), 'another agent', 0, 0 FROM generate_series(1, 2000)"
    )
    connection.execute("ANALYZE sessions")
    with connection.transaction(force_rollback=True):
        for query, params in sent:
            connection.execute(query.sql, params)
        found = connection.execute(
            "SELECT seq_tup_read FROM pg_stat_xact_user_tables WHERE relname = 'sessions'"
        )
        assert found.fetchall() == [(0,)]
