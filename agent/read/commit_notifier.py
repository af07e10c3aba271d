"""Wakes those who wait at the tail when something is committed to their partition, by any agent.

One thread waits on the catalog's notifications. They are hints: whoever is woken looks for himself, and
whoever waits also looks again now and then, so that a lost notification costs time and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Protocol

import structlog

from catalog.model import PartitionId
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agent.cluster.commits import CommittedFile
    from agent.read.catalog_cache import BoundsCache
    from agent.runtime.health import CallHealth
    from agent.runtime.retry import RetryPolicy
    from catalog.model import SectionResult

_log = structlog.get_logger(__name__)


class CommitNotifications(Protocol):
    """The catalog's notifications of commits; used from one thread."""

    def wait(self, timeout: float, /) -> frozenset[PartitionId] | None:
        """What was committed to since the last call, at the latest after `timeout` seconds.

        None means "anything": notifications may have been missed.
        """
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


class Waiter:
    """One who waits for some partitions; made by `CommitNotifier.waiting`."""

    def __init__(self) -> None:
        self._woken = asyncio.Event()
        self.woken_at: float | None = None  # the loop's time of the first call since the last wait

    def wake(self) -> None:
        """Something was committed, or it is time to look."""
        if not self._woken.is_set():
            self.woken_at = asyncio.get_running_loop().time()
            self._woken.set()

    async def wait(self, seconds: float) -> bool:
        """Until woken or `seconds` have passed; tells whether it was woken, and may be called again."""
        self.woken_at = self.woken_at if self._woken.is_set() else None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        woken = self._woken.is_set()
        self._woken.clear()
        return woken


class CommitNotifier:
    """Brings commits to those who wait for them. Belongs to the event loop, but for its one thread."""

    def __init__(
        self,
        notifications: CommitNotifications,
        bounds: BoundsCache,
        *,
        health: CallHealth,
        retry: RetryPolicy,
        wait_seconds: float = 0.1,
    ) -> None:
        self._notifications = notifications
        self._bounds = bounds
        self._health = health
        self._retry = retry
        self._wait_seconds = wait_seconds
        self._waiters: dict[PartitionId, set[Waiter]] = {}
        self._stopping = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to listen."""
        self._thread = threading.Thread(
            target=self._listen,
            args=(asyncio.get_running_loop(),),
            name="siltstone-commit-watch",
            daemon=True,
        )
        self._thread.start()

    async def stop(self) -> None:
        """Wake everyone, for the last time, and stop listening."""
        self.release_waiters()
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def release_waiters(self) -> None:
        """From now on nobody is kept waiting."""
        self._closed = True
        self._wake_all()

    @property
    def is_closed(self) -> bool:
        """Whether waiting has come to an end because the agent stops."""
        return self._closed

    @property
    def has_waiters(self) -> bool:
        """Whether anybody waits for a commit."""
        return bool(self._waiters)

    @contextlib.contextmanager
    def waiter(self, partitions: Iterable[PartitionId]) -> Iterator[Waiter]:
        """A waiter that is woken by every commit to `partitions` from now on: look at them after this."""
        waiter = Waiter()
        wanted = set(partitions)
        for partition in wanted:
            self._waiters.setdefault(partition, set()).add(waiter)
        if self._closed:
            waiter.wake()
        try:
            yield waiter
        finally:
            for partition in wanted:
                waiters = self._waiters[partition]
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[partition]

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """This agent's own commits need no notification to be known."""
        del file
        self.wake(PartitionId(result.topic_id, result.partition) for result in results)

    def wake(self, partitions: Iterable[PartitionId]) -> None:
        """Wake those who wait for one of `partitions`."""
        for partition in partitions:
            for waiter in self._waiters.get(partition, ()):
                waiter.wake()

    def _on_commits(self, partitions: Iterable[PartitionId] | None) -> None:
        """Of commits of others: to these partitions, or to any."""
        if partitions is None:
            self._bounds.invalidate_all()
            self._wake_all()
        else:
            self._bounds.invalidate(partitions)
            self.wake(partitions)

    def _wake_all(self) -> None:
        self.wake(list(self._waiters))

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        failures = 0
        while not self._stopping.is_set():
            try:
                changed = self._notifications.wait(self._wait_seconds)
            except Exception as error:  # noqa: BLE001  # this thread must live as long as the agent
                failures += 1
                self._health.failed()
                _log_failure(error, failures)
                self._stopping.wait(self._retry.pause(min(failures, 16)))
                changed = None
            else:
                if failures:
                    _log.warning("the catalog tells of commits again", failures=failures)
                failures = 0
                self._health.succeeded()
            if changed is None or changed:
                loop.call_soon_threadsafe(self._on_commits, changed)
        self._notifications.close()


def _log_failure(error: Exception, failures: int) -> None:
    """Log the first failure in a row, the second, the fourth and so on: there may be one in each second."""
    if failures & (failures - 1):
        return
    reason = str(error) if isinstance(error, SiltstoneError) else repr(error)
    _log.warning("waiting for notifications of commits failed", reason=reason, failures=failures)
