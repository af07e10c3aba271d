"""Agent of the demo: a separate process, as in production, that cannot outlive the demo."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

import orjson
from pydantic import SecretStr

from core.errors import FatalError
from siltstone.settings.configuration import ENVIRONMENT_PREFIX, SETTINGS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from siltstone.settings.configuration import Settings

_READY_SECONDS = 600.0  # the first agent of an installation compiles its kernels
_STOP_SECONDS = 40.0
_LOG_TAIL = 2000
_FREE_PORT = "127.0.0.1:0"


class AgentDidNotStartError(FatalError):
    """The agent's process ended or timed out before it was ready."""


@contextlib.contextmanager
def running_agent(settings: Settings, log_file: Path) -> Iterator[str]:
    """Run `siltstone agent` on free ports while the block runs, and yield its Kafka address.

    The agent stops when its standard input ends, and therefore also when this process is killed. Its log is
    written to `log_file`.
    """
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "siltstone", "agent", "--stop-on-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            env=_environment(settings),
            start_new_session=True,  # ^C reaches only the demo, which then stops the agent in order
        )
    try:
        yield _ready_address(process, log_file)
    finally:
        _stop(process)


def _environment(settings: Settings) -> dict[str, str]:
    """Return the environment of the child: the same settings, on free ports.

    Settings are not passed as arguments, which all users of the machine can see.
    """
    environment = dict(os.environ)
    for name, info in SETTINGS.items():
        value = info.value(settings)
        variable = f"{ENVIRONMENT_PREFIX}{name.upper()}"
        if value is None:
            environment.pop(variable, None)
        elif isinstance(value, SecretStr):
            environment[variable] = value.get_secret_value()
        else:
            environment[variable] = str(value)
    for listener in ("HTTP", "KAFKA"):
        environment[f"{ENVIRONMENT_PREFIX}{listener}"] = _FREE_PORT
    return environment


def _ready_address(process: subprocess.Popen[bytes], log_file: Path) -> str:
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    assert process.stdout is not None
    threading.Thread(target=_forward_first_line, args=(process.stdout, lines), daemon=True).start()
    try:
        line = lines.get(timeout=_READY_SECONDS)
    except queue.Empty:
        line = b""
    try:
        ready = orjson.loads(line)
        address = ready["kafka"] if ready["event"] == "ready" else None
    except (orjson.JSONDecodeError, KeyError, TypeError):
        address = None
    if not address:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        log = log_file.read_text(encoding="utf-8", errors="replace").strip()[-_LOG_TAIL:]
        raise AgentDidNotStartError(
            f"the agent did not start: {log or 'its log is empty'}", remedy=f"its log is {log_file}"
        )
    return str(address)


def _forward_first_line(stream: IO[bytes], lines: queue.SimpleQueue[bytes]) -> None:
    """Put the first line into the queue (empty if the process ends without one) and discard the rest."""
    lines.put(stream.readline())
    while stream.read(65536):
        pass


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Stop the agent, which finishes its accepted requests; kill it if that takes too long."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdin is not None
    process.stdin.close()
