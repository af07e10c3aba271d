"""Heartbeats, health and supervision while the event loop that serves clients is blocked."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import httpx

from tests.agent.kafka.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.agent.kafka.brokers import BrokerThread

_TIMEOUT_SECONDS = 240


def test_heartbeats_and_probes_do_not_wait_for_the_event_loop(
    start_broker: Callable[..., BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.runtime.health.MAX_LOOP_LAG_SECONDS", 0.5)
    broker = start_broker(heartbeat_interval_ms=20)
    blocked, proceed = threading.Event(), threading.Event()

    def block() -> None:
        blocked.set()
        proceed.wait(_TIMEOUT_SECONDS)

    broker._loop.call_soon_threadsafe(block)
    assert blocked.wait(_TIMEOUT_SECONDS)
    try:
        before = broker.catalog_calls()["sessions.heartbeat"]
        until(lambda: broker.catalog_calls()["sessions.heartbeat"] >= before + 3)
        url = f"http://{broker.addresses['health']}"
        until(lambda: "event_loop" in httpx.get(f"{url}/livez", trust_env=False).json()["problems"])
        problems = set(httpx.get(f"{url}/livez", trust_env=False).json()["problems"])
    finally:
        proceed.set()
    assert problems == {"event_loop"}
    until(lambda: httpx.get(f"{url}/livez", trust_env=False).is_success)
