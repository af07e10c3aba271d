"""The usual requests of every installed client library, with two agents."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.agent.kafka.in_process_clients import consume
from tests.agent.kafka.in_process_clients import produce as produce_with_timestamps
from tests.agent.kafka.waiting import until
from tests.real_clients.client_driver import CLIENTS, LONG_SESSION_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real_clients.agents import Agents
    from tests.real_clients.client_driver import Driver

pytestmark = pytest.mark.integration
_MODES = [(0, False), (1, False), (-1, False), (-1, True)]


def test_records_are_read_back_with_every_codec_and_acknowledgement(agents: Agents, client: Driver) -> None:
    topic = agents.create_topic()
    traits = client("traits")
    sent: list[str] = []
    modes = [(codec, -1, False) for codec in traits["codecs"]]
    modes += [("none", acks, idempotent) for acks, idempotent in _MODES if acks in traits["acks"]]
    for codec, acks, idempotent in modes:
        values = [f"{codec}-{acks}-{idempotent}-{number}-{'x' * 100}" for number in range(20)]
        how = {"codec": codec, "acks": acks, "idempotent": idempotent}
        client("produce", bootstrap=agents.bootstrap, topic=topic, values=values, **how)
        sent += values
        consume(agents.bootstrap, topic, len(sent))  # acks=0 has no acknowledgement to wait for
    where = {"bootstrap": agents.bootstrap, "topic": topic, "group": agents.new_name()}
    read = client("read", offset=0, count=len(sent), **where)
    assert read == [[offset, value] for offset, value in enumerate(sent)]
    seen = consume(agents.bootstrap, topic, len(sent))
    assert [(message.key(), message.value()) for message in seen] == [(v.encode(), v.encode()) for v in sent]


def test_bounds_and_offsets_by_time_are_found(agents: Agents, client: Driver) -> None:
    topic = agents.create_topic()
    where = {"bootstrap": agents.bootstrap, "topic": topic}
    produce_with_timestamps(agents.bootstrap, topic, [(None, str(n).encode()) for n in range(5)])
    agents.delete_before(topic, 1)
    stamps = [message.timestamp()[1] for message in consume(agents.bootstrap, topic, 4, offset=1)]
    first_of_last = 1 + stamps.index(stamps[-1])
    assert client("bounds", timestamp=stamps[-1], **where) == [1, 5, first_of_last]
    read = client("read", offset=3, count=2, group=agents.new_name(), **where)
    assert read == [[3, "3"], [4, "4"]]


def test_a_compacted_topic_has_only_the_latest_records(agents: Agents, client: Driver) -> None:
    """It is read from its start, from an offset that became a hole, and by time. New records follow."""
    topic = agents.create_topic(cleanup_policy="compact")
    where = {"bootstrap": agents.bootstrap, "topic": topic}
    values = [f"value-{number}" for number in (0, 1, 2, 0, 1, 3, 4, 0, 0, 1)]
    client("produce", values=values, codec="none", acks=-1, idempotent=True, **where)
    before = client("read", offset=0, count=10, group=agents.new_name(), **where)
    assert before == [[offset, value] for offset, value in enumerate(values)]
    agents.run_compaction()
    client("produce", values=["late"], codec="none", acks=-1, idempotent=True, **where)
    kept = [[offset, values[offset]] for offset in (2, 5, 6, 8, 9)] + [[10, "late"]]
    assert client("read", offset=0, count=6, group=agents.new_name(), **where) == kept
    assert client("read", offset=3, count=5, group=agents.new_name(), **where) == kept[1:]
    assert client("bounds", timestamp=0, **where) == [0, 11, 2]


@pytest.mark.parametrize("name", CLIENTS)
def test_a_group_continues_at_an_offset_that_became_a_hole(
    agents: Agents, new_driver: Callable[[str], Driver], name: str
) -> None:
    topic, group = agents.create_topic(cleanup_policy="compact"), agents.new_name()
    keys = (b"0", b"1", b"2", b"0", b"1", b"3", b"0")
    produce_with_timestamps(agents.bootstrap, topic, [(key, b"%d" % n) for n, key in enumerate(keys)])
    loner = Consumer({"bootstrap.servers": agents.bootstrap, "group.id": group})
    loner.commit(offsets=[TopicPartition(topic, 0, 3)], asynchronous=False)
    loner.close()
    agents.run_compaction()
    member = new_driver(name)
    member("join", bootstrap=agents.bootstrap, topic=topic, group=group, session=LONG_SESSION_MS)

    def seen() -> list[tuple[int, int, str]]:
        """Return each record once: a member whose session expired reads uncommitted records again."""
        return list(dict.fromkeys(map(tuple, member("seen", topic=topic)["records"])))

    until(lambda: len(seen()) >= 3)
    assert seen() == [(0, 4, "4"), (0, 5, "5"), (0, 6, "6")]
    member("leave")


@pytest.mark.parametrize("name", [name for name in CLIENTS if name != "kcat"])
def test_topics_are_administered(agents: Agents, drivers: Callable[[str], Driver], name: str) -> None:
    found = drivers(name)("administer", bootstrap=agents.bootstrap, topic=agents.new_name())
    assert found == {"partitions": 3, "retention": "1000", "listed": True}
