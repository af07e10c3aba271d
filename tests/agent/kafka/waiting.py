"""Waiting for effects of clients, and group settings that keep the wait short."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.group_settings import GroupSettings

if TYPE_CHECKING:
    from collections.abc import Callable

# Short delays before a rebalance. Session timeouts keep their defaults: on a busy machine, members may send
# no heartbeat for seconds. Tests that wait for the end of a session set a shorter one.
QUICK_GROUPS = GroupSettings(
    group_initial_rebalance_delay_ms=50,
    group_min_session_timeout_ms=500,
    group_consumer_heartbeat_interval_ms=200,
)


def until(reached: Callable[[], bool], *, seconds: float = 240.0, pause: float = 0.01) -> None:
    """Wait until `reached` returns True, with a pause in seconds between its calls."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "the condition was not reached in time"
        time.sleep(pause)
