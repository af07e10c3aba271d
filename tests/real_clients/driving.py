"""Client libraries as processes that do what a test asks: any of them can be killed like a user's program.

Each driver reads a request and writes an answer, both JSON on one line: traits, produce, bounds, read,
administer, and as a member of a group join, seen, leave. A member's `session` is in milliseconds.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import orjson

from tests.fixtures import kafka_tools

LASTING_MS = 6_000
"""A session of members that are not killed: longer than a busy machine keeps them silent."""
ROOT = Path(__file__).parents[2]
NODE_SOURCES = ROOT / "tests" / "kafka" / "node"
JAVA_SOURCE = ROOT / "tests" / "real_clients" / "java" / "Driver.java"
NODE_MODULES = ROOT / ".node" / "node_modules"
_PATIENCE_SECONDS = 300
_IN_PYTHON = {"confluent-kafka": "confluent", "kafka-python": "kafka_python", "aiokafka": "aio"}
_IN_NODE = {"kafkajs": "kafkajs", "@platformatic/kafka": "platformatic"}
# By the group protocol of their members.
_IN_JAVA = {"Kafka's own": "classic", "Kafka's own, KIP-848": "consumer"}


def missing() -> dict[str, str]:
    """Clients that cannot be driven here, and why."""
    found = {}
    if shutil.which("kcat") is None:
        found["kcat"] = "it is not installed"
    if shutil.which("node") is None:
        found |= dict.fromkeys(_IN_NODE, "there is no node")
    elif not NODE_MODULES.is_dir():
        found |= dict.fromkeys(_IN_NODE, "make .node/.installed was not run")
    if not kafka_tools.are_installed():
        found |= dict.fromkeys(_IN_JAVA, "make kafka-tools was not run, or there is no Java")
    return found


CLIENTS = [name for name in (*_IN_PYTHON, "kcat", *_IN_NODE, *_IN_JAVA) if name not in missing()]


class Driver:
    """One client in a process of its own; `with` ends it."""

    def __init__(self, client: str, directory: Path) -> None:
        """`directory` is this driver's own, for what Node must find beside its program."""
        self.client = client
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

    def __call__(self, what: str, **given: object) -> Any:  # noqa: ANN401  # whatever the request gives
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(orjson.dumps({"do": what, **given}, option=orjson.OPT_APPEND_NEWLINE))
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], _PATIENCE_SECONDS)
        assert ready, f"{self.client} does not come back from {what}"
        line = self._process.stdout.readline()
        assert line, f"{self.client} went away over {what}"
        answer = orjson.loads(line)
        assert "error" not in answer, f"{self.client}, {what}: {answer['error']}"
        return answer["result"]

    def kill(self) -> None:
        """End it, and what it started (kcat is a process of its driver's), without a word to anybody."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _command(client: str, directory: Path) -> list[str]:
    if client in _IN_NODE:
        # Modules of Node are looked for from where the program stands.
        shutil.copytree(NODE_SOURCES, directory, dirs_exist_ok=True)
        modules = directory / "node_modules"
        if not modules.exists():
            modules.symlink_to(NODE_MODULES)
        return ["node", str(directory / "driver.mjs"), _IN_NODE[client]]
    if client in _IN_JAVA:
        return kafka_tools.command(str(JAVA_SOURCE), _IN_JAVA[client])
    return [sys.executable, "-m", f"tests.real_clients.drivers.{_IN_PYTHON.get(client, client)}"]
