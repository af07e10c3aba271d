"""The epoch of the catalog's incarnation: the leader epoch of every partition in the object store.

An agent learns of a new epoch when its session is registered again, and from the bounds and extents that it
looks up. Its caches belong to a history that may have lost its last commits. So it drops them before it
serves anything of the new epoch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cluster.errors import ReadFailedError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from catalog.model import Extent, PartitionState


class CatalogEpoch:
    """The latest epoch that this agent knows. Belongs to the event loop."""

    def __init__(self) -> None:
        self.current = 0
        self._on_change: tuple[Callable[[], None], ...] = ()

    def on_change(self, *listeners: Callable[[], None]) -> None:
        """Call the listeners whenever the epoch rises; they drop what belongs to the earlier epoch."""
        self._on_change += listeners

    def observe(self, epoch: int) -> None:
        """Handle an epoch that the catalog has stated; earlier epochs are ignored."""
        if epoch > self.current:
            self.current = epoch
            for listener in self._on_change:
                listener()

    def observe_states(self, states: Iterable[PartitionState]) -> None:
        """Handle the epoch in the bounds of partitions in the object store."""
        self.observe(max((state.leader_epoch for state in states), default=0))

    def check_extents(self, extents: Iterable[Extent]) -> None:
        """Raise `ReadFailedError` if an extent is of a later epoch than the bounds that led to it."""
        epoch = max((extent.leader_epoch for extent in extents), default=0)
        if epoch > self.current:
            self.observe(epoch)
            raise ReadFailedError(
                f"the catalog has begun epoch {epoch} during the read", remedy="retry the read"
            )


class EpochInLoop:
    """The epoch for observers in other threads, who pass what they learn to its event loop."""

    def __init__(self, epoch: CatalogEpoch, loop: asyncio.AbstractEventLoop) -> None:
        self._epoch = epoch
        self._loop = loop

    def observe(self, epoch: int) -> None:
        """Let the event loop handle an epoch, before anything that it is asked for later."""
        self._loop.call_soon_threadsafe(self._epoch.observe, epoch)
