"""A Spark Connect server in a separate process, which tests kill and start again.

    python -m tests.spark_jobs.connect_server <port>

It prints a line when clients can connect, and runs until it is killed.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from core.clock import SystemClock
from spark_jobs.session.spark_session import SparkSettings, spark_session

if TYPE_CHECKING:
    from collections.abc import Iterator

_ROOT: Final = Path(__file__).parents[2]


@contextmanager
def connect_server(port: int, directory: Path) -> Iterator[None]:
    """Run a server with its files in a new directory. Leaving the block kills it and its Java."""
    directory.mkdir()
    command = [sys.executable, "-m", "tests.spark_jobs.connect_server", str(port)]
    # A client in this process would have let it know that PySpark is one of Connect.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")}
    environment["TMPDIR"] = str(directory)
    with subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == "ready\n"
            yield
        finally:
            os.killpg(server.pid, signal.SIGKILL)


def connect_settings(port: int) -> SparkSettings:
    """Return the settings of a session that also serves Spark Connect at a port."""
    return SparkSettings(
        master="local[2]",
        conf={
            "spark.plugins": "org.apache.spark.sql.connect.SparkConnectPlugin",
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
        },
    )


def _serve(port: int) -> None:
    clock = SystemClock()
    with spark_session(connect_settings(port)):
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            clock.sleep(0.05)  # Java binds the port some seconds later
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        signal.pause()


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
