"""Processes of a campaign, which may be killed, frozen, limited and started again."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import psutil
from typing_extensions import override

from tests.crash import child_processes
from tests.end_to_end.processes import as_url, environment
from tests.fixtures.fork_server import FORK_SERVER
from tests.fixtures.ports import lasting_ports

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess

    from tests.crash.fail_points import Crash

TIMEOUT_SECONDS: Final = 900.0
"""For Spark, of which several start at once."""
_CHILD_SECONDS: Final = 240.0
ROOT: Final = Path(__file__).parents[2]


class Process(Protocol):
    """A process that may be killed and started again."""

    def start(self) -> None:
        """Start the process; it may die before it is ready."""

    def wait_ready(self) -> bool:
        """Return False if the process dies before it is ready."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""

    def stop(self) -> None:
        """Stop the process normally if it is running."""


def start_until_ready(process: Process) -> None:
    """Start a process; try again while it dies early, for example because the catalog is away."""
    end = time.monotonic() + _CHILD_SECONDS
    while True:
        process.start()
        if process.wait_ready():
            return
        process.kill()
        assert time.monotonic() < end, f"a process died each time it was started in {_CHILD_SECONDS} s"
        time.sleep(0.2)


class Child:
    """A child process that may be killed and started again."""

    def __init__(
        self,
        run: Callable[[child_processes.ChildConfig, Connection], None],
        config: child_processes.ChildConfig,
    ) -> None:
        self._run = run
        self.config = config
        self._process: ForkServerProcess | None = None
        self._control: Connection | None = None
        self._ready = False

    def start(self, crash: Crash | None = None) -> None:
        """Start the process; it may die before it is ready."""
        self._control, remote = FORK_SERVER.Pipe()
        self._ready = False
        self._process = FORK_SERVER.Process(
            target=self._run, args=(replace(self.config, crash=crash), remote), daemon=True
        )
        self._process.start()
        remote.close()

    def wait_ready(self) -> bool:
        """Return False if the process dies before it is ready."""
        end = time.monotonic() + _CHILD_SECONDS
        while not self.is_ready:
            if not self.is_alive:
                return False
            assert time.monotonic() < end, f"{self._run.__name__} is neither ready nor dead"
            time.sleep(0.005)
        return True

    @property
    def is_ready(self) -> bool:
        """Return True if the process has reported so since its last start."""
        assert self._control is not None
        with contextlib.suppress(EOFError, ConnectionResetError):
            self._ready = self._ready or (self._control.poll() and self._control.recv() == "ready")
        return self._ready

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def kill(self) -> None:
        """Send SIGKILL."""
        if self._process is not None:
            if self.is_alive:  # otherwise another process may have its id already
                self._process.kill()
            self._process.join(_CHILD_SECONDS)

    def freeze(self) -> None:
        """Send SIGSTOP: connections stay open, and nothing responds."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process continue."""
        self._signal(signal.SIGCONT)

    def fill_disks(self, *, full: bool) -> None:
        """Let writes to files fail from now on (EFBIG, as no other error can be caused from outside)."""
        if self.is_alive:
            assert self._process is not None
            assert self._process.pid is not None
            _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (0 if full else hard, hard))

    def step_clock(self, seconds: float) -> None:
        """Step the process's machine clock; it affects no other process."""
        assert self._control is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(seconds)

    def stop(self) -> None:
        """Stop the process normally."""
        assert self._control is not None
        assert self._process is not None
        with contextlib.suppress(BrokenPipeError):
            self._control.send("stop")
        self._process.join(_CHILD_SECONDS)
        code = self._process.exitcode
        assert code is not None, f"{self._run.__name__} did not stop in {_CHILD_SECONDS} s"
        assert code == 0, f"{self._run.__name__} stopped with {code}"

    def _signal(self, number: signal.Signals) -> None:
        if self.is_alive:
            assert self._process is not None
            assert self._process.pid is not None
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


