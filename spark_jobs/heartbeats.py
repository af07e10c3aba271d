"""Heartbeats that keep claimed jobs alive in the catalog while the driver waits for Spark."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

from core.errors import InvalidInputError, SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Self
    from uuid import UUID

    from catalog.model import Job

HEARTBEAT_SECONDS: Final = 5.0


class Pulse(Protocol):
    """The part of the catalog (`Catalog.jobs`) that a heartbeat needs; safe for many threads."""

    def heartbeat(self, job_id: UUID, attempt_id: UUID) -> None:
        """Renew a running attempt. Raise StaleStateError if it is not running."""


class Heartbeats:
    """Context manager with a thread that renews each added attempt every few seconds until it is dropped.

    The thread is separate because publishing a result, or the caller's progress display, may take longer than
    the lease of an attempt. Failed heartbeats are ignored: a lost attempt shows when the catalog rejects its
    result.
    """

    def __init__(self, pulse: Pulse, *, seconds: float = HEARTBEAT_SECONDS) -> None:
        self._pulse = pulse
        self._seconds = seconds
        self._lock = threading.Lock()
        self._jobs: dict[UUID, UUID] = {}  # by attempt
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="job-heartbeats", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def add(self, jobs: Iterable[Job]) -> None:
        """Begin to renew claimed jobs."""
        with self._lock:
            self._jobs |= {attempt_of(job): job.spec.job_id for job in jobs}

    def drop(self, attempt_id: UUID) -> None:
        """Stop the heartbeats of a finished attempt."""
        with self._lock:
            self._jobs.pop(attempt_id, None)

    def _beat(self) -> None:
        while not self._stopped.wait(self._seconds):
            with self._lock:
                attempts = list(self._jobs.items())
            for attempt_id, job_id in attempts:
                if self._stopped.is_set():
                    return
                with suppress(SiltstoneError):
                    self._pulse.heartbeat(job_id, attempt_id)


def attempt_of(job: Job) -> UUID:
    """Return the attempt of a claimed job. Raise InvalidInputError for any other job."""
    if job.attempt_id is None:
        raise InvalidInputError(f"job {job.spec.job_id} is {job.state}", remedy="claim it before running it")
    return job.attempt_id
