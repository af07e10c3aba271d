"""Waiting for what clients bring about in their own time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from agent.group_settings import GroupSettings

if TYPE_CHECKING:
    from collections.abc import Callable

# A test need not wait for members that will not come. Sessions are as long as ever: on a busy machine
# members are silent for seconds, and tests that wait for a session's end say so.
QUICK_GROUPS = GroupSettings(
    group_initial_rebalance_delay_ms=50,
    group_min_session_timeout_ms=500,
    group_consumer_heartbeat_interval_ms=200,
)


def until(reached: Callable[[], bool], *, seconds: float = 240.0) -> None:
    """Ask until it is so."""
    end = time.monotonic() + seconds
    while not reached():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.01)
