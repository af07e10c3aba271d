"""The private PostgreSQL: shared, stopped by the last, and never left behind or in the way."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import psycopg
import pytest

from catalog.database import embedded_server as embedded
from catalog.database.embedded_server import EmbeddedPostgres
from catalog.database.postgres_host import programs
from catalog.errors import EmbeddedPostgresError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from catalog.database.postgres_host import Account


def _servers(directory: Path) -> list[psutil.Process]:
    """Processes that work for `directory`: the server and its keeper."""
    found = []
    for process in psutil.process_iter():
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(directory) in command and ("postgres" in command or "keeper" in command):
            found.append(process)
    return found


def _postmaster(directory: Path) -> psutil.Process:
    return psutil.Process(int((directory / "pgdata" / "postmaster.pid").read_text().splitlines()[0]))


def _wait_until_gone(directory: Path) -> None:
    deadline = time.monotonic() + 240
    while _servers(directory):
        assert time.monotonic() < deadline, _servers(directory)
        time.sleep(0.02)


def _ask(url: str, question: str) -> object:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(question.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """A directory of which no process is left after the test."""
    directory = tmp_path / "catalog"
    yield directory
    _wait_until_gone(directory)


def _user(directory: Path) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.catalog.database.embedded_user", str(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    answer = child.stdout.readline()
    assert answer == "(1,)\n"
    return child


def _kill(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.communicate()


def test_it_is_durable_and_listens_to_nobody_else(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        for name, value in (
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("full_page_writes", "on"),
            ("listen_addresses", ""),
        ):
            assert _ask(server.url, f"SHOW {name}") == value
        assert int(str(_ask(server.url, "SHOW server_version_num"))) >= 180000
    with pytest.raises(EmbeddedPostgresError, match="was not started"):
        _ = server.url
    server.close()  # leaving twice is leaving once


def test_the_last_to_leave_stops_it(directory: Path) -> None:
    with EmbeddedPostgres(directory) as first:
        child = _user(directory)
        with EmbeddedPostgres(directory) as second:
            assert second.url == first.url
            pid = _ask(first.url, "SELECT pg_postmaster_start_time()::text")
    with EmbeddedPostgres(directory) as third:
        assert _ask(third.url, "SELECT pg_postmaster_start_time()::text") == pid, "the child still uses it"
    child.communicate("", timeout=240)
    assert child.returncode == 0
    _wait_until_gone(directory)
    assert not (directory / "pgdata" / "postmaster.pid").exists()


def test_data_outlives_the_server(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        _ask(server.url, "CREATE TABLE kept AS SELECT 7 AS n")
    with EmbeddedPostgres(directory) as server:
        assert _ask(server.url, "SELECT n FROM kept") == 7


def test_a_killed_user_keeps_nobody_and_leaves_nothing(directory: Path) -> None:
    """The keeper stops the server of a process that could not, and the next one starts it again."""
    child = _user(directory)
    _kill(child)
    _wait_until_gone(directory)
    with EmbeddedPostgres(directory) as server:
        assert _ask(server.url, "SELECT 1") == 1


# Waits, before it starts the server, for a word in a pipe.
_WAITING_PG_CTL = """#!/bin/sh
case "$1" in start) echo > {place}/begun; read go < {place}/go;; esac
exec {real}/pg_ctl "$@"
"""
_STARTING = """
import sys
from pathlib import Path
from catalog.database import embedded_server as embedded

