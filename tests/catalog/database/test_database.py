"""Timeouts, retries, secrets: how the catalog behaves when PostgreSQL does not."""

from __future__ import annotations

import os
import re
import select
import socket
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.types.json import Jsonb

from catalog.database.connection import DatabaseLimits, connection_string
from catalog.database.pool import Database
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


def test_a_transaction_is_all_or_nothing(database: Database) -> None:
    def work(transaction: Transaction) -> None:
        transaction.send(_query(b"CREATE TABLE once (n int)"))
        transaction.rows(_query(b"SELECT 1"))
        raise ValueError("changed my mind")

    with pytest.raises(ValueError, match="changed my mind"):
        database.transact("test", work)
    assert database.read("test", _query(b"SELECT to_regclass('once')")) == [(None,)]


def test_work_is_repeated_after_a_deadlock(database: Database) -> None:
    database.transact(
        "test",
        lambda transaction: transaction.send(_query(b"CREATE TABLE pair AS SELECT 1 AS n UNION SELECT 2")),
    )
    first_locked = threading.Barrier(2)
    tries: list[int] = []

    def lock_both(first: int, second: int) -> None:
        waited = False

        def work(transaction: Transaction) -> None:
            nonlocal waited
            tries.append(first)
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
    assert len(tries) >= 2


def test_what_takes_too_long_is_given_up(catalog_url: str, clock: Clock, ids: Ids) -> None:
    database = Database(catalog_url, clock, ids, DatabaseLimits(statement_seconds=2))
    with pytest.raises(CatalogUnavailableError, match="statement timeout"):
        database.read("slow", _query(b"SELECT pg_sleep(600)"))
    count = database.counts.snapshot()["slow"]
    assert (count.calls, count.failures, count.retries) == (1, 1, 0)
    database.close()


def test_commits_have_connections_of_their_own(catalog_url: str, clock: Clock, ids: Ids) -> None:
    """Readers who hold every connection, for however long, keep no producer waiting."""
    limits = DatabaseLimits(max_connections=1)
    database = Database(catalog_url, clock, ids, limits)
    held, done = threading.Event(), threading.Event()

    def hold(transaction: Transaction) -> None:
        transaction.rows(_query(b"SELECT 1"))
        held.set()
        done.wait(240)

    holding = threading.Thread(target=database.transact, args=("hold", hold))
    holding.start()
    held.wait(240)
    assert database.transact("commit", lambda each: each.rows(_query(b"SELECT 2")), use_commit_pool=True) == [
        (2,)
    ]
    done.set()
    holding.join()
    database.close()


def test_a_defect_is_fatal_and_says_where(database: Database) -> None:
    with pytest.raises(FatalError, match="refused oops"):
        database.read("oops", _query(b"SELECT 1 / 0"))


def test_a_server_that_only_reads_for_now_is_tried_again(database: Database) -> None:
    """A failover leaves connections to the old primary: work goes on once a new one can write."""
    tries: list[int] = []

    def work(transaction: Transaction) -> None:
        tries.append(1)
        if len(tries) == 1:
            transaction.send(_query(b"SET TRANSACTION READ ONLY"))
        transaction.count(_query(b"CREATE TABLE written (n int)"))

    database.transact("test", work, idempotent=False)
    assert len(tries) == 2


def test_who_idles_in_a_transaction_is_told_to_come_back(catalog_url: str, clock: Clock, ids: Ids) -> None:
    database = Database(catalog_url, clock, ids, DatabaseLimits(idle_in_transaction_seconds=1))
    tries: list[int] = []

    def work(transaction: Transaction) -> list[tuple[int]]:
        tries.append(1)
        transaction.rows(_query(b"SELECT 1"))
        if len(tries) == 1:
            select.select([transaction._connection.fileno()], [], [], 600)  # until the server hangs up
        return transaction.rows(_query(b"SELECT 2"))

    assert database.transact("test", work) == [(2,)]
    assert len(tries) > 1
    database.close()


