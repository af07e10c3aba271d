"""The command line in a fork of the fork server, for tests that start it often.

A process that loads the modules itself needs about a second of processor time, and three if it is an agent.
`tests.end_to_end.processes` starts such processes.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import orjson

from siltstone.cli.main import main
from tests.agent.kafka.waiting import until
from tests.end_to_end.processes import TIMEOUT_SECONDS, environment
from tests.fixtures.fork_server import FORK_SERVER

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


class ForkedCommand:
    """A running command; `output` and `error` are the files of its standard output and standard error.

    `variables` are added to its environment.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        output: Path,
        error: Path,
        stdin: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self._output, self._error = output, error
        output.unlink(missing_ok=True)  # of an earlier process
        files = str(output), str(error)
        self._process = FORK_SERVER.Process(
            target=_run, args=(arguments, {**environment(), **(variables or {})}, *files, stdin), daemon=True
        )
        self._process.start()

    def ends(self, code: int = 0) -> None:
        """Wait for the end, with an exit code."""
        self._process.join(TIMEOUT_SECONDS)
        assert self._process.exitcode == code, self.text()

    def await_line(self) -> None:
        """Wait until the command has printed a line. Raise if it ends before it has printed one."""
        until(lambda: self._has_line() or not self._process.is_alive())
        assert self._has_line(), self.text()

    def stop(self) -> None:
        """Send SIGTERM, which must end the command in order."""
        self._process.terminate()
        self.ends()

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self._process.kill()
        self._process.join(TIMEOUT_SECONDS)

    def text(self) -> str:
        """Return what the command has printed."""
        return "".join(each.read_text() for each in (self._output, self._error) if each.exists())

    def _has_line(self) -> bool:
        return self._output.exists() and b"\n" in self._output.read_bytes()


def run_siltstone(*arguments: str, directory: Path, stdin: str = "", code: int = 0) -> str:
    """Run a command and return its output; it must exit with `code` and show no traceback.

    The files of its output are in `directory`.
    """
    output, error = directory / "command.out", directory / "command.err"
    error.unlink(missing_ok=True)  # of an earlier command
    command = ForkedCommand(arguments, output, error, stdin)
    command.ends(code)
    assert "Traceback" not in command.text()
    return output.read_text()


def report_of(*arguments: str, directory: Path, stdin: str = "", code: int = 0) -> dict[str, Any]:
    """Run a command and return the JSON object on the last line of its output."""
    lines = run_siltstone(*arguments, "--json", directory=directory, stdin=stdin, code=code).splitlines()
    found: dict[str, Any] = orjson.loads(lines[-1])
    return found


@contextmanager
def forked_agent(directory: Path, *options: str) -> Iterator[dict[str, Any]]:
    """Run an agent on free ports and yield its ready line; at the end, SIGTERM must stop it in order.

    Its files are below `directory`.
    """
    directory.mkdir()
    arguments = ("agent", "--http", "127.0.0.1:0", "--kafka", "127.0.0.1:0", *options)
    output = directory / "ready"
    agent = ForkedCommand(arguments, output, directory / "log")
    try:
        agent.await_line()
        yield orjson.loads(output.read_bytes())
        agent.stop()
    finally:
        agent.kill()


def _run(arguments: Sequence[str], variables: Mapping[str, str], output: str, error: str, stdin: str) -> None:
    """Run a command in this process, with files as its standard streams."""
    os.environ.clear()
    os.environ.update(variables)
    given = os.memfd_create("stdin")
    os.write(given, stdin.encode())
    os.lseek(given, 0, os.SEEK_SET)
    for number, descriptor in enumerate((given, _opened(output), _opened(error))):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # as long as the process
    main(arguments)


def _opened(path: str) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
