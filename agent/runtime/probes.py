"""Probes: cheap calls that notice a dead dependency of an idle agent.

Each probe has a thread, because a call may hang. It makes a call only when no other call has succeeded for
`interval_seconds`, so a busy agent makes none. A dependency that fails is probed at half the interval, so
that its return is noticed soon. One thread makes one call at a time: a call that hangs causes no further
ones.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from core.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agent.runtime.health import CallHealth
    from core.clock import Clock
    from core.ids import Ids

PROBE_FILE: Final = ".write-probe"
_KEEP_OPEN_SECONDS: Final = 60.0
_PROBE_BYTES: Final = bytes(4096)  # a file system may store fewer bytes without a block


class Probe:
    """Thread that calls `call` while `health` has no recent success.

    `close` closes what `call` keeps open. The thread calls it at its end, and when it has not probed for a
    minute because other calls succeed.
    """

    def __init__(
        self,
        dependency: str,
        call: Callable[[], object],
        health: CallHealth,
        *,
        interval_seconds: float,
        clock: Clock,
        ids: Ids,
        close: Callable[[], object] = lambda: None,
    ) -> None:
        self._call = call
        self._close = close
        self._clock = clock
        self._health = health
        self._interval_seconds = interval_seconds
        self._outage = Outage(
            f"probes of the {dependency}",
            clock=clock,
            ids=ids,
            first_pause_seconds=interval_seconds / 2,
            max_pause_seconds=interval_seconds / 2,
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"siltstone-probe-{dependency.replace(' ', '-')}", daemon=True
        )

    @property
    def is_running(self) -> bool:
        """Return True if the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Make no further call. A call that hangs is left to its timeout."""
        self._stopping.set()

    def _run(self) -> None:
        try:
            self._probe()
        finally:
            self._close()

    def _probe(self) -> None:
        pause = self._interval_seconds
        probed_at = self._clock.monotonic()
        while not self._stopping.wait(pause):
            left = self._interval_seconds - self._health.seconds_since_success
            if left > 0:
                pause = left
                self._outage.succeeded()
                if self._clock.monotonic() - probed_at > _KEEP_OPEN_SECONDS:
                    self._close()
                continue
            probed_at = self._clock.monotonic()
            try:
                self._call()
            except Exception as error:  # noqa: BLE001  # the thread must survive any failure
                pause = self._outage.failed(error)
            else:
                self._health.succeeded()
                self._outage.succeeded()
                pause = self._interval_seconds


class DiskProbe:
    """Writes a small file into one of several log directories, and deletes it. For use by one thread.

    Each write has a thread, because it may hang for ever. A directory that hangs for `timeout_seconds` is
    left out until it responds; a late write counts for the next check.
    """

    def __init__(self, directories: Callable[[], Sequence[Path]], *, timeout_seconds: float) -> None:
        self._directories = directories
        self._timeout_seconds = timeout_seconds
        self._late: dict[Path, _Write] = {}

    def check(self) -> None:
        """Raise OSError if no directory takes the file."""
        last = OSError(errno.ENODEV, "no log directory is online")
        for directory in self._directories():
            error = self._error_of(directory)
            if error is None:
                return
            last = error
        raise last

    def _error_of(self, directory: Path) -> OSError | None:
        """Write into a directory; return why that is impossible, or None."""
        late = self._late.pop(directory, None)
        write = late or _Write(directory)
        if late is None:
            write.start()
        write.join(self._timeout_seconds if late is None else 0)
        if write.is_alive():
            self._late[directory] = write
            return OSError(errno.ETIMEDOUT, "the log directory does not respond", str(directory))
        return write.error


class _Write(threading.Thread):
    """One write into a directory; `error` is what prevented it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(name="siltstone-probe-disk", daemon=True)
        self._path = directory / PROBE_FILE
        self.error: OSError | None = None

    @override
    def run(self) -> None:
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(descriptor, _PROBE_BYTES)
            finally:
                os.close(descriptor)
            self._path.unlink()
        except OSError as error:
            self.error = error
