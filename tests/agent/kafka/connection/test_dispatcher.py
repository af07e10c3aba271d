from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agent.kafka.codec import Message, Struct
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    import pytest

    from tests.agent.kafka.brokers import BrokerThread


def test_a_schema_is_loaded_in_a_thread(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop does not wait for the import of its many modules."""
    first_thread: dict[tuple[str, int], str] = {}
    load = Message.of

    def watched(name: str, version: int) -> Message:
        first_thread.setdefault((name, version), threading.current_thread().name)
        return load(name, version)

    monkeypatch.setattr(Message, "of", staticmethod(watched))
    with Wire(broker.host_and_port) as wire:
        for _ in range(2):
            # As raw bytes, because the test's client would load the schema itself.
            wire.send(bytes.fromhex("0000000a 0010 0002 00000001 ffff".replace(" ", "")))
            assert wire.receive() is not None
    assert first_thread["list_groups", 2].startswith("siltstone-rendering")


def test_requests_are_counted_by_api_and_version(broker: BrokerThread) -> None:
    with Wire(broker.host_and_port) as wire:
        for version in (0, 1, 1):
            wire.ask("list_groups", version, Struct())
    count = broker.agent.metrics.kafka_requests
    assert [count.labels("list_groups", version)._value.get() for version in "01"] == [1, 2]
