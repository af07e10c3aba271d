"""The agent's thread pools. Each kind of work has its own, so that no kind can starve another."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from agent.runtime.work_pool import WorkPool
from catalog.open import Reserve

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.settings import AgentSettings

_IDLE_POLL_SECONDS = 0.005


def _use_any(_: Reserve) -> None:
    """Let a thread use the connections that all share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """One thread pool for each kind of work.

    - `session` has one thread, so that a heartbeat never waits for other calls.
    - `catalog` is for requests of all kinds, `lookups` for bounds and extents of fetches, and `groups` for
      consumer groups. Their threads have separate connections, so that slow fetches delay no others.
    - `uploads` and `commits` have as many threads as there can be concurrent calls.
    - `hot_reads` and `cold_reads` are separate, so that catch-up reads do not delay reads at the tail.
    - `rendering` is separate from `kernels`, for which producers wait.
    - `users` is for looking up users, and `logins` for passwords and tokens.
    - `signing_keys` is for reading keys from a slow server.
    - `parsing` is for large requests, so that a client with many of them delays no others.
    """

    uploads: WorkPool
    commits: WorkPool
    session: WorkPool
    catalog: WorkPool
    lookups: WorkPool
    groups: WorkPool
    kernels: WorkPool
    rendering: WorkPool
    parsing: WorkPool
    disks: WorkPool
    hot_reads: WorkPool
    cold_reads: WorkPool
    users: WorkPool
    logins: WorkPool
    signing_keys: WorkPool

    @classmethod
    def open(cls, settings: AgentSettings, dedicate: Callable[[Reserve], None] = _use_any) -> Pools:
        """Open pools of the configured sizes; `dedicate` gives connections of the catalog to a thread."""
        files = settings.max_files_in_flight
        waiting = settings.max_waiting_calls
        return cls(
            uploads=WorkPool("uploads", threads=files, max_waiting=files),
            commits=WorkPool("commits", threads=1, max_waiting=1),
            session=WorkPool("session", threads=1, max_waiting=1),
            catalog=WorkPool("catalog", threads=settings.catalog_threads, max_waiting=waiting),
            lookups=WorkPool(
                "lookups",
                threads=settings.lookup_threads,
                max_waiting=waiting,
                prepare=partial(dedicate, Reserve.FETCHES),
            ),
            groups=WorkPool(
                "groups",
                threads=settings.group_threads,
                max_waiting=waiting,
                prepare=partial(dedicate, Reserve.GROUPS),
            ),
            kernels=WorkPool("kernels", threads=settings.kernel_threads, max_waiting=waiting),
            rendering=WorkPool("rendering", threads=settings.rendering_threads, max_waiting=waiting),
            parsing=WorkPool("parsing", threads=settings.parsing_threads, max_waiting=waiting),
            disks=WorkPool("disks", threads=settings.disk_threads, max_waiting=waiting),
            hot_reads=WorkPool("hot reads", threads=settings.hot_read_threads, max_waiting=waiting),
            cold_reads=WorkPool("cold reads", threads=settings.cold_read_threads, max_waiting=waiting),
            users=WorkPool(
                "users",
                threads=settings.authentication.threads,
                max_waiting=settings.authentication.max_waiting_logins,
            ),
            logins=WorkPool(
                "logins",
                threads=settings.authentication.threads,
                max_waiting=settings.authentication.max_waiting_logins,
            ),
            signing_keys=WorkPool("signing keys", threads=1, max_waiting=1),
        )

    def all(self) -> list[WorkPool]:
        """Return every pool."""
        return [getattr(self, field.name) for field in fields(self)]

    def close(self, *, wait: bool = True) -> None:
        """Cancel calls that have not started; with `wait`, block until the running ones end."""
        for pool in self.all():
            pool.close(wait=wait)

    async def idle(self) -> None:
        """Wait until no call is running."""
        while any(pool.pending for pool in self.all()):  # noqa: ASYNC110  # polls only while the process ends
            await asyncio.sleep(_IDLE_POLL_SECONDS)
