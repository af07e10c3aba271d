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

from core.outage import Outage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agent.runtime.health import CallHealth
    from core.clock import Clock
    from core.ids import Ids

PROBE_FILE: Final = ".write-probe"
_PROBE_BYTES: Final = bytes(4096)  # a file system may store fewer bytes without a block


class Probe:
    """Thread that calls `call` while `health` has no recent success."""

    def __init__(
        self,
        dependency: str,
        call: Callable[[], object],
        health: CallHealth,
        *,
        interval_seconds: float,
        clock: Clock,
        ids: Ids,
    ) -> None:
        self._call = call
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
        pause = self._interval_seconds
        while not self._stopping.wait(pause):
            left = self._interval_seconds - self._health.seconds_since_success
            if left > 0:
                pause = left
                self._outage.succeeded()
                continue
            try:
                self._call()
            except Exception as error:  # noqa: BLE001  # the thread must survive any failure
                pause = self._outage.failed(error)
            else:
                self._health.succeeded()
                self._outage.succeeded()
                pause = self._interval_seconds


def write_to_any(directories: Sequence[Path]) -> None:
    """Write a small file into one of `directories` and delete it; raise OSError if none of them takes it."""
    last = OSError(errno.ENODEV, "no log directory is online")
    for directory in directories:
        path = directory / PROBE_FILE
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                os.write(descriptor, _PROBE_BYTES)
            finally:
                os.close(descriptor)
            path.unlink()
        except OSError as error:
            last = error
        else:
            return
    raise last
