"""Things to do when nothing else has happened by a certain time."""

from __future__ import annotations

import heapq
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from core.clock import Clock


class Deadlines:
    """At most one deadline for each key. Putting one off, as each heartbeat does, costs a look-up.

    The queue holds an entry per key that may be too early: when its time comes it is queued again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._actions: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._queue: list[tuple[float, int, Hashable]] = []
        self._queued: dict[Hashable, float] = {}
        self._numbers = count()

    def set(self, key: Hashable, after_ms: float, action: Callable[[], None]) -> None:
        """Do `action` in `after_ms` milliseconds, in place of what was set under this key before."""
        at = self._clock.monotonic() + after_ms / 1000
        self._actions[key] = (at, action)
        self._enqueue(key, at)

    def is_set(self, key: Hashable) -> bool:
        """Whether there is something to do under this key."""
        return key in self._actions

    def cancel(self, key: Hashable) -> None:
        """There is nothing to do under this key any more."""
        self._actions.pop(key, None)

    def clear(self) -> None:
        """There is nothing to do any more."""
        self._actions.clear()
        self._queue.clear()
        self._queued.clear()

    @property
    def earliest(self) -> float | None:
        """When to call `expire` next, in seconds of the monotonic clock; it may have nothing to do then."""
        return self._queue[0][0] if self._queue else None

    def expire(self) -> None:
        """Do what is due, in the order of time."""
        now = self._clock.monotonic()
        while self._queue and self._queue[0][0] <= now:
            queued_at, _, key = heapq.heappop(self._queue)
            if self._queued.get(key) != queued_at:
                continue  # an earlier entry took its place
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
            heapq.heappush(self._queue, (at, next(self._numbers), key))
