"""Notification of waiting fetches when any agent commits to their partitions.

One thread waits for the catalog's notifications, of those partitions that were read here within the last
minutes. They are only hints: a fetch that is woken reads again, and a waiting fetch also polls. A lost
notification therefore only costs time.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Protocol

from catalog.commit.notifications import MAX_REGISTERED
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from collections.abc import Set as AbstractSet

    from agent.cluster.commits import CommittedFile
    from agent.read.caches.catalog_cache import BoundsCache
    from catalog.model import SectionResult
    from core.outage import Outage


class CommitNotifications(Protocol):
    """The catalog's notifications of commits; used from one thread."""

    def wait(self, timeout: float, wanted: frozenset[PartitionId] | None, /) -> frozenset[PartitionId] | None:
        """Return what other agents changed of these partitions, after `timeout` seconds at the latest.

        All partitions are wanted if they are None. A result of None means that any partition may have
        commits, because notifications may be lost.
        """
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Waiter:
    """A fetch that waits for commits to some partitions; created by `CommitNotifier.waiter`."""

    def __init__(self) -> None:
        self.is_released = False  # the fetch may wait no longer: the agent stops, or a leader epoch began
        self._woken = asyncio.Event()
        self.woken_at: float | None = None  # the loop's time of the first wake-up since the last wait

    def wake(self) -> None:
        """Wake the fetch."""
        if not self._woken.is_set():
            self.woken_at = asyncio.get_running_loop().time()
            self._woken.set()

    def release(self) -> None:
        """Wake the fetch, which must end now."""
        self.is_released = True
        self.wake()

    async def wait(self, seconds: float) -> bool:
        """Wait for a wake-up or `seconds`; return True after a wake-up. It may be called again."""
        self.woken_at = self.woken_at if self._woken.is_set() else None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._woken.wait(), seconds)
        woken = self._woken.is_set()
        self._woken.clear()
        return woken


class CommitNotifier:
    """Wakes the waiters of partitions. Belongs to the event loop, except for its one thread.

    It remembers up to `max_wanted` partitions that were read. If there are more, it wants all.
    """

    def __init__(
        self,
        notifications: CommitNotifications,
        bounds: BoundsCache,
        *,
        outage: Outage,
        wait_seconds: float = 0.1,
        keep_seconds: float = 60.0,
        max_wanted: int = MAX_REGISTERED,
    ) -> None:
        """Take the notifications; a partition is wanted for `keep_seconds` after the last read of it."""
        self._notifications = notifications
        self._bounds = bounds
        self._outage = outage
        self._wait_seconds = wait_seconds
        self._keep_seconds = keep_seconds
        self._waiters: dict[PartitionId, set[Waiter]] = {}
        self._max_wanted = max_wanted
        self._wanted: set[PartitionId] | None = set()  # None: all
        self._recent: set[PartitionId] | None = set()  # read since the last call of `_forget`; None: too many
        self._lock = threading.Lock()  # of `_wanted`
        self._forgetting: asyncio.TimerHandle | None = None
        self._stopping = threading.Event()
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that waits for notifications."""
        self._forgetting = asyncio.get_running_loop().call_later(self._keep_seconds, self._forget)
        self._thread = threading.Thread(
            target=self._listen,
            args=(asyncio.get_running_loop(),),
            name="siltstone-commit-watch",
            daemon=True,
        )
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Return True if the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    async def stop(self) -> None:
        """Release every waiter and stop the thread."""
        self.close()
        if self._forgetting is not None:
            self._forgetting.cancel()
        self._stopping.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def close(self) -> None:
        """Release every waiter, and let no fetch wait from now on."""
        self._closed = True
        self.release_waiters()

    def release_waiters(self) -> None:
        """End the waits of all present fetches."""
        for waiters in self._waiters.values():
            for waiter in waiters:
                waiter.release()

    @property
    def has_waiters(self) -> bool:
        """Return True if any fetch waits."""
        return bool(self._waiters)

    @contextlib.contextmanager
    def waiter(self, partitions: Iterable[PartitionId]) -> Iterator[Waiter]:
        """Yield a waiter that every later commit to `partitions` wakes. Read them after this call."""
        waiter = Waiter()
        wanted = set(partitions)
        for partition in wanted:
            self._waiters.setdefault(partition, set()).add(waiter)
        self._want(wanted)
        if self._closed:
            waiter.release()
        try:
            yield waiter
        finally:
            for partition in wanted:
                waiters = self._waiters[partition]
                waiters.discard(waiter)
                if not waiters:
                    del self._waiters[partition]

    def committed(self, file: CommittedFile, results: Sequence[SectionResult]) -> None:
        """Wake the waiters of this agent's own commits."""
        del file
        self.wake(PartitionId(result.topic_id, result.partition) for result in results)

    def wake(self, partitions: Iterable[PartitionId]) -> None:
        """Wake the waiters of `partitions`."""
        for partition in partitions:
            for waiter in self._waiters.get(partition, ()):
                waiter.wake()

    def _want(self, partitions: set[PartitionId]) -> None:
        """Let the thread listen to these partitions, which takes `wait_seconds` at most if they are new."""
        if self._recent is not None:
            self._recent = self._bounded(self._recent, partitions)
        if self._wanted is not None and not partitions <= self._wanted:
            with self._lock:
                self._wanted = self._bounded(self._wanted, partitions)

    def _forget(self) -> None:
        """Stop listening to partitions that no client has read since the last call."""
        recent = self._recent if self._recent is None else self._bounded(self._recent, self._waiters.keys())
        with self._lock:
            self._wanted, self._recent = recent, set()
        self._forgetting = asyncio.get_running_loop().call_later(self._keep_seconds, self._forget)

    def _bounded(self, some: set[PartitionId], more: AbstractSet[PartitionId]) -> set[PartitionId] | None:
        """Add partitions to a set and return it; None if they are too many."""
        some |= more
        return some if len(some) <= self._max_wanted else None

    def _on_commits(self, changed: frozenset[PartitionId] | None) -> None:
        """Handle commits of other agents to some partitions, or to any (None)."""
        if changed is None:
            self._bounds.invalidate_all()
            self.wake(list(self._waiters))
            return
        self._bounds.invalidate(changed)
        self.wake(changed)

    def _listen(self, loop: asyncio.AbstractEventLoop) -> None:
        while not self._stopping.is_set():
            with self._lock:
                wanted = None if self._wanted is None else frozenset(self._wanted)
            try:
                changed = self._notifications.wait(self._wait_seconds, wanted)
            except Exception as error:  # noqa: BLE001  # the thread must survive any failure
                self._stopping.wait(self._outage.failed(error))
                changed = None
            else:
                self._outage.succeeded()
            if changed is None or changed:
                loop.call_soon_threadsafe(self._on_commits, changed)
        self._notifications.close()
