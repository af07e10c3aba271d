"""Embedded PostgreSQL: shared by its users, and stopped after the last of them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import psutil
import psycopg
import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from catalog.database.embedded import server as embedded
from catalog.database.embedded.host import has_server_ended, programs
from catalog.database.embedded.server import EmbeddedPostgres
from catalog.errors import EmbeddedPostgresError
from core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from catalog.database.embedded.host import Account


def _servers(directory: Path) -> list[psutil.Process]:
    """Return the processes of the server in `directory` and of its keeper."""
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


def _query(url: str, sql: str) -> object:
    with psycopg.connect(url) as connection:
        cursor = connection.execute(sql.encode())
        row = cursor.fetchone() if cursor.description else None
    return row[0] if row else None


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """Return a data directory; after the test, wait until its processes have ended."""
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
    line = child.stdout.readline()
    assert line == "(1,)\n"
    return child


def _kill(child: subprocess.Popen[Any]) -> None:
    child.kill()
    child.communicate()


def test_the_server_is_durable_and_listens_on_no_network_address(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        for name, value in (
            ("fsync", "on"),
            ("synchronous_commit", "on"),
            ("full_page_writes", "on"),
            ("listen_addresses", ""),
        ):
            assert _query(server.url, f"SHOW {name}") == value
        assert int(str(_query(server.url, "SHOW server_version_num"))) >= 180000
    with pytest.raises(EmbeddedPostgresError, match="was not started"):
        _ = server.url
    server.close()  # close is idempotent


def test_the_last_user_stops_the_server(directory: Path) -> None:
    with EmbeddedPostgres(directory) as first:
        child = _user(directory)
        with EmbeddedPostgres(directory) as second:
            assert second.url == first.url
            started = _query(first.url, "SELECT pg_postmaster_start_time()::text")
    with EmbeddedPostgres(directory) as third:
        assert _query(third.url, "SELECT pg_postmaster_start_time()::text") == started, (
            "the child still uses it"
        )
    child.communicate("", timeout=240)
    assert child.returncode == 0
    _wait_until_gone(directory)
    assert not (directory / "pgdata" / "postmaster.pid").exists()


def test_data_survives_a_restart(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        _query(server.url, "CREATE TABLE saved AS SELECT 7 AS n")
    with EmbeddedPostgres(directory) as server:
        assert _query(server.url, "SELECT n FROM saved") == 7


def test_the_keeper_stops_the_server_of_a_killed_user(directory: Path) -> None:
    """The next user starts the server again."""
    child = _user(directory)
    _kill(child)
    _wait_until_gone(directory)
    with EmbeddedPostgres(directory) as server:
        assert _query(server.url, "SELECT 1") == 1


# Waits for a line in a pipe before it creates or starts the server.
_WAITING_PROGRAM = """#!/bin/sh
case "$1" in start|-D) echo > {fake}/begun; read go < {fake}/go;; esac
exec {real}/{name} "$@"
"""
_STARTING = """
import sys
from pathlib import Path
from catalog.database.embedded import server as embedded

embedded.programs = lambda: Path(sys.argv[2])
embedded.EmbeddedPostgres(Path(sys.argv[1])).start()
"""


def _user_in_start(directory: Path, fake: Path, waiting: str) -> subprocess.Popen[bytes]:
    """Return a user that is being started, and whose program `waiting` waits for a line in `fake / "go"`."""
    fake.mkdir()
    for name in {"initdb", "pg_ctl"} - {waiting}:
        (fake / name).symlink_to(programs() / name)
    (fake / waiting).write_text(_WAITING_PROGRAM.format(fake=fake, real=programs(), name=waiting))
    (fake / waiting).chmod(0o755)
    for pipe in (fake / "begun", fake / "go"):
        os.mkfifo(pipe)
        pipe.chmod(0o666)
    user = subprocess.Popen(
        [sys.executable, "-c", _STARTING, str(directory), str(fake)],
        cwd=Path(__file__).parents[3],
        stderr=subprocess.DEVNULL,
    )
    (fake / "begun").read_text()
    return user


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_user_that_dies_during_the_start_leaves_no_server(
    directory: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """The server starts nevertheless, and the keeper stops it."""
    user = _user_in_start(directory, tmp_path / "programs", "pg_ctl")
    user.send_signal(number)
    assert user.wait() != 0
    (tmp_path / "programs" / "go").write_text("go\n")
    deadline = time.monotonic() + 240
    while "database system is shut down" not in (directory / "server.log").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_start_waits_for_the_initdb_of_a_killed_user(directory: Path, tmp_path: Path) -> None:
    """Both would write to the same directory."""
    user = _user_in_start(directory, tmp_path / "programs", "initdb")
    _kill(user)
    with (directory / "start.lock").open("ab") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (tmp_path / "programs" / "go").write_text("go\n")
    with EmbeddedPostgres(directory) as server:
        assert _query(server.url, "SELECT 1") == 1


def test_a_start_waits_for_a_creation_ahead(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The start begins while the thread creates the server, and creates none itself."""
    begun = threading.Event()
    creators: list[threading.Thread] = []
    create = EmbeddedPostgres._create

    def begin_and_create(self: EmbeddedPostgres, account: Account, start: IO[bytes]) -> None:
        creators.append(threading.current_thread())
        begun.set()
        create(self, account, start)

    monkeypatch.setattr(EmbeddedPostgres, "_create", begin_and_create)
    server = EmbeddedPostgres(directory)
    with server.create_ahead():
        assert begun.wait(240)
        with server:
            assert _query(server.url, "SELECT 1") == 1
    assert len(creators) == 1
    assert creators != [threading.current_thread()]
    with EmbeddedPostgres(directory).create_ahead():
        pass
    assert len(creators) == 1


