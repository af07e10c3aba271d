"""Lookup of the bounds and extents that a fetch needs, from the cache or from the catalog."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from agent.cluster.errors import ReadFailedError
from agent.read.caches.catalog_cache import ExtentCache
from agent.read.fetch_result import offset_error
from catalog.model import PartitionId
from catalog.topics.extents import ExtentRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.cluster.catalog_epoch import CatalogEpoch
    from agent.read.caches.catalog_cache import BoundsCache
    from agent.read.fetch_plan import Cursor, PartitionFetch
    from agent.runtime.work_pool import WorkPool
    from agent.settings import AgentSettings
    from catalog.model import Extent, PartitionState
    from core.clock import Clock


class BoundsTable(Protocol):
    """The catalog's bounds of partitions."""

    def states(self, partitions: list[PartitionId], /) -> Sequence[PartitionState]:
        """Return the state of each partition that exists."""
        ...


class ExtentTable(Protocol):
    """The catalog's extents."""

    def from_offsets(
        self, wanted: Sequence[ExtentRequest], /, *, max_bytes: int, max_extents: int, max_extents_of_one: int
    ) -> Sequence[Sequence[Extent]]:
        """Return live extents of each partition in offset order, with one statement.

        The first extent of a partition covers the offset. Earlier partitions have priority.
        """
        ...


class LogLookup:
    """The catalog's metadata of logs, for fetches. Belongs to the event loop."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        bounds: BoundsTable,
        extents: ExtentTable,
        bounds_cache: BoundsCache,
        pool: WorkPool,
        clock: Clock,
        epoch: CatalogEpoch,
        is_current: Callable[[int], bool],
    ) -> None:
        """`is_current` says whether the catalog continues the history of an epoch; it blocks."""
        self._settings = settings
        self._bounds = bounds
        self._extents = extents
        self.bounds_cache = bounds_cache
        self._extent_cache = ExtentCache(
            clock, ttl_ms=settings.extent_cache_ms, limit=settings.max_cached_extents
        )
        self._pool = pool
        self._clock = clock
        self._epoch = epoch
        self._is_current = is_current

    async def state(self, partition: PartitionId) -> PartitionState | None:
        """Return the current state of the partition, or None if it does not exist."""
        states = await self._pool.run(partial(self._bounds.states, [partition]))
        self._epoch.observe_states(states)
        return states[0] if states else None

    def _cached_state(self, fetch: PartitionFetch) -> PartitionState | None:
        """Return the cached state, unless only the catalog knows where this fetch ends."""
        state = None if fetch.topic.config.compacts else self.bounds_cache.get(fetch.partition_id)
        return None if state is not None and state.has_transactions and fetch.committed_only else state

    async def find_bounds(self, cursors: Sequence[Cursor], *, use_cache: bool) -> None:
        """Set the states of the cursors, or their errors.

        Cached bounds never cause an error: a reader that comes from another agent may be ahead of the
        notification of that agent's commit.
        """
        unknown = []
        for cursor in cursors:
            cursor.state = self._cached_state(cursor.fetch) if use_cache else None
            if cursor.state is None or offset_error(cursor) is not None:
                unknown.append(cursor)
        if unknown:
            ids = [cursor.fetch.partition_id for cursor in unknown]
            with self.bounds_cache.lookup(ids) as undisturbed:
                found = await self._pool.run(partial(self._bounds.states, ids))
                self._epoch.observe_states(found)  # before the bounds of the new epoch are used
                self.bounds_cache.store(found, undisturbed)
            states = {PartitionId(state.topic_id, state.partition): state for state in found}
            for cursor in unknown:
                cursor.state = states.get(cursor.fetch.partition_id)
        for cursor in cursors:
            cursor.error = offset_error(cursor)
        await self._verify_ends(cursors)

    async def _verify_ends(self, cursors: Sequence[Cursor]) -> None:
        """Replace the errors of positions beyond the end if the catalog continues on another history.

        Between a failover that lost commits and the new epoch, the log ends below positions that clients have
        reached. They must not reset these: in the new epoch they learn where the logs diverge.
        """
        ends = [
            (cursor, cursor.state.leader_epoch)
            for cursor in cursors
            if cursor.state is not None and cursor.served.next_offset > cursor.state.high_watermark
        ]
        if not ends or await self._pool.run(partial(self._is_current, min(epoch for _, epoch in ends))):
            return
        for cursor, epoch in ends:
            cursor.error = ReadFailedError(
                f"the catalog does not continue epoch {epoch} of {cursor.fetch.partition_name}",
                remedy="retry the read",
            )

    async def find_extents(self, cursors: Sequence[Cursor], left: int, *, may_query: bool) -> bool:
        """Set the extents from the positions of the cursors on; return True if that took a query.

        `left` is the size that the response may still have. The cursors share it in their order, by the sizes
        of known extents. The query looks up what a response can have of the others, for the first of them.
        """
        unknown, rest = self._without_extents(cursors, left)
        is_full = rest <= 0 and rest < left
        if not (unknown and may_query) or is_full:
            return False
        looked_up, epoch = self._clock.monotonic(), self._epoch.current
        some = unknown[: self._settings.max_lookup_extents]
        await self._pool.run(partial(self._look_up, some, rest))
        self._epoch.check_extents(extent for cursor in some for extent in cursor.extents)
        for cursor in some:
            if cursor.has_aborted:
                cursor.used += cursor.extents
            if epoch == self._epoch.current and cursor.extents and not cursor.needs_extents:
                self._extent_cache.store(cursor.fetch.partition_id, cursor.extents, looked_up)
        return True

    def _without_extents(self, cursors: Sequence[Cursor], left: int) -> tuple[list[Cursor], int]:
        """Return the cursors without known extents, and what those before the first of them leave."""
        unknown = []
        for cursor in cursors:
            if not cursor.needed_extents():
                cursor.extents = ()
                if not cursor.needs_extents:
                    cursor.extents = self._extent_cache.get(
                        cursor.fetch.partition_id, cursor.served.next_offset
                    )
            if not cursor.extents:
                unknown.append(cursor)
            elif not unknown:
                left -= cursor.take_share(left)
        return unknown, left

    def _look_up(self, cursors: Sequence[Cursor], max_bytes: int) -> None:
        """Query the extents of the cursors; blocking.

        Extents that are cached are looked up for some more bytes. All partitions together share these.
        """
        uncached = sum(cursor.needs_extents for cursor in cursors)
        ahead_bytes = self._settings.extent_lookup_bytes // max(len(cursors) - uncached, 1)
        wanted = [
            ExtentRequest(
                cursor.fetch.partition_id,
                cursor.served.next_offset,
                cursor.fetch.max_bytes,
                0 if cursor.needs_extents else ahead_bytes,
            )
            for cursor in cursors
        ]
        found = self._extents.from_offsets(
            wanted,
            max_bytes=max_bytes,
            max_extents=self._settings.max_lookup_extents,
            max_extents_of_one=self._settings.max_fetch_extents,
        )
        for cursor, extents in zip(cursors, found, strict=True):
            cursor.extents = extents

    def clear(self) -> None:
        """Remove all cached bounds and extents, because a new epoch began."""
        self.bounds_cache.invalidate_all()
        self._extent_cache.clear()

    def invalidate_extents(self, cursors: Sequence[Cursor]) -> None:
        """Forget extents of the cursors, because one of them refers to a deleted object."""
        for cursor in cursors:
            cursor.extents = ()
            self._extent_cache.invalidate(cursor.fetch.partition_id)
