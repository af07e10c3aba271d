"""Where the offsets of a fetch lie: what is known already, or a look-up in the catalog."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

from agent.read.catalog_cache import ExtentCache
from agent.read.fetch_result import offset_error
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.read.catalog_cache import BoundsCache
    from agent.read.fetch_plan import Cursor, PartitionFetch
    from agent.runtime.work_pool import WorkPool
    from agent.settings import AgentSettings
    from catalog.model import Extent, PartitionState
    from core.clock import Clock


class BoundsTable(Protocol):
    """Where partitions begin and end."""

    def states(self, partitions: list[PartitionId], /) -> Sequence[PartitionState]:
        """The state of each of `partitions` that exists."""
        ...


class ExtentTable(Protocol):
    """Where offsets lie."""

    def extents(
        self, topic_id: UUID, partition: int, offset: int, *, max_extents: int, max_bytes: int
    ) -> Sequence[Extent]:
        """Live extents in offset order; the first one holds `offset`."""
        ...


class LogLookup:
    """The catalog's log, as fetches see it. Belongs to the event loop."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        bounds: BoundsTable,
        extents: ExtentTable,
        bounds_cache: BoundsCache,
        pool: WorkPool,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._bounds = bounds
        self._extents = extents
        self.bounds_cache = bounds_cache
        self._extent_cache = ExtentCache(
            clock, ttl_ms=settings.extent_cache_ms, limit=settings.max_cached_extents
        )
        self._pool = pool
        self._clock = clock

    async def state(self, partition: PartitionId) -> PartitionState | None:
        """The partition's state now, or None when there is no such partition."""
        states = await self._pool.run(partial(self._bounds.states, [partition]))
        return states[0] if states else None

    def _cached_state(self, fetch: PartitionFetch) -> PartitionState | None:
        return None if fetch.topic.config.compacts else self.bounds_cache.get(fetch.partition_id)

    async def find_bounds(self, cursors: Sequence[Cursor], *, use_cache: bool) -> None:
        """Set the cursors' states, or what is wrong with them.

        Nobody is refused by what was only believed: a reader that comes from another agent may be further
        than the word of that one's commits.
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
                self.bounds_cache.store(found, undisturbed)
            states = {PartitionId(state.topic_id, state.partition): state for state in found}
            for cursor in unknown:
                cursor.state = states.get(cursor.fetch.partition_id)
        for cursor in cursors:
            cursor.error = offset_error(cursor)

    async def find_extents(self, cursors: Sequence[Cursor], max_bytes: int) -> None:
        """The extents from where the cursors stand: those that are known, or a look-up of some more."""
        unknown = []
        for cursor in cursors:
            cursor.extents = ()
            if not cursor.fetch.topic.config.compacts:
                cursor.extents = self._extent_cache.get(cursor.fetch.partition_id, cursor.served.next_offset)
            if not cursor.extents:
                unknown.append(cursor)
        if not unknown:
            return
        looked_up = self._clock.monotonic()
        await self._pool.run(partial(self._look_up, unknown, max_bytes))
        for cursor in unknown:
            if not cursor.fetch.topic.config.compacts:
                self._extent_cache.store(cursor.fetch.partition_id, cursor.extents, looked_up)

    def _look_up(self, cursors: Sequence[Cursor], max_bytes: int) -> None:
        """Bring extents up to date; blocking."""
        for cursor in cursors:
            partition = cursor.fetch.partition_id
            most = min(cursor.fetch.max_bytes, max_bytes)
            if not cursor.fetch.topic.config.compacts:
                most = max(most, self._settings.extent_lookup_bytes)
            cursor.extents = self._extents.extents(
                partition.topic_id,
                partition.partition,
                cursor.served.next_offset,
                max_extents=self._settings.max_fetch_extents,
                max_bytes=most,
            )

    def invalidate_extents(self, cursors: Sequence[Cursor]) -> None:
        """They named an object that is gone."""
        for cursor in cursors:
            self._extent_cache.invalidate(cursor.fetch.partition_id)
