"""A process that has loaded everything, and forks child processes that work until they are killed.

Reads one JSON object per line and responds with one line: the status of the child process, and the steps it
counted if it was not to be killed at a step.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

import structlog

from tests.local_tier.crash.crash_workload import Journal, Workload
from tests.local_tier.crash.unsynced import UnsyncedFileSystem
from tests.local_tier.steps import Kill, NoFaults, SteppedFileSystem


def live(command: dict[str, Any]) -> None:
    """Run the workload in the forked process."""
    kill = command.get("kill")
    faults = Kill(*kill) if kill else NoFaults()
    files = SteppedFileSystem(UnsyncedFileSystem(), faults)
    journal = Journal(os.open(command["journal"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600))
    Workload(Path(command["root"]), files, journal, command["seed"]).run(command["steps"])
    Path(command["counts"]).write_text(json.dumps(faults.steps))


def one_life(command: dict[str, Any]) -> dict[str, Any]:
    child = os.fork()
    if not child:
        status = 1
        try:
            live(command)
            status = 0
        except BaseException:  # noqa: BLE001  # reported by the exit status
            traceback.print_exc()
        finally:
            os._exit(status)
    killer = None
    if command.get("after_ms") is not None:
        killer = threading.Timer(command["after_ms"] / 1000, os.kill, (child, signal.SIGKILL))
        killer.start()
    _, status = os.waitpid(child, 0)
    if killer is not None:
        killer.cancel()
        killer.join()
    return {"killed": os.WIFSIGNALED(status), "code": os.waitstatus_to_exitcode(status)}


def main() -> None:
    """Serve requests until the input ends."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    with tempfile.TemporaryDirectory() as scratch:  # forked processes then have all kernels loaded
        journal = Journal(os.open(os.devnull, os.O_WRONLY))
        for seed in range(2):
            Workload(Path(scratch) / str(seed), UnsyncedFileSystem(), journal, seed).run(40)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(one_life(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
