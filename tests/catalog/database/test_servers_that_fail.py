"""Connections to a real primary and its standby: which server they choose, and what they survive."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.database.migrations import read_version
from catalog.database.pool import Database
from catalog.database.sql_files import Query
from catalog.errors import CatalogAddressError, CatalogUnavailableError
from core.clock import SystemClock
from core.ids import SystemIds
from tests.fixtures.postgres_pair import PostgresPair

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.fixtures.postgres_node import PostgresNode

_PORT = Query("port", "the server's port", b"SELECT current_setting('port')::int AS port")


@pytest.fixture(scope="module")
def pair(postgres_template: PostgresNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresPair]:
    with PostgresPair(tmp_path_factory.mktemp("pair"), postgres_template) as running:
        yield running


@pytest.fixture
def connect_to() -> Iterator[Callable[..., Database]]:
    opened: list[Database] = []
    clock = SystemClock()

    def connect(url: str, limits: DatabaseLimits | None = None) -> Database:
        opened.append(Database(url, clock, SystemIds(clock), limits))
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def _port(database: Database) -> int:
    return int(database.read("port", _PORT)[0].port)


def _retries(database: Database) -> int:
    return database.counts.snapshot()["port"].retries


def test_connections_lead_to_the_primary_although_the_standby_comes_first(
    pair: PostgresPair, connect_to: Callable[..., Database]
) -> None:
    assert _port(connect_to(pair.url_with_standby_first)) == pair.primary.port


def test_a_standby_alone_is_no_catalog(pair: PostgresPair, connect_to: Callable[..., Database]) -> None:
    with pytest.raises(CatalogUnavailableError, match="session is read-only"):
        _port(connect_to(pair.standby.url, DatabaseLimits(retry_seconds=0)))
    with pytest.raises(CatalogUnavailableError, match="is the primary, and has ended its recovery"):
        read_version(connect_to(pair.standby.url, DatabaseLimits(retry_seconds=0)))


@pytest.mark.parametrize("wanted", ["any", "standby", "read-only", "prefer-standby"])
def test_an_address_that_accepts_a_standby_is_rejected(wanted: str) -> None:
    with pytest.raises(CatalogAddressError, match=f"target_session_attrs={wanted}"):
        connection_string(f"postgresql://a,b/x?target_session_attrs={wanted}", DatabaseLimits())


@pytest.mark.parametrize("wanted", ["primary", "read-write"])
def test_an_address_may_ask_for_the_primary(wanted: str) -> None:
    address = connection_string(f"postgresql://a,b/x?target_session_attrs={wanted}", DatabaseLimits())
    assert "target_session_attrs=read-write" in address


def test_a_frozen_host_leaves_time_for_the_others() -> None:
    """With one host, the whole limit is its own."""
    for hosts, seconds in (("a", 10), ("a,b", 3), ("a,b,c", 2)):
        address = connection_string(f"postgresql://{hosts}/x", DatabaseLimits(connect_seconds=10))
        assert f"connect_timeout={seconds} " in f"{address} "


def test_the_first_call_after_a_restart_succeeds_at_once(
    pair: PostgresPair, connect_to: Callable[..., Database]
) -> None:
    database = connect_to(pair.url)
    for mode in ("fast", "immediate"):
        assert _port(database) == pair.primary.port
        pair.primary.restart(mode)
        assert _port(database) == pair.primary.port
    assert _retries(database) == 0


def test_errors_in_an_outage_have_the_reason_of_that_moment(
    pair: PostgresPair, connect_to: Callable[..., Database]
) -> None:
    database = connect_to(pair.primary.url, DatabaseLimits(retry_seconds=0))
    _port(database)
    pair.primary.stop("immediate")
    for _ in range(3):
        with pytest.raises(CatalogUnavailableError, match="Connection refused"):
            _port(database)
    pair.primary.start()
    assert _port(database) == pair.primary.port


def test_the_error_names_the_reason_of_each_host(
    pair: PostgresPair, connect_to: Callable[..., Database]
) -> None:
    database = connect_to(pair.url, DatabaseLimits(retry_seconds=0))
    pair.primary.stop()
    with pytest.raises(CatalogUnavailableError) as failure:
        _port(database)
    pair.primary.start()
    first, second = re.findall(r"port: '(\d+)': ([^;]+)", failure.value.message)
    assert first == (str(pair.primary.port), "Connection refused")
    assert second == (str(pair.standby.port), "session is read-only")


def test_a_call_waits_for_a_server_that_restarts(
    pair: PostgresPair, connect_to: Callable[..., Database]
) -> None:
    """The server starts while the call retries; the number of attempts does not matter."""
    database = connect_to(pair.primary.url, DatabaseLimits(retry_seconds=600))
    pair.primary.stop("immediate")
    pauses = 0

    def start_after_many_attempts(seconds: float) -> None:
        nonlocal pauses
        pauses += 1
        assert seconds <= 1
        if pauses == 20:
            pair.primary.start()

    database._clock.sleep = start_after_many_attempts  # type: ignore[method-assign]  # this object only
    assert _port(database) == pair.primary.port
    assert _retries(database) == pauses == 20


def test_a_frozen_server_does_not_block_a_call_for_ever(
    pair: PostgresPair, connect_to: Callable[..., Database]
) -> None:
    database = connect_to(
        pair.primary.url, DatabaseLimits(response_seconds=1, connect_seconds=2, retry_seconds=0)
    )
    _port(database)
    pair.primary.freeze()
    try:
        with pytest.raises(CatalogUnavailableError, match="did not respond to port"):
            _port(database)
    finally:
        pair.primary.thaw()
    assert _port(database) == pair.primary.port


def test_connections_follow_a_failover(
    postgres_pair: PostgresPair, connect_to: Callable[..., Database]
) -> None:
    pair = postgres_pair
    database = connect_to(pair.url)
    assert _port(database) == pair.primary.port
    pair.primary.kill()
    pair.standby.promote()
    assert _port(database) == pair.standby.port
    assert _retries(database) == 0
