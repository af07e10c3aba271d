"""Runs the command in a separate process, as users do, and reads the report from its output."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson
import psutil
from psycopg.conninfo import conninfo_to_dict

from siltstone.settings.configuration import ENVIRONMENT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TIMEOUT_SECONDS = 800


def as_url(address: str) -> str:
    """Convert a PostgreSQL address of the fixtures (`host=… user=… dbname=…`) into a URL."""
    parts = conninfo_to_dict(address)
    host = quote(str(parts.pop("host")), safe="")
    return f"postgresql://{parts['user']}@/{parts['dbname']}?host={host}"


def environment() -> dict[str, str]:
    """Return the environment of this process without settings of the developer's shell."""
    return {name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}


def siltstone(*arguments: str, stdin: str = "", code: int = 0) -> str:
    """Run a command and return its output; it must exit with `code` and show no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "siltstone", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env=environment(),
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def report(*arguments: str, stdin: str = "", code: int = 0) -> dict[str, Any]:
    """Run a command and return the JSON object on the last line of its output."""
    last_line = siltstone(*arguments, "--json", stdin=stdin, code=code).splitlines()[-1]
    found: dict[str, Any] = orjson.loads(last_line)
    return found


@contextlib.contextmanager
def agent(
    data_dir: Path, *options: str, code: int = 0, source: Path | None = None
) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any]]]:
    """Run an agent and yield its process and its ready line; at the end, SIGTERM must stop it with `code`.

    With `source`, it is the agent of the code in that directory.
    """
    log = data_dir.parent / f"{data_dir.name}-agent.log"
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "siltstone", "agent"),
                *("--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0"),
                *("--data-dir", str(data_dir), *options),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            cwd=source,
            env=environment() if source is None else {**environment(), "PYTHONPATH": str(source)},
        )
    with process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text(encoding="utf-8")
            yield process, orjson.loads(line)
            process.terminate()
            assert process.wait(TIMEOUT_SECONDS) == code, log.read_text(encoding="utf-8")
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()


def leftovers(data_dir: Path) -> list[str]:
    """Return the command lines of processes that name a data directory and do not exit in time."""
    found = [process for process in psutil.process_iter() if str(data_dir) in _command_line(process)]
    _, alive = psutil.wait_procs(found, timeout=240)
    return [_command_line(process) for process in alive]


def _command_line(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""
