"""A frozen agent does not keep its locks, at whichever point its commit stopped."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.database.limits import DatabaseLimits
from catalog.database.pool import Reserve, Transaction
from catalog.database.sql_files import Query
from catalog.model import PartitionId
from catalog.open import Catalog, open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from tests.catalog.scene import Scene, advance_log_start, run_of
from tests.fixtures.freezing_proxy import FreezingProxy
from tests.fixtures.postgres_node import PostgresNode, running_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from uuid import UUID

    from catalog.model import SectionResult, Topic

pytestmark = pytest.mark.integration
_PARTITIONS = 4000
_IDLE = "terminating connection due to idle-in-transaction timeout"
_ENDED_BY_WAITER = "terminating connection due to administrator command"
_LOCKS = "SELECT count(*) FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND wait_event_type = 'Client'"

_SLEEPING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'"


@pytest.fixture(scope="module")
def server(
    postgres_template: PostgresNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresNode]:
    """Provide a server on TCP; a Unix socket would have other buffers and no keep-alives."""
    with running_copy(postgres_template, tmp_path_factory.mktemp("frozen")) as node:
        yield node


@contextmanager
def _opened(url: str) -> Iterator[Catalog]:
    clock = SystemClock()
    with open_catalog(url, clock, SystemIds(clock)) as catalog:
        yield catalog


def _agent(catalog: Catalog) -> Scene:
    return Scene.set_up(catalog, SystemIds(SystemClock()))


def _topic(agent: Scene, partitions: int = 1) -> Topic:
    return agent.topic(f"t-{agent.ids.new_uuid()}", partitions)


def _base_offset(result: SectionResult) -> int | None:
    return result.runs[0].base_offset


@contextmanager
def _stopped(server: PostgresNode, module: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Start a process that stops itself, and wait until it has done so."""
    command = [sys.executable, "-m", f"tests.crash.{module}", server.url, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        status = Path(f"/proc/{process.pid}/stat")
        server.wait_until(lambda: status.read_text().rpartition(")")[2].split()[0] == "T")
        yield process
    finally:
        process.kill()
        process.communicate()


def _stopped_committer(
    server: PostgresNode, agent: Scene, topic: Topic
) -> AbstractContextManager[subprocess.Popen[str]]:
    return _stopped(server, "frozen_committer", agent.session_id, topic.topic_id)


def _last_line(process: subprocess.Popen[str]) -> str:
    """Wait for the end of the process; return its result, which follows what it logged."""
    return process.communicate(timeout=120)[0].splitlines()[-1]


def test_an_agent_that_is_stopped_between_statements_loses_its_locks(server: PostgresNode) -> None:
    """It is ended by the server; when it continues, its commit follows the other one."""
    with _opened(server.url) as catalog:
        frozen, other = _agent(catalog), _agent(catalog)
        topic = _topic(frozen)
        ended = server.log().count(_IDLE)
        with _stopped_committer(server, frozen, topic) as process:
            assert _base_offset(other.commit(topic, run_of(1))) == 0
            assert server.log().count(_IDLE) == ended + 1
            process.send_signal(signal.SIGCONT)
            assert _last_line(process) == "1"


def test_an_agent_that_was_fenced_while_it_was_stopped_commits_nothing(server: PostgresNode) -> None:
    """The fencing waits until the commit has lost its locks, and no longer."""
    with _opened(server.url) as catalog:
        frozen = _agent(catalog)
        topic = _topic(frozen)
        with _stopped_committer(server, frozen, topic) as process:
            catalog.sessions.fence(frozen.session_id)
            process.send_signal(signal.SIGCONT)
            assert _last_line(process) == "SessionFencedError"
        assert frozen.extents(topic) == []


@pytest.mark.parametrize(
    ("step", "end"), [("_check_inputs", _IDLE), ("_update_partitions", _ENDED_BY_WAITER)]
)
def test_a_driver_that_freezes_while_it_publishes_loses_its_locks(
    server: PostgresNode, step: str, end: str
) -> None:
    """The server ends it between round trips, and a waiting agent while it sends its statements."""
    with _opened(server.url) as catalog:
        agent = _agent(catalog)
        topic = _topic(agent)
        for _ in range(2):
            agent.commit(topic, run_of(5))
        agent.submitted(agent.extents(topic))
        ended = server.log().count(end)
        with _stopped(server, "frozen_publisher", step) as process:
            assert _base_offset(agent.commit(topic, run_of(1))) == 10
            assert server.log().count(end) == ended + 1
            process.send_signal(signal.SIGCONT)
            assert _last_line(process) == "completed"
        assert [each.base_offset for each in agent.extents(topic)] == [0, 10]


def test_a_driver_that_computes_while_it_publishes_keeps_its_locks(
    server: PostgresNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only silence counts. Here every step takes longer than that in all, and shows that it goes on."""
    clock = SystemClock()
    limits = DatabaseLimits(silent_client_seconds=2.0)
    with open_catalog(server.url, clock, SystemIds(clock), limits=limits) as catalog:
        agent = _agent(catalog)
        topic = _topic(agent, partitions=20)
        for partition in range(20):
            agent.commit(topic, run_of(5), partition=partition)
        extents = [each for partition in range(20) for each in agent.extents(topic, partition)]
        job = agent.claimed(extents)
        keep_alive = Transaction.keep_alive

        steps = 0

        def compute(transaction: Transaction) -> None:
            nonlocal steps
            steps += 1
            clock.sleep(0.2)
            keep_alive(transaction)

        monkeypatch.setattr(Transaction, "keep_alive", compute)
        catalog.jobs.complete(agent.result(job))
        assert catalog.operation_counts()["jobs.complete"].retries == 0
        assert steps * 0.2 > limits.silent_client_seconds


def test_a_heartbeat_does_not_wait_for_a_commit(server: PostgresNode) -> None:
    with _opened(server.url) as catalog:
        frozen = _agent(catalog)
        topic = _topic(frozen)
        with _stopped_committer(server, frozen, topic):
            catalog.sessions.heartbeat(frozen.session_id)
            assert server.execute(_LOCKS) == [(1,)]  # the commit still has its locks
        assert catalog.operation_counts()["sessions.heartbeat"].retries == 0


@pytest.mark.parametrize("waiter", ["commit", "log start"])
def test_an_agent_that_freezes_within_a_large_statement_loses_its_locks(
    server: PostgresNode, waiter: str
) -> None:
    """The server waits for the rest without a limit, so the agent that needs the locks ends it."""
    with _frozen_behind_proxy(server) as (frozen, other, proxy):
        topic = _topic(other, _PARTITIONS)
        keys = [PartitionId(topic.topic_id, number) for number in range(_PARTITIONS)]
        file = frozen.file({key: [run_of(1)] for key in keys})
        results: list[tuple[SectionResult, ...]] = []
        proxy.freeze_requests_after(500_000)
        with _running(lambda: results.append(frozen.catalog.commits.commit(file))):
            server.wait_until(lambda: proxy.is_frozen.is_set() and server.execute(_LOCKS) == [(1,)])
            if waiter == "commit":
                assert _base_offset(other.commit(topic, run_of(1), partition=_PARTITIONS - 1)) == 0
            else:  # as the end of a transaction, retention and a publication
                assert advance_log_start(other.catalog.retention, topic.topic_id, _PARTITIONS - 1, 0) == 0
            proxy.thaw()
        expected = [0] * (_PARTITIONS - 1) + [int(waiter == "commit")]
        assert [_base_offset(result) for result in results[0]] == expected


def test_an_agent_that_does_not_read_its_results_loses_its_locks(server: PostgresNode) -> None:
    """The results exceed all buffers, so the server waits for its client, without a limit."""
    with _frozen_behind_proxy(server) as (frozen, other, proxy):
        topic = _topic(other)

        def lock_and_read(transaction: Transaction) -> None:
            transaction.rows(Query("lock", "", b"SELECT 1 FROM partitions FOR UPDATE"))
            transaction.rows(Query("many", "", b"SELECT repeat('x', 1000) FROM generate_series(1, 30000)"))

        proxy.freeze_responses_after(1_000_000)
        database = frozen.catalog._database
        with _running(lambda: database.transact("many", lock_and_read, reserve=Reserve.COMMITS)):
            writing = f"{_LOCKS} AND wait_event = 'ClientWrite'"
            server.wait_until(lambda: proxy.is_frozen.is_set() and server.execute(writing) == [(1,)])
            assert _base_offset(other.commit(topic, run_of(1))) == 0
            proxy.thaw()


@contextmanager
def _frozen_behind_proxy(server: PostgresNode) -> Iterator[tuple[Scene, Scene, FreezingProxy]]:
    """Provide an agent that will freeze, another one, and the proxy; a waiting agent must end the first."""
    ended = server.log().count(_ENDED_BY_WAITER)
    with (
        _opened(server.url) as catalog,
        FreezingProxy(server.port) as proxy,
        _opened(server.url.replace(str(server.port), str(proxy.port))) as frozen,
    ):
        # Opens the connection, so that only the transaction's own bytes count.
        frozen._database.transact("open", lambda each: each.wait(), reserve=Reserve.COMMITS)
        yield _agent(frozen), _agent(catalog), proxy
    assert server.log().count(_ENDED_BY_WAITER) == ended + 1


@contextmanager
def _running(work: Callable[[], object]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


def test_an_agent_that_waits_for_its_disk_or_its_standby_is_not_ended(server: PostgresNode) -> None:
    """Only the wait for a client counts, not slow work."""
    with _opened(server.url) as catalog:
        slow, other = _agent(catalog), _agent(catalog)
        topic = _topic(slow)
        ended = server.log().count("terminating connection")

        def lock_and_work(transaction: Transaction) -> None:
            transaction.send(Query("lock", "", b"SELECT 1 FROM partitions FOR UPDATE"))
            transaction.rows(Query("work", "", b"SELECT pg_sleep(3)"))

        with _running(lambda: catalog._database.transact("slow", lock_and_work)):
            server.wait_until(lambda: server.execute(f"{_SLEEPING}") == [(1,)])
            assert _base_offset(other.commit(topic, run_of(1))) == 0
        assert catalog.operation_counts()["commits.commit"].retries > 0
        assert server.log().count("terminating connection") == ended


def test_a_heartbeat_that_freezes_before_its_commit_does_not_hold_up_fencing(server: PostgresNode) -> None:
    """Fencing skips locked rows, so no process waits for these locks; it ends their transaction itself."""
    clock = SystemClock()
    limits = DatabaseLimits(frozen_client_seconds=0.5)
    with open_catalog(server.url, clock, SystemIds(clock), limits=limits) as catalog:
        frozen, dead = _agent(catalog), _agent(catalog)
        connection = catalog._database.connect()
        with suppress(psycopg.OperationalError), closing(connection), connection.pipeline():
            for statement in (
                b"BEGIN",
                b"SELECT FROM reachability FOR UPDATE",
                b"SELECT FROM sessions WHERE session_id = %s FOR UPDATE",
            ):
                connection.execute(statement, [frozen.session_id] if b"%s" in statement else None)
            server.wait_until(lambda: server.execute(_LOCKS) == [(1,)])
            fenced: set[UUID] = set()

            def look() -> bool:
                fenced.update(catalog.sessions.fence_silent(0, 100))
                return fenced >= {frozen.session_id, dead.session_id}

            server.wait_until(look)


def test_the_servers_own_limits_on_dead_clients_are_set(server: PostgresNode) -> None:
    """They close the connections of a machine that lost its power."""
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count", "tcp_user_timeout")
    columns = ", ".join(f"current_setting('{name}') AS {name}" for name in names)
    query = Query("settings", "limits", f"SELECT {columns}".encode())
    with _opened(server.url) as catalog:
        idle, interval, count, user_timeout = catalog._database.read("settings", query)[0]
    assert int(idle) + int(interval) * int(count) <= 30
    assert int(user_timeout) == 25_000  # shown in milliseconds
