from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from agent.kafka.codec import Message, Struct
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    import pytest

    from tests.agent.kafka.brokers import BrokerThread


def test_the_loop_goes_on_while_a_message_is_learned(
    broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a version looks like is first read off many modules, in a thread that nobody waits for."""
    first_asked: dict[tuple[str, int], str] = {}
    learn = Message.of

    def noted(name: str, version: int) -> Message:
        first_asked.setdefault((name, version), threading.current_thread().name)
        return learn(name, version)

    monkeypatch.setattr(Message, "of", staticmethod(noted))
    with Wire(broker.host_and_port) as wire:
        for _ in range(2):
            # Asked by hand, for the test's own client must not be the first that wants to know.
            wire.send(bytes.fromhex("0000000a 0010 0002 00000001 ffff".replace(" ", "")))
            assert wire.receive() is not None
    assert first_asked["list_groups", 2].startswith("siltstone-rendering")


def test_an_answer_is_counted_by_api_and_version(broker: BrokerThread) -> None:
    """Each request adds one to the count of its API in its version."""
    with Wire(broker.host_and_port) as wire:
        for version in (0, 1, 1):
            wire.ask("list_groups", version, Struct())
    count = broker.agent.metrics.kafka_requests
    assert [count.labels("list_groups", version)._value.get() for version in "01"] == [1, 2]