def test_a_start_reports_why_a_creation_ahead_failed(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as changed:
        changed.setattr("catalog.database.embedded.host._PACKAGE", "no_such_package")
        server = EmbeddedPostgres(directory)
        with server.create_ahead():
            pass
        with pytest.raises(EmbeddedPostgresError, match=r"siltstone\[agent\]"):
            server.start()
    with server.create_ahead():
        pass
    assert (directory / "pgdata" / "PG_VERSION").exists()


def test_the_server_keeps_running_after_another_user_was_killed(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        child = _user(directory)
        _kill(child)
        assert _query(server.url, "SELECT 1") == 1
    _wait_until_gone(directory)


def test_a_killed_server_is_restarted(directory: Path) -> None:
    with EmbeddedPostgres(directory) as server:
        _query(server.url, "CREATE TABLE saved AS SELECT 7 AS n")
        _postmaster(directory).kill()
        with EmbeddedPostgres(directory) as other:
            assert _query(other.url, "SELECT n FROM saved") == 7


def test_a_server_that_ends_is_started_again_for_its_users(directory: Path) -> None:
    """It has the same address, and one keeper however often it ends."""
    with EmbeddedPostgres(directory) as first, EmbeddedPostgres(directory) as second:
        for user in (first, second):
            user.keep_running()
        _query(first.url, "CREATE TABLE saved AS SELECT 7 AS n")
        for _ in range(2):
            ended = _postmaster(directory)
            ended.kill()
            _wait_until(lambda ended=ended: _server_process(directory) not in {None, ended.pid})  # type: ignore[misc]  # bound here
            _wait_until(lambda: _answers(first.url))
            assert _query(second.url, "SELECT n FROM saved") == 7
        _wait_until(lambda: len(_keepers(directory)) == 1)


def test_a_server_that_cannot_be_started_again_is_tried_again(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launched = EmbeddedPostgres._launch
    failures: list[Account] = []

    def fail(self: EmbeddedPostgres, account: Account) -> str:
        if len(failures) < 2:
            failures.append(account)
            raise EmbeddedPostgresError("the disk is full", remedy="free some space")
        return launched(self, account)

    with EmbeddedPostgres(directory) as server, capture_logs() as logs:
        monkeypatch.setattr(EmbeddedPostgres, "_launch", fail)
        server.keep_running()
        _postmaster(directory).kill()
        _wait_until(lambda: _answers(server.url))
        _wait_until(lambda: len(logs) >= 3)
    first, second, last = logs[:3]
    assert [first["log_level"], second["log_level"], last["log_level"]] == ["error", "error", "warning"]
    assert first["reason"] == "the disk is full (free some space)"


class _StoppedClock(SystemClock):
    """Sleeps, but has always the same time."""

    @override
    def monotonic(self) -> float:
        return 0.0


def test_a_server_that_ends_right_after_its_start_is_not_waited_for(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still, so nothing but the end of the server ends the wait."""
    started = EmbeddedPostgres._start_or_find

    def start_and_kill(
        self: EmbeddedPostgres, account: Account, command: Sequence[str], sockets: Path
    ) -> str:
        url = started(self, account, command, sockets)
        postmaster = _postmaster(directory)
        postmaster.kill()
        _wait_until(lambda: has_server_ended(directory / "pgdata"))
        return url

    monkeypatch.setattr(EmbeddedPostgres, "_start_or_find", start_and_kill)
    with pytest.raises(EmbeddedPostgresError, match="cannot be reached"):
        EmbeddedPostgres(directory, clock=_StoppedClock()).start()


def _wait_until(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 240
    while not is_true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _server_process(directory: Path) -> int | None:
    """Return the process id of the server that runs or is being started."""
    try:
        return int((directory / "pgdata" / "postmaster.pid").read_text().splitlines()[0])
    except (OSError, ValueError, IndexError):
        return None


def _answers(url: str) -> bool:
    with contextlib.suppress(psycopg.OperationalError):
        return _query(url, "SELECT 1") == 1
    return False


def _keepers(directory: Path) -> list[psutil.Process]:
    return [each for each in _servers(directory) if "keeper" in " ".join(each.cmdline())]


@pytest.fixture
def suspend_until_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[psutil.Process], None]]:
    """Return a function that suspends a process until an attempt to start a server has failed."""
    suspended: list[psutil.Process] = []

    def resume_all() -> None:
        for process in suspended:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def suspend(process: psutil.Process) -> None:
        start = EmbeddedPostgres._start

        def start_and_resume(
            self: EmbeddedPostgres, account: Account, command: Sequence[str]
        ) -> subprocess.CompletedProcess[str]:
            done = start(self, account, command)
            resume_all()
            return done

        suspended.append(process)
        process.suspend()
        monkeypatch.setattr(EmbeddedPostgres, "_start", start_and_resume)
        monkeypatch.setattr(embedded, "_START_RETRIES", 0)

    yield suspend
    resume_all()


def test_a_start_waits_for_the_processes_of_a_killed_server(
    directory: Path, suspend_until_start: Callable[[psutil.Process], None]
) -> None:
    """On a busy machine, they take some time to notice that the server has died."""
    with EmbeddedPostgres(directory):
        postmaster = _postmaster(directory)
        suspend_until_start(
            next(each for each in postmaster.children() if "checkpointer" in " ".join(each.cmdline()))
        )
        postmaster.kill()
        with EmbeddedPostgres(directory) as other:
            assert _query(other.url, "SELECT 1") == 1


def test_a_slow_server_is_found_after_a_failed_start(
    directory: Path, suspend_until_start: Callable[[psutil.Process], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user that cannot connect in time tries to start a server, fails, and finds the slow one."""
    monkeypatch.setattr(embedded, "_CONNECT_SECONDS", 2)
    with EmbeddedPostgres(directory) as server:
        postmaster = _postmaster(directory)
        suspend_until_start(postmaster)
        with EmbeddedPostgres(directory) as other:
            assert other.url == server.url
        assert _postmaster(directory) == postmaster


def test_a_server_starts_although_another_process_has_its_old_id(directory: Path) -> None:
    """After a crash of the machine, another process of the same account has the server's id."""
    with EmbeddedPostgres(directory) as server:
        _query(server.url, "CREATE TABLE saved AS SELECT 7 AS n")
        pid_file = directory / "pgdata" / "postmaster.pid"
        account = pid_file.stat().st_uid
        pid = pid_file.read_text().splitlines()[0]
        postmaster = psutil.Process(int(pid))
        workers = postmaster.children()
        postmaster.kill()
        assert not psutil.wait_procs([postmaster, *workers], timeout=240)[1]
        with subprocess.Popen(["sleep", "600"], user=account) as other_process:
            (socket_lock,) = Path(pid_file.read_text().splitlines()[4]).glob(".s.PGSQL.*.lock")
            for file in (pid_file, socket_lock):
                assert file.read_text().startswith(f"{pid}\n")
                file.write_text(file.read_text().replace(pid, str(other_process.pid), 1))
            try:
                with EmbeddedPostgres(directory) as other:
                    assert _query(other.url, "SELECT n FROM saved") == 7
            finally:
                other_process.kill()


def test_several_users_can_start_the_server_at_once(directory: Path) -> None:
    users = [EmbeddedPostgres(directory) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        urls = set(pool.map(EmbeddedPostgres.start, users))
        assert len(urls) == 1
        list(pool.map(EmbeddedPostgres.close, users))


def test_the_socket_of_a_deep_directory_is_elsewhere(tmp_path: Path) -> None:
    deep = tmp_path.joinpath(*["deep" * 10] * 4, "it's here") / "catalog"
    with EmbeddedPostgres(deep) as server:
        assert _query(server.url, "SELECT 1") == 1
        with EmbeddedPostgres(deep) as other:
            assert other.url == server.url
    _wait_until_gone(deep)


def test_the_error_of_a_failed_start_contains_the_reason(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded, "_START_RETRIES", 0)
    with pytest.raises(EmbeddedPostgresError, match="no_such_setting"):
        EmbeddedPostgres(directory, settings={"no_such_setting": "1"}).start()
    with EmbeddedPostgres(directory) as server:
        assert _query(server.url, "SELECT 1") == 1


def test_the_error_of_a_directory_that_cannot_be_written_names_it(tmp_path: Path) -> None:
    (tmp_path / "users.lock").mkdir()
    with pytest.raises(EmbeddedPostgresError, match=r"users.lock: Is a directory .*--data-dir"):
        EmbeddedPostgres(tmp_path).start()


def test_the_error_without_postgresql_names_the_extra(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catalog.database.embedded.host._PACKAGE", "no_such_package")
    with pytest.raises(EmbeddedPostgresError, match=r"siltstone\[agent\]"):
        EmbeddedPostgres(directory).start()
