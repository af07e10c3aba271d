"""Deadlines of one group: actions that run unless something cancels or postpones them in time."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from core.clock import Clock

_MIN_QUEUE: Final = 100


class Deadlines:
    """At most one deadline per key.

    Each heartbeat postpones a deadline, so postponing costs one dictionary lookup. The queue keeps the entry
    with the earlier time; when that time comes, the key is queued again for its current deadline.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._actions: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._queue: list[tuple[float, int, Hashable]] = []
        self._queued: dict[Hashable, float] = {}
        self._sequence = count()

    def set(self, key: Hashable, after_ms: float, action: Callable[[], None]) -> None:
        """Run `action` in `after_ms` milliseconds. Replaces the deadline that this key had."""
        at = self._clock.monotonic() + after_ms / 1000
        self._actions[key] = (at, action)
        self._enqueue(key, at)

    def is_set(self, key: Hashable) -> bool:
        """Return True if this key has a deadline."""
        return key in self._actions

    def cancel(self, key: Hashable) -> None:
        """Remove the deadline of this key, if it has one."""
        self._actions.pop(key, None)
        if len(self._queue) > 2 * len(self._actions) + _MIN_QUEUE:
            self._drop_cancelled()

    def _drop_cancelled(self) -> None:
        """Remove the entries without an action. Otherwise they stay until their times come."""
        self._queue = [
            entry
            for entry in self._queue
            if entry[2] in self._actions and self._queued.get(entry[2]) == entry[0]
        ]
        heapq.heapify(self._queue)
        self._queued = {key: queued_at for queued_at, _, key in self._queue}

    def postpone(self, seconds: float) -> None:
        """Postpone every deadline."""
        self._actions = {key: (at + seconds, action) for key, (at, action) in self._actions.items()}

    def clear(self) -> None:
        """Remove all deadlines."""
        self._actions.clear()
        self._queue.clear()
        self._queued.clear()

    @property
    def earliest(self) -> float | None:
        """When to call `expire` next, in seconds of the monotonic clock. The call may find nothing due."""
        return self._queue[0][0] if self._queue else None

    def expire(self) -> None:
        """Run the actions that are due, in the order of their deadlines."""
        now = self._clock.monotonic()
        while self._queue and self._queue[0][0] <= now:
            queued_at, _, key = heapq.heappop(self._queue)
            if self._queued.get(key) != queued_at:
                continue  # a later call to `set` queued this key at an earlier time
            del self._queued[key]
            if key not in self._actions:
                continue
            at, action = self._actions[key]
            if at > now:
                self._enqueue(key, at)
            else:
                del self._actions[key]
                action()

    def _enqueue(self, key: Hashable, at: float) -> None:
        queued_at = self._queued.get(key)
        if queued_at is None or at < queued_at:
            self._queued[key] = at
            heapq.heappush(self._queue, (at, next(self._sequence), key))
