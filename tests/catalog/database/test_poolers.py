"""A real PgBouncer in transaction mode before the catalog: everything works, or is refused by name."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from catalog.database.connector import Connector
from catalog.database.limits import DatabaseLimits
from catalog.database.pool import Database
from catalog.database.sql_files import Query, load_migrations
from catalog.errors import CatalogAddressError, CatalogUnavailableError
from catalog.model import PartitionId
from catalog.open import migrate_catalog, open_catalog, plan_migration
from core.clock import SystemClock
from tests.catalog.checks import InvariantChecker
from tests.catalog.database.wire import WireProxy
from tests.catalog.scene import Scene, run_of
from tests.fixtures.pgbouncer import pgbouncer
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from catalog.database.pool import Transaction
    from core.clock import Clock
    from core.ids import Ids

_PARAMETERS = Query(
    "parameters",
    "the parameters that differ from PostgreSQL's",
    b"""
    SELECT current_setting('search_path') AS search_path, current_setting('statement_timeout') AS statement,
        current_setting('lock_timeout') AS lock, current_setting('transaction_isolation') AS isolation,
        current_setting('idle_in_transaction_session_timeout') AS idle, pg_backend_pid() AS pid
""",
)
_LIMITS = DatabaseLimits(
    statement_seconds=77, lock_seconds=66, silent_client_seconds=100, allow_unsafe_commits=True
)
_WANTED = ("siltstone", "77s", "45s", "read committed", "100s")


@pytest.fixture
def clock() -> Clock:
    return SystemClock()


@pytest.fixture(params=["refused", "ignored"])
def pooled_url(catalog_url: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """Provide the catalog's URL through a pooler that refuses or ignores parameters at start-up."""
    ignored = "options" if request.param == "ignored" else ""
    with pgbouncer(catalog_url, tmp_path, ignore_startup_parameters=ignored) as url:
        yield url


def test_every_transaction_has_its_parameters(pooled_url: str, clock: Clock, ids: Ids) -> None:
    """Another client of the pooler, which gets the same server connections, keeps its own."""
    database = Database(pooled_url, clock, ids, _LIMITS)
    with psycopg.connect(pooled_url, autocommit=True) as other, ThreadPoolExecutor(4) as threads:

        def read(number: int) -> tuple[str, ...]:
            if number % 2:
                (row,) = database.read("test", _PARAMETERS)
            else:
                (row,) = database.transact("test", lambda each: each.rows(_PARAMETERS))
            return tuple(row[:5])

        assert set(threads.map(read, range(40))) == {_WANTED}
        for _ in range(4):
            assert other.execute("SELECT current_setting('search_path')").fetchone() == ('"$user", public',)
    assert database.is_pooled
    database.close()


def test_a_catalog_works_through_a_pooler(pooled_url: str, clock: Clock, ids: Ids) -> None:
    """Six clients share two server connections; statements repeat often enough to be prepared."""
    with open_catalog(pooled_url, clock, ids, limits=PATIENT) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic()

        def commit(number: int) -> int | None:
            catalog.sessions.heartbeat(scene.session_id)
            return scene.commit(topic, run_of(2, producer=(number, 0, 0))).runs[0].base_offset

        with ThreadPoolExecutor(6) as threads:
            offsets = list(threads.map(commit, range(60)))
        assert sorted(offset for offset in offsets if offset is not None) == list(range(0, 120, 2))
        job = scene.claimed(scene.extents(topic))
        catalog.jobs.complete(scene.result(job))
        assert InvariantChecker(catalog).violations() == []


def test_a_transaction_through_a_pooler_can_exceed_its_timeouts(
    pooled_url: str, clock: Clock, ids: Ids
) -> None:
    database = Database(pooled_url, clock, ids, DatabaseLimits(statement_seconds=1))
    with pytest.raises(CatalogUnavailableError, match="statement timeout"):
        database.read("slow", Query("slow", "sleeps", b"SELECT pg_sleep(600)"))
    database.close()