def test_work_that_must_not_be_repeated_is_not(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    with WireProxy(catalog_url, tmp_path) as wire:
        database = Database(wire.url, clock, ids)
        tries = []

        def work(transaction: Transaction) -> None:
            tries.append(1)
            wire.break_connections()
            transaction.rows(_query(b"SELECT 1"))

        for idempotent in (False, True):
            tries.clear()
            with pytest.raises(CatalogUnavailableError, match="did not respond to test"):
                database.transact("test", work, idempotent=idempotent)
            assert (len(tries) > 1) == idempotent
        database.close()


def test_the_catalog_comes_back_after_all_connections_broke(
    catalog_url: str, tmp_path: Path, ids: Ids
) -> None:
    clock = SystemClock()
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic()
        for number in range(3):
            wire.break_connections()
            assert scene.commit(topic, run_of(1)).runs[0].base_offset == number


def test_who_waits_in_vain_for_a_connection_is_told_why_there_is_none(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    """The pool connects in the background; its reason is in the error, on one line, and in no other."""
    with WireProxy(catalog_url, tmp_path) as wire:
        database = Database(wire.url, clock, ids, DatabaseLimits(connect_seconds=1))
        # On a busy machine a second may be too short to connect, and also to fail to.
        while _refusal(database) is not None:
            pass
    while "couldn't get a connection" in (refused := str(_refusal(database))):
        pass
    database.close()
    assert re.search("did not respond to test: connection .*(refused|No such file)", refused)
    assert "\n" not in refused


def _refusal(database: Database) -> CatalogUnavailableError | None:
    try:
        assert database.read("test", _query(b"SELECT 1")) == [(1,)]
    except CatalogUnavailableError as refusal:
        return refusal
    return None


def test_nobody_there_is_said_without_the_password(clock: Clock, ids: Ids, tmp_path: Path) -> None:
    url = f"postgresql://me:{_SECRET}@/there?host={tmp_path}"
    with pytest.raises(CatalogUnavailableError) as refused:
        open_catalog(url, clock, ids, limits=DatabaseLimits(connect_seconds=1))
    assert _SECRET not in str(refused.value)
    assert "there" in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("url", [f"postgresql://me:{_SECRET}@[host/db", f"pasword={_SECRET}", f"{_SECRET} x"])
def test_an_address_that_makes_no_sense_is_not_repeated(clock: Clock, ids: Ids, url: str) -> None:
    with pytest.raises(CatalogAddressError) as refused:
        open_catalog(url, clock, ids)
    assert _SECRET not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


def test_a_password_is_in_no_repr(catalog_url: str, ids: Ids) -> None:
    clock = ManualClock()
    with open_catalog(f"{catalog_url} password={_SECRET}", clock, ids) as catalog:
        assert _SECRET not in repr(catalog)
        assert _SECRET not in repr(catalog._database)
        assert _SECRET not in repr(catalog._database._pool)


def test_timeouts_are_set_on_every_connection(catalog_url: str) -> None:
    limits = DatabaseLimits(statement_seconds=7)
    url = f"{catalog_url} options='-c work_mem=5MB -c default_transaction_isolation=serializable'"
    with psycopg.connect(connection_string(url, limits)) as connection:
        for name, value in (
            ("statement_timeout", "7s"),
            ("lock_timeout", "20s"),
            ("idle_in_transaction_session_timeout", "1min"),
            ("work_mem", "5MB"),
            ("default_transaction_isolation", "read committed"),
        ):
            assert connection.execute("SELECT current_setting(%s)", (name,)).fetchone() == (value,)


def test_operations_are_counted(catalog_url: str, clock: Clock, ids: Ids) -> None:
    with open_catalog(catalog_url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic()
        scene.commit(topic, run_of(1))
        counts = catalog.operation_counts()
        assert counts["commits.commit"].calls == 1
        assert counts["commits.commit"].statements > 5
        assert counts["topics.create"].failures == 0


def test_what_postgresql_cannot_keep_is_the_callers_mistake(database: Database) -> None:
    """A NUL in text or in JSON, a value too long for an index: refused once, and without the address."""
    database.transact(
        "test",
        lambda transaction: transaction.send(_query(b"CREATE TABLE named (name text UNIQUE, more jsonb)")),
    )
    insert = _query(b"INSERT INTO named VALUES (%(name)s, %(more)s)")
    long = "".join(chr(0x4E00 + (number * 7919) % 20_000) for number in range(6000))
    for name, more in (("a\0b", {}), ("a", {"a": "a\0b"}), (long, {})):
        params = {"name": name, "more": Jsonb(more)}
        with pytest.raises(UnstorableValueError) as refused:
            database.transact("names", lambda each, params=params: each.rows(insert, params))  # type: ignore[misc]  # bound here
        assert database.address not in str(refused.value)
    assert database.counts.snapshot()["names"].retries == 0


def test_a_link_that_is_dead_is_found_out_by_who_only_listens() -> None:
    """Within a minute, on every connection to the catalog; an address may ask for something else."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"postgresql://somebody@127.0.0.1:{listener.getsockname()[1]}/catalog"
        assert _seconds_to_find_out(connection_string(url, DatabaseLimits())) <= 60
        patient = connection_string(f"{url}?keepalives_interval=100", DatabaseLimits())
        assert _seconds_to_find_out(patient) > 60


def _seconds_to_find_out(conninfo: str) -> int:
    """How long a silent connection whose other end is gone stays open, by what its socket is set to."""
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
