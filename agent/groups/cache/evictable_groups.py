"""Groups in memory that may make room for others: those without members."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agent.groups.cache.cached_group import CachedGroup


class EvictableGroups:
    """Groups without members, in the order in which they were asked for. Belongs to the event loop.

    Groups have no way to say that they lost their last member, or got one: whoever holds them calls `note`
    after each request. One that has members again without that is found out when it is its turn.
    """

    def __init__(self) -> None:
        self._held: dict[str, CachedGroup] = {}

    def note(self, held: CachedGroup) -> None:
        """This group was asked for something."""
        self.remove(held)
        if held.group.is_empty:
            self._held[held.group.group_id] = held

    def remove(self, held: CachedGroup) -> None:
        """This group is not to be let go of, or not held any more."""
        if self._held.get(held.group.group_id) is held:
            del self._held[held.group.group_id]

    def oldest(self) -> CachedGroup | None:
        """The one that was asked for longest ago, and nothing is being written of; None if there is none."""
        for _ in range(len(self._held)):
            held = next(iter(self._held.values()))
            if _is_spare(held):
                return held
            self.note(held)
        return None

    def unused_since(self, moment: float) -> list[CachedGroup]:
        """Those that nobody asked for since then, by the monotonic clock, and no member is expected in."""
        return [
            held
            for held in self._held.values()
            if held.used < moment and held.group.next_deadline is None and _is_spare(held)
        ]


def _is_spare(held: CachedGroup) -> bool:
    return held.group.is_empty and not held.writing.locked()
