"""Client libraries in separate processes, which a test can kill.

A driver reads requests and writes responses, each as one line of JSON. The requests are traits, produce,
bounds, read and administer, for some clients transact and read_committed, and for a member of a group join,
seen and leave. `session` is the session timeout of a member in milliseconds.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import orjson

from tests.fixtures import kafka_tools
from tests.fixtures.pipes import is_readable

LONG_SESSION_MS = 6_000
"""Session timeout of members that are not killed: a busy machine delays heartbeats for less than this."""
ROOT = Path(__file__).parents[2]
NODE_SOURCES = ROOT / "tests" / "real_clients" / "node"
JAVA_SOURCE = ROOT / "tests" / "real_clients" / "java" / "Driver.java"
NODE_MODULES = ROOT / ".node" / "node_modules"
_TIMEOUT_SECONDS = 300
_IN_PYTHON = {"confluent-kafka": "confluent", "kafka-python": "kafka_python", "aiokafka": "aio"}
_IN_NODE = {"kafkajs": "kafkajs", "@platformatic/kafka": "platformatic"}
# The value is the group protocol of the members.
_IN_JAVA = {"Kafka's own": "classic", "Kafka's own, KIP-848": "consumer"}


def missing() -> dict[str, str]:
    """Return the clients that this machine cannot run, and the reasons."""
    found = {}
    if shutil.which("kcat") is None:
        found["kcat"] = "not installed"
    if shutil.which("node") is None:
        found |= dict.fromkeys(_IN_NODE, "Node is not installed")
    elif not NODE_MODULES.is_dir():
        found |= dict.fromkeys(_IN_NODE, "run make .node/.installed")
    if not kafka_tools.are_installed():
        found |= dict.fromkeys(_IN_JAVA, "run make kafka-tools, which needs Java")
    return found


CLIENTS = [name for name in (*_IN_PYTHON, "kcat", *_IN_NODE, *_IN_JAVA) if name not in missing()]


class Driver:
    """A client in a separate process. The context manager kills it."""

    def __init__(self, client: str, directory: Path) -> None:
        """Start the process. `directory` must be empty: a Node program needs its modules in it."""
        self.client = client
        self.is_in_step = True  # the next response is that of the next request
        self._process = subprocess.Popen(
            _command(client, directory),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def __call__(self, action: str, **arguments: object) -> Any:  # noqa: ANN401  # the result of any request
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.is_in_step = False
        self._process.stdin.write(orjson.dumps({"do": action, **arguments}, option=orjson.OPT_APPEND_NEWLINE))
        self._process.stdin.flush()
        assert is_readable(self._process.stdout, _TIMEOUT_SECONDS), (
            f"{self.client} does not respond to {action}"
        )
        line = self._process.stdout.readline()
        assert line, f"{self.client} ended during {action}"
        response = orjson.loads(line)
        self.is_in_step = True
        assert "error" not in response, f"{self.client}, {action}: {response['error']}"
        return response["result"]

    def kill(self) -> None:
        """Kill the process and its children, such as kcat, without a graceful end."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _command(client: str, directory: Path) -> list[str]:
    if client in _IN_NODE:
        # Node looks for modules in the directory of the program.
        shutil.copytree(NODE_SOURCES, directory, dirs_exist_ok=True)
        modules = directory / "node_modules"
        if not modules.exists():
            modules.symlink_to(NODE_MODULES)
        return ["node", str(directory / "driver.mjs"), _IN_NODE[client]]
    if client in _IN_JAVA:
        return kafka_tools.command(str(JAVA_SOURCE), _IN_JAVA[client])
    return [sys.executable, "-m", f"tests.real_clients.drivers.{_IN_PYTHON.get(client, client)}"]
