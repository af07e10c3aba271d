"""Sessions and their heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.errors import SessionFencedError
from core.clock import ManualClock

if TYPE_CHECKING:
    from core.clock import Clock
    from tests.catalog.scene import Scene


def test_sessions_without_a_recent_heartbeat_are_fenced(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    sessions = scene.catalog.sessions
    other = scene.ids.new_uuid()
    sessions.register(other, "another")
    clock.advance(20)
    assert sessions.heartbeat(other) == 20_000
    assert sessions.heartbeat(other) == 0
    assert sessions.fence_silent(10_000, 5_000) == []
    clock.advance(5)
    assert sessions.fence_silent(10_000, 5_000) == [scene.session_id]
    assert [session.session_id for session in sessions.active()] == [other]
    silent = sessions.get(scene.session_id)
    assert silent is not None
    assert silent.state == "fenced"
    with pytest.raises(SessionFencedError):
        sessions.heartbeat(scene.session_id)
    sessions.end(other)
    ended = sessions.get(other)
    assert ended is not None
    assert ended.state == "ended"
    assert sessions.get(scene.ids.new_uuid()) is None
