"""Keeper process of an embedded PostgreSQL: starts the server, and stops it after its last user.

`catalog.database.embedded.server` runs this as a script; it uses only the standard library. The keeper goes
into the background, starts the server, and reports the result on standard output as JSON of exit code, output
and errors. Then it waits for an exclusive lock on the file on which every user holds a shared lock. The
kernel grants that lock when the last user has gone, whether it exited or was killed. The keeper then stops
the server and exits. The keeper, not a user, starts the server, so that a user that dies during the start
leaves no server behind.

If a server ended and was started again, the keeper of its first start still waits. It holds a second lock, so
the new keeper exits at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys


def _main(arguments: str) -> None:
    options = json.loads(arguments)
    if os.fork():
        os._exit(0)  # the caller waits for the parent only
    os.setsid()
    code, out, errors = _run(options["start_command"], options["user"], options["group"])
    with contextlib.suppress(OSError):  # the caller may have died
        os.write(1, json.dumps([code, out, errors]).encode())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    # Release the lock of the users last: the next user then starts another keeper.
    with (
        open(options["users_lock"], "rb") as users,  # noqa: PTH123  # pathlib would double this process's memory
        open(options["keeper_lock"], "ab") as keeper,  # noqa: PTH123  # as above
    ):
        try:
            fcntl.flock(keeper, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # another keeper waits
        fcntl.flock(users, fcntl.LOCK_EX)
        _run(options["stop_command"], options["user"], options["group"])


def _run(command: list[str], user: int | None, group: int | None) -> tuple[int, str, str]:
    try:
        done = subprocess.run(  # noqa: S603  # the command comes from catalog.database.embedded.server
            command,
            check=False,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            cwd="/",
            user=user,
            group=group,
            extra_groups=[] if user is not None else None,
            timeout=300,
        )
    except subprocess.TimeoutExpired as failure:
        return 1, "", str(failure)
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    _main(sys.argv[1])
