"""One limit in bytes for the entries of several caches."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable


class CacheMemory:
    """The sizes of cached entries, least recently used first. Belongs to the event loop.

    Above the limit, it removes entries in this order. Each entry has a function `drop`, which removes it from
    its cache.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.size = 0
        self._entries: OrderedDict[Hashable, tuple[int, Callable[[], None]]] = OrderedDict()

    def add(self, entry: Hashable, size: int, drop: Callable[[], None]) -> None:
        """Add a new entry that is not larger than the limit."""
        self._entries[entry] = size, drop
        self.size += size
        while self.size > self.limit:
            _, (size, drop) = self._entries.popitem(last=False)
            self.size -= size
            drop()

    def remove(self, entry: Hashable) -> None:
        """Remove an entry that its cache has dropped."""
        size, _ = self._entries.pop(entry)
        self.size -= size

    def use(self, entry: Hashable) -> None:
        """Make an entry the most recently used one."""
        self._entries.move_to_end(entry)

    def expire(self, entry: Hashable) -> None:
        """Make an entry the next one to evict."""
        self._entries.move_to_end(entry, last=False)
