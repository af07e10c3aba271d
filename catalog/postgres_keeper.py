"""Stops an embedded PostgreSQL once nobody uses it any more, however its users came to their end.

Run as a script by `catalog.embedded`, with nothing but the standard library: it goes into the background and
waits for an exclusive lock on the file that every user holds a shared lock on. The kernel gives that lock
when the last of them is gone, by an orderly exit or by SIGKILL. Then it stops the server and goes itself.
"""

from __future__ import annotations

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
    with open(told["users_lock"], "rb") as users:  # noqa: PTH123  # pathlib would double the memory that this holds
        fcntl.flock(users, fcntl.LOCK_EX)
        subprocess.run(  # noqa: S603  # the command comes from catalog.embedded
            told["stop_command"],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            user=told["user"],
            group=told["group"],
            extra_groups=[] if told["user"] is not None else None,
            timeout=300,
        )


if __name__ == "__main__":
    _main(sys.argv[1])