class _Command:
    """A process of the command line."""

    def __init__(self, config: child_processes.ChildConfig, directory: Path) -> None:
        self._config = config
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "output.log"
        self._log_start = 0

    def _start(self, module: Sequence[str], arguments: Sequence[str], **settings: str) -> None:
        """Start a command on the campaign's catalog and store."""
        self._directory.mkdir(parents=True, exist_ok=True)
        store = self._config.store
        assert store.endpoint is not None
        assert store.region is not None
        url = self._config.catalog_url
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-m", *module, *arguments),
                    *("--data-dir", str(self._directory), "--object-store", store.url),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment()
                | {
                    "PYTHONPATH": str(ROOT),
                    "TMPDIR": str(self._directory),
                    "SILTSTONE_CATALOG": url if url.startswith("postgresql://") else as_url(url),
                    "SILTSTONE_S3_ENDPOINT": store.endpoint,
                    "SILTSTONE_S3_REGION": store.region,
                    "SILTSTONE_GRACE_SECONDS": str(child_processes.GRACE_MS // 1000),
                    "SILTSTONE_LOG_LEVEL": "info",
                    **settings,
                },
            )

    def log_output(self) -> str:
        """Return the output since the last start."""
        return self._log.read_bytes()[self._log_start :].decode()

    def _is_ready(self) -> bool:
        raise NotImplementedError

    def wait_ready(self) -> bool:
        """Return False if the process ends before it is ready."""
        end = time.monotonic() + TIMEOUT_SECONDS
        while not self._is_ready():
            if not self.is_alive:
                return False
            assert time.monotonic() < end, f"{self._directory.name} is neither ready nor stopped"
            time.sleep(0.02)
        return True

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """Send SIGKILL; the Java process of a watcher notices and ends."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT_SECONDS)

    def freeze(self) -> None:
        """Send SIGSTOP; processes of Spark go on."""
        if self.is_alive:
            assert self._process is not None
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen process continue."""
        if self.is_alive:
            assert self._process is not None
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Stop the process normally unless it has crashed."""
        assert self._process is not None
        if self._process.poll() == -signal.SIGKILL:
            return
        assert self.wait_ready(), self.log_output()  # before that, a signal kills it
        self._process.terminate()
        assert self._process.wait(TIMEOUT_SECONDS) == 0, self.log_output()


class Maintainer(_Command):
    """A `siltstone maintain --watch` process."""

    def __init__(self, config: child_processes.ChildConfig, directory: Path) -> None:
        super().__init__(config, directory)
        (self._port,) = lasting_ports(1)

    def start(self) -> None:
        """Start the process; it waits for the catalog and the store."""
        address = f"127.0.0.1:{self._port}"
        self._start(("siltstone",), ("maintain", "--watch", "--metrics", address))

    @override
    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 1):
            return True
        return False


class Watcher(_Command):
    """A `siltstone compact --watch` process with its Java and its Python workers."""

    def __init__(self, config: child_processes.ChildConfig, directory: Path, crashes: Path) -> None:
        super().__init__(config, directory)
        self._crashes = crashes

    def start(self) -> None:
        """Start the process; Spark starts with the first job."""
        self._crashes.mkdir(parents=True, exist_ok=True)
        self._start(
            ("tests.crash.spark_watcher", str(self._crashes)),
            ("compact", "--watch", "--interval", "0.1", "--force"),
            SILTSTONE_SPARK_MASTER="local[2]",
        )

    @override
    def _is_ready(self) -> bool:
        return "Polling every" in self.log_output()

    @property
    def descendants(self) -> list[psutil.Process]:
        """The Java process, its daemon, and the workers that the daemon has forked."""
        assert self._process is not None
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self._process.pid).children(recursive=True)
        return []

    def java(self) -> list[psutil.Process]:
        """Return Spark's driver, if it is running."""
        return [each for each in self.descendants if _name(each) == "java"]

    def workers(self) -> list[psutil.Process]:
        """Return Spark's Python workers and the daemon that forks them."""
        return [each for each in self.descendants if _name(each).startswith("python")]


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""
