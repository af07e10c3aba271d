"""Starts an embedded PostgreSQL, and stops it once nobody uses it, however its users came to their end.

Run as a script by `catalog.database.embedded_server`, with nothing but the standard library: it goes into
the background, starts the server, says how that went on standard output, as JSON of exit code, output and
errors, and waits for an exclusive lock on the file that every user holds a shared lock on. The kernel gives
that lock when the last of them is gone, by an orderly exit or by SIGKILL. Then it stops the server and goes
itself. It is the one who starts it, so that a user who ends meanwhile leaves no server that comes up later.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import subprocess
import sys


def _main(arguments: str) -> None:
    told = json.loads(arguments)
    if os.fork():
        os._exit(0)  # the one who started this waits for nobody
    os.setsid()
    code, out, errors = _run(told["start_command"], told["user"], told["group"])
    with contextlib.suppress(OSError):  # who wanted to know may be gone
        os.write(1, json.dumps([code, out, errors]).encode())
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    with open(told["users_lock"], "rb") as users:  # noqa: PTH123  # pathlib would double the memory that this holds
        fcntl.flock(users, fcntl.LOCK_EX)
        _run(told["stop_command"], told["user"], told["group"])


def _run(command: list[str], user: int | None, group: int | None) -> tuple[int, str, str]:
    try:
        done = subprocess.run(  # noqa: S603  # the command comes from catalog.database.embedded_server
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
