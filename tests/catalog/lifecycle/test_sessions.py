"""Sessions and their heartbeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.errors import SessionFencedError
from catalog.model import Broker, Endpoint
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


def test_a_broker_has_an_address_for_each_listener(scene: Scene) -> None:
    brokers, sessions = scene.catalog.brokers, scene.catalog.sessions
    endpoints = (Endpoint("PLAINTEXT", "h", 1), Endpoint("INNER", "inner", 2))
    sessions.register(
        scene.ids.new_uuid(), "several", Broker(node_id=7, host="h", port=1, endpoints=endpoints)
    )
    (found,) = brokers.live(10_000)
    assert found.endpoints == endpoints
    on_inner = found.seen_on("INNER")
    assert on_inner is not None
    assert (on_inner.node_id, on_inner.host, on_inner.port) == (7, "inner", 2)
    assert found.seen_on("OUTER") is None


def test_a_broker_of_the_previous_release_is_on_the_plain_listener_only(scene: Scene) -> None:
    scene.catalog.sessions.register(scene.ids.new_uuid(), "old", Broker(node_id=7, host="h", port=1))
    (found,) = scene.catalog.brokers.live(10_000)
    assert found.seen_on("PLAINTEXT") == found
    assert found.seen_on("INNER") is None
