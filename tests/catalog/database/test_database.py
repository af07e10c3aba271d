"""Timeouts, retries and errors of the database, and protection of passwords."""

from __future__ import annotations

import os
import re
import select
import socket
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.types.json import Jsonb

from catalog.database.connection import connection_string, first_line
from catalog.database.limits import DatabaseLimits
from catalog.database.pool import Database, Reserve
from catalog.database.sql_files import Query
from catalog.errors import CatalogAddressError, CatalogUnavailableError, UnstorableValueError
from catalog.open import open_catalog
from core.clock import ManualClock, SystemClock
from core.errors import FatalError
from tests.catalog.database.wire import WireProxy
from tests.catalog.scene import Scene, run_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from catalog.database.pool import Transaction
    from core.clock import Clock
    from core.ids import Ids

_SECRET = "hunter2-and-more"


def _query(sql: bytes) -> Query:
    return Query("test", "a test", sql)


@pytest.fixture
def database(catalog_url: str, clock: Clock, ids: Ids) -> Iterator[Database]:
    database = Database(catalog_url, clock, ids)
    yield database
    database.close()


def test_a_transaction_is_atomic(database: Database) -> None:
    def work(transaction: Transaction) -> None:
        transaction.send(_query(b"CREATE TABLE once (n int)"))
        transaction.rows(_query(b"SELECT 1"))
        raise ValueError("changed my mind")

    with pytest.raises(ValueError, match="changed my mind"):
        database.transact("test", work)
    assert database.read("test", _query(b"SELECT to_regclass('once')")) == [(None,)]