def test_failed_transactions_leave_nothing_behind(pooled_url: str, clock: Clock, ids: Ids) -> None:
    database = Database(pooled_url, clock, ids)

    def fail(transaction: Transaction) -> None:
        transaction.rows(_PARAMETERS)
        raise ValueError("changed my mind")

    for _ in range(5):
        with pytest.raises(ValueError, match="changed my mind"):
            database.transact("test", fail)
    assert database.transact("test", lambda each: each.rows(_PARAMETERS))[0].search_path == "siltstone"
    database.close()


def test_commits_of_others_are_polled_unless_there_is_a_direct_url(
    pooled_url: str, catalog_url: str, clock: Clock, ids: Ids
) -> None:
    direct = "postgresql://{user}@/{dbname}?host={host}".format(**conninfo_to_dict(catalog_url))
    for listen_url in (None, direct):
        with open_catalog(pooled_url, clock, ids, limits=PATIENT, listen_url=listen_url) as catalog:
            scene = Scene.set_up(catalog, ids)
            topic = scene.topic("polled" if listen_url is None else "notified")
            watcher = catalog.watcher()
            assert watcher.wait(0.1) is None
            changed = PartitionId(topic.topic_id, 0)
            scene.commit(topic, run_of(1))
            catalog.commits.announce([changed], origin=ids.new_uuid())
            seen = watcher.wait(0.1)
            while seen == frozenset():
                seen = watcher.wait(0.1)
            assert seen == (None if listen_url is None else frozenset({changed}))
            watcher.close()


def test_a_proxy_that_refuses_parameters_and_pins_connections_works(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    """RDS Proxy may do so. It is recognized by its refusal alone, and refuses no later connection."""
    with WireProxy(catalog_url, tmp_path, refuses_options=True) as proxy:
        database = Database(proxy.url, clock, ids, _LIMITS)
        for _ in range(3):
            row = database.transact("test", lambda each: each.rows(_PARAMETERS))[0]
            assert row[:5] == _WANTED
            proxy.break_connections()
        assert (proxy.refused, database.is_pooled, database.connect_for_notifications()) == (1, True, None)
        database.close()
        with open_catalog(proxy.url, clock, ids, limits=PATIENT) as catalog:
            scene = Scene.set_up(catalog, ids)
            topic = scene.topic()
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(lambda _: scene.commit(topic, run_of(2)), range(8)))
            catalog.jobs.complete(scene.result(scene.claimed(scene.extents(topic))))
            assert InvariantChecker(catalog).violations() == []


def test_migrations_need_a_direct_connection(
    new_catalog_url: Callable[..., str], tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    """Also if nothing is missing, so that a wrong address shows before an upgrade."""
    direct = new_catalog_url(empty=True)
    with pgbouncer(direct, tmp_path) as url:
        for count in (len(load_migrations()), 0):
            assert len(plan_migration(url, clock, ids).missing) == count
            with pytest.raises(CatalogAddressError, match="migrations need PostgreSQL itself"):
                migrate_catalog(url, clock, ids)
            migrate_catalog(direct, clock, ids)


def test_a_pooler_in_statement_mode_is_refused(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids
) -> None:
    with (
        pgbouncer(catalog_url, tmp_path, pool_mode="statement") as url,
        pytest.raises(CatalogAddressError, match=r"refuses transactions.*set its pool_mode to transaction"),
    ):
        open_catalog(url, clock, ids)


def test_a_direct_connection_has_its_parameters_and_prepares_statements(catalog_url: str) -> None:
    connector = Connector(catalog_url, _LIMITS)
    with connector.connect() as connection:
        row = connection.execute(_PARAMETERS.sql).fetchone()
        assert row is not None
        assert row[:5] == (*_WANTED[:1], "77s", "66s", _WANTED[3], "100s")
        assert connection.prepare_threshold is not None
        assert connection.begin == (b"BEGIN",)
    assert not connector.is_pooled