embedded.programs = lambda: Path(sys.argv[2])
embedded.EmbeddedPostgres(Path(sys.argv[1])).start()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_user_that_is_gone_before_the_server_is_there_leaves_none(
    directory: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """It comes up nevertheless, and is stopped then."""
    place = tmp_path / "programs"
    place.mkdir()
    (place / "initdb").symlink_to(programs() / "initdb")
    (place / "pg_ctl").write_text(_WAITING_PG_CTL.format(place=place, real=programs()))
    (place / "pg_ctl").chmod(0o755)
    for pipe in (place / "begun", place / "go"):
        os.mkfifo(pipe)
        pipe.chmod(0o666)
    user = subprocess.Popen(
        [sys.executable, "-c", _STARTING, str(directory), str(place)],
        cwd=Path(__file__).parents[3],
        stderr=subprocess.DEVNULL,
    )
    (place / "begun").read_text()
    user.send_signal(number)
    assert user.wait() != 0
    (place / "go").write_text("go\n")
    deadline = time.monotonic() + 240
    while "database system is shut down" not in (directory / "server.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_killed_user_is_not_waited_for(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        child = _user(directory)
        _kill(child)
        assert _ask(server.url, "SELECT 1") == 1
    _wait_until_gone(directory)


def test_a_killed_server_is_started_again(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        _ask(server.url, "CREATE TABLE kept AS SELECT 7 AS n")
        _postmaster(directory).kill()
        with EmbeddedPostgres(directory) as other:
            assert _ask(other.url, "SELECT n FROM kept") == 7


@pytest.fixture
def waking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[psutil.Process], None]]:
    """Lets a process stand still until a server was started in vain; only such starts are tried again."""
    asleep: list[psutil.Process] = []

    def wake() -> None:
        for process in asleep:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def wake_after_a_start(process: psutil.Process) -> None:
        start = EmbeddedPostgres._start

        def start_and_wake(
            self: EmbeddedPostgres, account: Account, command: Sequence[str]
        ) -> subprocess.CompletedProcess[str]:
            done = start(self, account, command)
            wake()
            return done

        asleep.append(process)
        process.suspend()
        monkeypatch.setattr(EmbeddedPostgres, "_start", start_and_wake)
        monkeypatch.setattr(embedded, "_START_RETRIES", 0)

    yield wake_after_a_start
    wake()


def test_processes_of_a_killed_server_are_waited_for(
    directory: Path, waking: Callable[[psutil.Process], None]
) -> None:
    """They see that it is dead when they get their turn, and on a busy machine that takes a while."""
    with EmbeddedPostgres(directory):
        postmaster = _postmaster(directory)
        waking(next(each for each in postmaster.children() if "checkpointer" in " ".join(each.cmdline())))
        postmaster.kill()
        with EmbeddedPostgres(directory) as other:
            assert _ask(other.url, "SELECT 1") == 1


def test_a_server_that_is_slow_to_answer_is_no_failure(
    directory: Path, waking: Callable[[psutil.Process], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever does not hear of it in time tries to start one, which cannot be, and finds it then."""
    monkeypatch.setattr(embedded, "_CONNECT_SECONDS", 2)
    with EmbeddedPostgres(directory) as server:
        postmaster = _postmaster(directory)
        waking(postmaster)
        with EmbeddedPostgres(directory) as other:
            assert other.url == server.url
        assert _postmaster(directory) == postmaster


def test_a_process_that_has_a_dead_servers_id_is_not_in_the_way(directory: Path) -> None:
    """The machine went down with the server, and its process id is another's of the same account now."""
    with EmbeddedPostgres(directory) as server:
        _ask(server.url, "CREATE TABLE kept AS SELECT 7 AS n")
        pid_file = directory / "pgdata" / "postmaster.pid"
        account = pid_file.stat().st_uid
        pid = pid_file.read_text().splitlines()[0]
        postmaster = psutil.Process(int(pid))
        workers = postmaster.children()
        postmaster.kill()
        assert not psutil.wait_procs([postmaster, *workers], timeout=240)[1]
        with subprocess.Popen(["sleep", "600"], user=account) as stranger:
            (socket_lock,) = Path(pid_file.read_text().splitlines()[4]).glob(".s.PGSQL.*.lock")
            for file in (pid_file, socket_lock):
                assert file.read_text().startswith(f"{pid}\n")
                file.write_text(file.read_text().replace(pid, str(stranger.pid), 1))
            try:
                with EmbeddedPostgres(directory) as other:
                    assert _ask(other.url, "SELECT n FROM kept") == 7
            finally:
                stranger.kill()


def test_many_may_start_it_at_once(directory: Path) -> None:
    users = [EmbeddedPostgres(directory) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        urls = set(pool.map(EmbeddedPostgres.start, users))
        assert len(urls) == 1
        list(pool.map(EmbeddedPostgres.close, users))


def test_a_deep_directory_has_its_socket_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["deep" * 10] * 4, "it's here") / "catalog"
    with EmbeddedPostgres(deep) as server:
        assert _ask(server.url, "SELECT 1") == 1
        with EmbeddedPostgres(deep) as other:
            assert other.url == server.url
    _wait_until_gone(deep)


def test_what_stands_in_the_way_is_said(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_START_RETRIES", 0)
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        EmbeddedPostgres(directory, settings={"no_such_setting": "1"}).start()
    with EmbeddedPostgres(directory) as server:
        assert _ask(server.url, "SELECT 1") == 1