def test_work_is_retried_after_a_deadlock(database: Database) -> None:
    database.transact(
        "test",
        lambda transaction: transaction.send(_query(b"CREATE TABLE pair AS SELECT 1 AS n UNION SELECT 2")),
    )
    first_locked = threading.Barrier(2)
    attempts: list[int] = []

    def lock_both(first: int, second: int) -> None:
        waited = False

        def work(transaction: Transaction) -> None:
            nonlocal waited
            attempts.append(first)
            transaction.rows(_query(b"SELECT n FROM pair WHERE n = %(n)s FOR UPDATE"), {"n": first})
            if not waited:
                waited = True
                first_locked.wait()
            transaction.rows(_query(b"SELECT n FROM pair WHERE n = %(n)s FOR UPDATE"), {"n": second})

        database.transact("test", work, idempotent=False)

    threads = [threading.Thread(target=lock_both, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(attempts) >= 2


def test_a_statement_that_exceeds_its_timeout_fails(catalog_url: str, clock: Clock, ids: Ids) -> None:
    database = Database(catalog_url, clock, ids, DatabaseLimits(statement_seconds=2))
    with pytest.raises(CatalogUnavailableError, match="statement timeout"):
        database.read("slow", _query(b"SELECT pg_sleep(600)"))
    count = database.counts.snapshot()["slow"]
    assert (count.calls, count.failures, count.retries) == (1, 1, 0)
    database.close()


def test_commits_have_reserved_connections(catalog_url: str, clock: Clock, ids: Ids) -> None:
    """Producers do not wait for readers that use every other connection."""
    limits = DatabaseLimits(max_connections=1)
    database = Database(catalog_url, clock, ids, limits)
    in_use, done = threading.Event(), threading.Event()

    def use(transaction: Transaction) -> None:
        transaction.rows(_query(b"SELECT 1"))
        in_use.set()
        done.wait(240)

    using = threading.Thread(target=database.transact, args=("use", use))
    using.start()
    in_use.wait(240)
    assert database.transact(
        "commit", lambda each: each.rows(_query(b"SELECT 2")), reserve=Reserve.COMMITS
    ) == [(2,)]
    done.set()
    using.join()
    database.close()


def test_a_defect_is_a_fatal_error_with_the_operation(database: Database) -> None:
    with pytest.raises(FatalError, match="rejected oops"):
        database.read("oops", _query(b"SELECT 1 / 0"))


def test_work_is_retried_when_the_server_is_read_only(database: Database) -> None:
    """After a failover, connections may lead to the old primary; a new connection can write."""
    attempts: list[int] = []

    def work(transaction: Transaction) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            transaction.send(_query(b"SET TRANSACTION READ ONLY"))
        transaction.count(_query(b"CREATE TABLE written (n int)"))

    database.transact("test", work, idempotent=False)
    assert len(attempts) == 2


def test_work_is_retried_when_its_idle_transaction_is_terminated(
    catalog_url: str, clock: Clock, ids: Ids
) -> None:
    database = Database(catalog_url, clock, ids, DatabaseLimits(silent_client_seconds=1))
    attempts: list[int] = []

    def work(transaction: Transaction) -> list[tuple[int]]:
        attempts.append(1)
        transaction.rows(_query(b"SELECT 1"))
        if len(attempts) == 1:
            select.select(
                [transaction._connection.fileno()], [], [], 600
            )  # until the server closes the connection
        return transaction.rows(_query(b"SELECT 2"))

    assert database.transact("test", work) == [(2,)]
    assert len(attempts) > 1
    database.close()


def test_work_that_is_not_idempotent_is_not_retried_after_a_lost_connection(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    with WireProxy(catalog_url, tmp_path) as wire:
        database = Database(wire.url, clock, ids)
        attempts = []

        def work(transaction: Transaction) -> None:
            attempts.append(1)
            wire.break_connections()
            transaction.rows(_query(b"SELECT 1"))

        for idempotent in (False, True):
            attempts.clear()
            with pytest.raises(
                CatalogUnavailableError, match=r"did not respond to test.*its synchronous standbys run"
            ):
                database.transact("test", work, idempotent=idempotent)
            assert (len(attempts) > 1) == idempotent
        database.close()


def test_the_catalog_recovers_after_all_connections_broke(catalog_url: str, tmp_path: Path, ids: Ids) -> None:
    clock = SystemClock()
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic()
        for number in range(3):
            wire.break_connections()
            assert scene.commit(topic, run_of(1)).runs[0].base_offset == number


def test_the_error_contains_the_reason_why_no_connection_can_be_opened(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    """The reason is that of this attempt, on one line."""
    with WireProxy(catalog_url, tmp_path) as wire:
        database = Database(wire.url, clock, ids)
        assert _read_error(database) is None
    message = str(_read_error(database))
    database.close()
    assert re.search("did not respond to test: connection .*(refused|No such file)", message)
    assert "\n" not in message


def _read_error(database: Database) -> CatalogUnavailableError | None:
    try:
        assert database.read("test", _query(b"SELECT 1")) == [(1,)]
    except CatalogUnavailableError as error:
        return error
    return None


def test_the_error_for_an_unreachable_server_has_no_password(clock: Clock, ids: Ids, tmp_path: Path) -> None:
    url = f"postgresql://me:{_SECRET}@/there?host={tmp_path}"
    with pytest.raises(CatalogUnavailableError) as rejected:
        open_catalog(url, clock, ids, limits=DatabaseLimits(connect_seconds=1))
    assert _SECRET not in str(rejected.value)
    assert "there" in str(rejected.value)
    assert "\n" not in str(rejected.value)


@pytest.mark.parametrize("url", [f"postgresql://me:{_SECRET}@[host/db", f"pasword={_SECRET}", f"{_SECRET} x"])
def test_the_error_for_a_malformed_address_does_not_contain_it(clock: Clock, ids: Ids, url: str) -> None:
    with pytest.raises(CatalogAddressError) as rejected:
        open_catalog(url, clock, ids)
    assert _SECRET not in str(rejected.value)
    assert rejected.value.__cause__ is None
    assert rejected.value.__suppress_context__


def test_no_repr_contains_the_password(catalog_url: str, ids: Ids) -> None:
    clock = ManualClock()
    with open_catalog(f"{catalog_url} password={_SECRET}", clock, ids) as catalog:
        assert _SECRET not in repr(catalog)
        assert _SECRET not in repr(catalog._database)
        assert _SECRET not in repr(catalog._database._pools)


def test_timeouts_are_set_on_every_connection(catalog_url: str) -> None:
    limits = DatabaseLimits(statement_seconds=7)
    url = f"{catalog_url} options='-c work_mem=5MB -c default_transaction_isolation=serializable'"
    with psycopg.connect(connection_string(url, limits)) as connection:
        for name, value in (
            ("statement_timeout", "7s"),
            ("lock_timeout", "20s"),
            ("idle_in_transaction_session_timeout", "2s"),
            ("tcp_keepalives_count", "0"),  # a Unix socket has none
            ("work_mem", "5MB"),
            ("default_transaction_isolation", "read committed"),
        ):
            assert connection.execute("SELECT current_setting(%s)", (name,)).fetchone() == (value,)


@pytest.mark.parametrize("reserve", Reserve)
def test_silence_and_one_more_wait_take_less_than_three_seconds(
    catalog_url: str, clock: Clock, ids: Ids, reserve: Reserve
) -> None:
    """A wait for the locks of a frozen client may begin just before the client counts as silent."""
    limits = DatabaseLimits()
    query = _query(b"SELECT extract(epoch FROM current_setting('lock_timeout')::interval)::float")
    with closing(Database(catalog_url, clock, ids, limits)) as database:
        ((wait_seconds,),) = database.transact("test", lambda each: each.rows(query), reserve=reserve)
    assert 0 < wait_seconds < 3 - limits.silent_client_seconds


def test_operations_are_counted(catalog_url: str, clock: Clock, ids: Ids) -> None:
    with open_catalog(catalog_url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic()
        scene.commit(topic, run_of(1))
        counts = catalog.operation_counts()
        assert counts["commits.commit"].calls == 1
        assert counts["commits.commit"].statements > 5
        assert counts["topics.create"].failures == 0


def test_values_that_postgresql_cannot_store_are_invalid_input(database: Database) -> None:
    """A NUL in text or in JSON, and a value too long for an index, are rejected without a retry."""
    database.transact(
        "test",
        lambda transaction: transaction.send(_query(b"CREATE TABLE named (name text UNIQUE, more jsonb)")),
    )
    insert = _query(b"INSERT INTO named VALUES (%(name)s, %(more)s)")
    long = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(6000))
    for name, more in (("a\0b", {}), ("a", {"a": "a\0b"}), (long, {})):
        params = {"name": name, "more": Jsonb(more)}
        with pytest.raises(UnstorableValueError) as rejected:
            database.transact("names", lambda each, params=params: each.rows(insert, params))  # type: ignore[misc]  # bound here
        assert database.address not in str(rejected.value)
    assert database.counts.snapshot()["names"].retries == 0


def test_a_dead_connection_is_detected_within_a_minute_even_if_it_only_listens() -> None:
    """The address may override the keep-alive settings."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"postgresql://somebody@127.0.0.1:{listener.getsockname()[1]}/catalog"
        assert _detection_seconds(connection_string(url, DatabaseLimits())) <= 60
        slow = connection_string(f"{url}?keepalives_interval=100", DatabaseLimits())
        assert _detection_seconds(slow) > 60


def _detection_seconds(conninfo: str) -> int:
    """Return after how many seconds a silent, dead connection is closed, by its socket options."""
    connection = psycopg.pq.PGconn.connect_start(conninfo.encode())
    try:
        with socket.socket(fileno=os.dup(connection.socket)) as link:
            assert link.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            idle, interval, count, limit_ms = (
                link.getsockopt(socket.IPPROTO_TCP, option)
                for option in (
                    socket.TCP_KEEPIDLE,
                    socket.TCP_KEEPINTVL,
                    socket.TCP_KEEPCNT,
                    socket.TCP_USER_TIMEOUT,
                )
            )
    finally:
        connection.finish()
    assert limit_ms == DatabaseLimits().statement_seconds * 1000
    return int(idle + count * interval)


def test_the_reasons_of_several_hosts_are_short() -> None:
    """A refused connection has the address twice in psycopg's list, and a timeout once."""
    listed = (
        "connection timeout expired\nMultiple connection attempts failed. All failures were:\n"
        "- host: 'db1', port: '1', hostaddr: '10.0.0.1': connection timeout expired\n"
        "- host: 'db2', port: '2', hostaddr: '10.0.0.2': connection failed: connection to server at "
        '"10.0.0.2", port 2 failed: Connection refused\n\tIs the server running on that host?\n'
        "- host: 'db3', port: '3', hostaddr: None: failed to resolve host 'db3'"
    )
    assert first_line(psycopg.OperationalError(listed)) == (
        "host: 'db1', port: '1': connection timeout expired; "
        "host: 'db2', port: '2': Connection refused; "
        "host: 'db3', port: '3': failed to resolve host 'db3'"
    )
