"""Timers for the deadlines of groups."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.groups.cache.cached_group import CachedGroup
    from core.clock import Clock

# A busy event loop is always late by some milliseconds. A delay above this bound is an outage of the agent.
_TOLERATED_DELAY_SECONDS = 0.1


class GroupTimers:
    """Event-loop timers, one per group, for its next deadline. Belongs to the event loop.

    If the loop itself was blocked, heartbeats that arrived in time are still unread when a timer fires. Then
    `on_deadline` is called later by as long as the loop was late, but by `max_grace_ms` at most: no member
    sends heartbeats less often than the shortest session timeout.
    """

    def __init__(
        self, on_deadline: Callable[[CachedGroup], None], *, clock: Clock, max_grace_ms: int
    ) -> None:
        self._on_deadline = on_deadline
        self._clock = clock
        self._max_grace_seconds = max_grace_ms / 1000

    def schedule(self, cached: CachedGroup) -> None:
        """Set the timer for the group's next deadline, if it has one."""
        deadline = cached.group.next_deadline
        if deadline is None or cached.group.is_dead:
            return
        if cached.timer is not None:
            if cached.timer_deadline <= deadline:
                return
            cached.timer.cancel()
        loop = asyncio.get_running_loop()
        due = loop.time() + max(deadline - self._clock.monotonic(), 0.0)
        cached.timer_deadline = deadline
        cached.timer = loop.call_at(due, partial(self._fire, cached, due))

    def _fire(self, cached: CachedGroup, due: float) -> None:
        loop = asyncio.get_running_loop()
        delay = min(loop.time() - due, self._max_grace_seconds)
        if delay > _TOLERATED_DELAY_SECONDS:
            cached.timer = loop.call_later(delay, self._expire, cached)
        else:
            self._expire(cached)

    def _expire(self, cached: CachedGroup) -> None:
        cached.timer = None
        self._on_deadline(cached)
