"""Keeps the authorizer's ACLs those of the catalog.

A notification of the catalog and a poll lead to the same statement, which returns the ACLs if their version
is another one. So a right that was revoked ends within the interval of the poll, even if a notification is
lost. While the catalog cannot be reached, the last ACLs hold, as on a Kafka broker without a controller.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Protocol

import structlog

from agent.runtime.health import start_essential_task, stop_task
from agent.runtime.metrics import SnapshotCollector
from agent.runtime.work_pool import WorkPool
from agent.security.acl_rules import AclIndex
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from uuid import UUID

    from agent.security.authorizer import Authorizer
    from catalog.security.acls import StoredAcls
    from core.clock import Clock
    from core.outage import Outage

_log = structlog.get_logger(__name__)


class AclSource(Protocol):
    """The catalog's ACLs."""

    def load(self, known: UUID | None = None, /) -> StoredAcls | None:
        """Return all ACLs; None if their version is still `known`."""
        ...


class AclFollower:
    """Follows the catalog's ACLs. Belongs to the event loop, except for `notify`."""

    def __init__(
        self,
        acls: AclSource,
        authorizer: Authorizer,
        *,
        clock: Clock,
        outage: Outage,
        poll_seconds: float,
    ) -> None:
        """Compare the ACLs every `poll_seconds`, or at once after `notify`."""
        self._acls = acls
        self.authorizer = authorizer
        self._pool = WorkPool("acls", threads=1, max_waiting=1)  # so that no other work delays it
        self._clock = clock
        self._outage = outage
        self._poll_seconds = poll_seconds
        self._loop = asyncio.get_running_loop()
        self._notified = asyncio.Event()
        self._loading = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._compared_at = clock.monotonic()

    @property
    def age_seconds(self) -> float:
        """Seconds since the ACLs were last known to be those of the catalog."""
        return self._clock.monotonic() - self._compared_at

    @property
    def is_running(self) -> bool:
        """Return True if the task that follows the catalog runs."""
        return self._task is not None and not self._task.done()

    async def start(self) -> None:
        """Load the ACLs, then follow them. An error leaves the agent without ACLs: it must not serve."""
        await self.refresh()
        _log.info("ACLs are enforced", acls=len(self.authorizer.index.bindings))
        self._task = start_essential_task(self._follow(), name="ACLs")

    async def stop(self) -> None:
        """Stop following."""
        await stop_task(self._task)
        self._pool.close(wait=False)

    def collector(self) -> SnapshotCollector:
        """Return a collector of the number of ACLs and of their age."""
        return SnapshotCollector(
            gauges={
                "siltstone_acls": (
                    "ACLs that the agent enforces",
                    lambda: len(self.authorizer.index.bindings),
                ),
                "siltstone_acl_age_seconds": (
                    "Time since the agent last compared its ACLs with the catalog, in seconds",
                    lambda: self.age_seconds,
                ),
            },
            counters={},
        )

    def notify(self) -> None:
        """Note that the ACLs may have changed. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._notified.set)

    async def refresh(self) -> None:
        """Load the ACLs if their version is another one; raise if the catalog does not respond."""
        async with self._loading:
            started = self._clock.monotonic()
            index = await self._pool.run(self._load)
            self._compared_at = started
            if index is not None:
                self.authorizer.replace(index)

    def _load(self) -> AclIndex | None:
        stored = self._acls.load(self.authorizer.index.version)
        return None if stored is None else AclIndex(stored.version, stored.bindings)

    async def _follow(self) -> None:
        pause = self._poll_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._notified.wait(), pause)
            self._notified.clear()
            self.authorizer.audit.report_suppressed()
            try:
                await self.refresh()
            except SiltstoneError as error:
                pause = self._outage.failed(error)
            else:
                self._outage.succeeded()
                pause = self._poll_seconds
