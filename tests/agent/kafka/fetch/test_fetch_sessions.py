"""Fetch sessions (KIP-227): their state, their eviction, and requests that use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from agent.kafka.apis.records.fetch import session_request
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from agent.kafka.fetch_sessions import FetchSessions, PartitionStatus
from agent.security.identity import ANONYMOUS, Principal
from core.clock import ManualClock
from core.ids import SeededIds
from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, produce
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kafka.fetch_sessions import FetchContext
    from tests.agent.kafka.brokers import BrokerThread


def request(
    *partitions: int, session_id: int = 0, epoch: int = 0, forget: tuple[int, ...] = (), offset: int = 0
) -> Struct:
    wanted = [
        Struct(partition=each, fetch_offset=offset, partition_max_bytes=9, current_leader_epoch=-1)
        for each in partitions
    ]
    return Struct(
        session_id=session_id,
        session_epoch=epoch,
        topics=[Struct(topic="t", topic_id=None, partitions=wanted)] if wanted else [],
        forgotten_topics_data=[Struct(topic="t", topic_id=None, partitions=list(forget))],
    )


class SessionScene:
    """Fetch sessions with a manual clock; `state` gives the status of each partition."""

    def __init__(self, **changes: int) -> None:
        self.clock = ManualClock()
        limits = {"max_sessions": 2, "max_partitions": 100, "evict_ms": 120_000, **changes}
        self.sessions = FetchSessions(clock=self.clock, ids=SeededIds(1, self.clock), **limits)
        self.state: dict[int, PartitionStatus] = {}
        self.owner = ANONYMOUS

    def begin(self, wanted: Struct, *, by_id: bool = False) -> FetchContext:
        context = self.sessions.find(session_request(wanted, self.owner, by_id=by_id))
        context.begin()
        return context

    def fetch(self, wanted: Struct, *, by_id: bool = False) -> tuple[int, list[int]]:
        """Return the session id and the partitions in the response."""
        context = self.begin(wanted, by_id=by_id)
        partitions = [partition for _, partition in context.wanted]
        statuses = [
            self.state.get(partition, PartitionStatus(0, 0, has_records=False)) for partition in partitions
        ]
        session_id, changed = context.complete(statuses)
        included = [True] * len(partitions) if changed is None else changed
        return session_id, [
            each for each, is_included in zip(partitions, included, strict=True) if is_included
        ]

    def rejection(self, wanted: Struct, *, by_id: bool = False) -> ErrorCode:
        with pytest.raises(KafkaError) as rejection:
            self.fetch(wanted, by_id=by_id)
        return rejection.value.code


def test_a_fetch_context_is_current_until_another_request_begins() -> None:
    """It is not current either if the session was removed."""
    scene = SessionScene()
    session_id, _ = scene.fetch(request(1, 2))
    first, second = (
        scene.sessions.find(session_request(request(session_id=session_id, epoch=1), ANONYMOUS, by_id=False))
        for _ in range(2)
    )
    assert [first.is_current, second.is_current] == [True, True]
    first.begin()
    assert [second.is_current] == [False]
    third = scene.sessions.find(
        session_request(request(session_id=session_id, epoch=2), ANONYMOUS, by_id=False)
    )
    assert [third.is_current] == [True]
    scene.sessions.remove(session_id)
    assert [third.is_current] == [False]


def test_incremental_responses_contain_only_changed_partitions() -> None:
    """Records, moved offsets and errors are changes. An error is one until it is over."""
    scene = SessionScene()
    session_id, included = scene.fetch(request(0, 1, 2))
    assert included == [0, 1, 2]
    failed = PartitionStatus(-1, -1, has_records=False, failed=True)
    steps: list[tuple[dict[int, PartitionStatus], list[int]]] = [
        ({}, []),
        ({1: PartitionStatus(5, 0, has_records=False)}, [1]),
        ({1: PartitionStatus(5, 0, has_records=False)}, []),
        ({1: PartitionStatus(5, 3, has_records=False)}, [1]),
        ({1: PartitionStatus(5, 3, has_records=True)}, [1]),
        ({2: failed}, [1, 2]),
        ({2: failed}, [2]),
        ({}, [2]),
        ({0: PartitionStatus(0, 0, has_records=False, redirected=True)}, [0]),
    ]
    for epoch, (state, changed) in enumerate(steps, start=1):
        scene.state = state
        again, included = scene.fetch(request(session_id=session_id, epoch=epoch))
        assert (again, sorted(included)) == (session_id, changed)


def test_a_session_does_not_exist_for_another_principal() -> None:
    """It can neither be used nor ended, and its epoch and its way to name topics stay unknown."""
    scene = SessionScene()
    session_id, _ = scene.fetch(request(0, 1))
    scene.owner = Principal("User", "eve")
    for epoch in (1, 2):
        for by_id in (False, True):
            wanted = request(session_id=session_id, epoch=epoch)
            assert scene.rejection(wanted, by_id=by_id) == ErrorCode.fetch_session_id_not_found
    for epoch in (-1, 0):
        scene.fetch(request(5, session_id=session_id, epoch=epoch))
    scene.owner = ANONYMOUS
    assert scene.fetch(request(session_id=session_id, epoch=1)) == (session_id, [])


def test_a_request_adds_changes_and_forgets_partitions() -> None:
    scene = SessionScene()
    session_id, _ = scene.fetch(request(0, 1))
    assert scene.fetch(request(2, session_id=session_id, epoch=1)) == (session_id, [2])
    context = scene.begin(request(1, session_id=session_id, epoch=2, forget=(0,), offset=7))
    assert [(number, wanted.offset) for (_, number), wanted in context.wanted.items()] == [(1, 7), (2, 0)]
    assert scene.sessions.partition_count == 2


def test_a_partition_with_records_is_read_last_next_time() -> None:
    scene = SessionScene()
    session_id, _ = scene.fetch(request(0, 1, 2))
    scene.state = {0: PartitionStatus(1, 0, has_records=True), 1: PartitionStatus(1, 0, has_records=False)}
    scene.fetch(request(session_id=session_id, epoch=1))
    context = scene.begin(request(session_id=session_id, epoch=2))
    assert [number for _, number in context.wanted] == [1, 2, 0]
    scene.state = {number: PartitionStatus(1, 0, has_records=True) for number in range(3)}
    scene.fetch(request(session_id=session_id, epoch=3))
    assert [number for _, number in scene.begin(request(session_id=session_id, epoch=4)).wanted] == [1, 2, 0]


def test_a_session_ends_on_request_or_without_partitions() -> None:
    scene = SessionScene()
    first, _ = scene.fetch(request(0))
    assert scene.fetch(request(0, session_id=first, epoch=-1)) == (0, [0])
    second, _ = scene.fetch(request(0))
    assert scene.fetch(request(session_id=second, epoch=1, forget=(0,))) == (0, [])
    third, _ = scene.fetch(request(0))
    scene.fetch(request(0, session_id=third, epoch=0))
    assert scene.rejection(request(session_id=third, epoch=1)) is ErrorCode.fetch_session_id_not_found
    assert (len(scene.sessions), scene.sessions.partition_count) == (1, 1)


def test_requests_with_a_wrong_session_or_epoch_are_rejected() -> None:
    scene = SessionScene()
    session_id, _ = scene.fetch(request(0))
    assert scene.rejection(request(session_id=77, epoch=1)) is ErrorCode.fetch_session_id_not_found
    wrong = request(session_id=session_id, epoch=2)
    assert scene.rejection(wrong) is ErrorCode.invalid_fetch_session_epoch
    named = request(session_id=session_id, epoch=1)
    assert scene.rejection(named, by_id=True) is ErrorCode.fetch_session_topic_id_error
    context = scene.begin(named)
    scene.fetch(request(session_id=session_id, epoch=2))
    with pytest.raises(KafkaError, match="another request"):
        context.complete([])


def test_finding_a_session_does_not_change_it() -> None:
    """The session changes only when the request begins."""
    scene = SessionScene()
    session_id, _ = scene.fetch(request(0, 1))
    extending = session_request(
        request(2, session_id=session_id, epoch=1, forget=(0,)), ANONYMOUS, by_id=False
    )
    assert [number for _, number in scene.sessions.find(extending).wanted] == [1, 2]
    scene.sessions.find(session_request(request(5), ANONYMOUS, by_id=False))
    assert (len(scene.sessions), scene.sessions.partition_count) == (1, 2)
    context = scene.begin(request(session_id=session_id, epoch=1))
    assert [number for _, number in context.wanted] == [0, 1]


def test_a_request_of_an_evicted_session_is_completed() -> None:
    """As in Kafka, only the next request gets FETCH_SESSION_ID_NOT_FOUND."""
    scene = SessionScene(max_sessions=1)
    session_id, _ = scene.fetch(request(0))
    context = scene.begin(request(session_id=session_id, epoch=1))
    scene.clock.advance(121)
    scene.fetch(request(0))
    assert context.complete([PartitionStatus(7, 0, has_records=True)]) == (session_id, [True])
    assert scene.rejection(request(session_id=session_id, epoch=2)) is ErrorCode.fetch_session_id_not_found


def test_a_session_not_used_since_the_eviction_time_is_not_evicted_for_a_larger_one() -> None:
    """As in Kafka, a session becomes evictable for a larger one only when it is used."""
    scene = SessionScene(max_sessions=1)
    session_id, _ = scene.fetch(request(0))
    scene.clock.advance(100)
    scene.fetch(request(session_id=session_id, epoch=1))
    scene.clock.advance(100)
    assert scene.fetch(request(0, 1))[0] == 0
    scene.fetch(request(session_id=session_id, epoch=2))
    assert scene.fetch(request(0, 1))[0] != 0


def test_epochs_wrap_around() -> None:
    """The largest epoch is followed by 1, because 0 and -1 have other meanings."""
    scene = SessionScene()
    session_id, _ = scene.fetch(request(0))
    scene.sessions._sessions[session_id].epoch = 2**31 - 1
    scene.fetch(request(session_id=session_id, epoch=2**31 - 1))
    assert scene.fetch(request(session_id=session_id, epoch=1))[0] == session_id


def test_a_new_session_evicts_an_unused_or_a_smaller_old_one() -> None:
    """New and busy sessions stay; the client is served without a session then."""
    scene = SessionScene()
    first, _ = scene.fetch(request(0, 1))
    second, _ = scene.fetch(request(0, 1, 2))
    assert scene.fetch(request(0, 1, 2, 3))[0] == 0
    for epoch in (1, 2, 3):
        scene.clock.advance(50)
        scene.fetch(request(session_id=first, epoch=epoch))
        scene.fetch(request(session_id=second, epoch=epoch))
    assert scene.fetch(request(0, 1))[0] == 0
    third, _ = scene.fetch(request(0, 1, 2, 3))
    assert third
    assert scene.rejection(request(session_id=first, epoch=4)) is ErrorCode.fetch_session_id_not_found
    scene.clock.advance(121)
    assert scene.fetch(request(0))[0]
    assert (scene.sessions.evictions, len(scene.sessions)) == (2, 2)


def test_the_partitions_in_all_sessions_are_bounded() -> None:
    scene = SessionScene(max_partitions=4)
    session_id, _ = scene.fetch(request(0, 1))
    assert scene.fetch(request(0, 1, 2))[0] == 0
    larger = request(2, 3, 4, session_id=session_id, epoch=1)
    assert scene.rejection(larger) is ErrorCode.fetch_session_id_not_found
    assert scene.sessions.partition_count == 0


def ask(wire: Wire, version: int, session: tuple[int, int], **fields: Any) -> Struct:  # noqa: ANN401  # any field
    given = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": [], **fields}
    return wire.ask(
        "fetch", version, Struct(replica_id=-1, session_id=session[0], session_epoch=session[1], **given)
    )


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_requests_use_sessions_in_every_version(broker: BrokerThread, version: int) -> None:
    """Full, incremental, invalid and closing requests, by topic name and by id."""
    topic = broker.create_topic("granite", 2)
    named: dict[str, Any] = {"topic_id": topic.topic_id} if version >= 13 else {"topic": "granite"}
    wanted = [Struct(partition=each, fetch_offset=0, partition_max_bytes=1 << 20) for each in (0, 1)]
    topics = [Struct(**named, partitions=wanted)]
    with Wire(broker.host_and_port) as wire:
        first = ask(wire, version, (0, 0), topics=topics)
        assert len(first.responses[0].partitions) == 2
        unchanged = ask(wire, version, (first.session_id, 1))
        assert (unchanged.session_id, unchanged.responses) == (first.session_id, [])
        produce(broker.address, "granite", [(None, b"x")])
        changed = ask(wire, version, (first.session_id, 2), min_bytes=1, max_wait=20_000)
        assert [each.partition_index for each in changed.responses[0].partitions] == [0]
        repeated = ask(wire, version, (first.session_id, 2))
        assert (repeated.error_code, repeated.session_id) == (ErrorCode.invalid_fetch_session_epoch, 0)
        other = 12 if version >= 13 else 13
        mixed = ask(wire, other, (first.session_id, 3))
        assert mixed.error_code == ErrorCode.fetch_session_topic_id_error
        closed = ask(wire, version, (first.session_id, -1))
        assert (closed.error_code, closed.session_id) == (ErrorCode.none, 0)
        missing = ask(wire, version, (first.session_id, 3))
        assert missing.error_code == ErrorCode.fetch_session_id_not_found
    metrics = broker.agent.metrics.render().decode()
    assert "siltstone_fetch_sessions 0.0" in metrics


def test_deleted_and_unknown_topics_are_in_every_response(broker: BrokerThread) -> None:
    """Unknown ids get UNKNOWN_TOPIC_ID each time, and other topics are served."""
    topic = broker.create_topic("granite")
    unknown = broker.agent.resources.ids.new_uuid()
    topics = [
        Struct(topic_id=each, partitions=[Struct(partition=0, fetch_offset=0, partition_max_bytes=1)])
        for each in (topic.topic_id, unknown)
    ]
    with Wire(broker.host_and_port) as wire:
        session_id = ask(wire, 13, (0, 0), topics=topics).session_id
        for epoch in (1, 2):
            (included,) = ask(wire, 13, (session_id, epoch)).responses
            assert (included.topic_id, included.partitions[0].error_code) == (
                unknown,
                ErrorCode.unknown_topic_id,
            )
        broker.catalog.topics.delete("granite")
        epochs = iter(range(3, 1000))
        until(lambda: len(ask(wire, 13, (session_id, next(epochs))).responses) == 2)


def test_clients_continue_after_they_lose_their_session(start_broker: Callable[..., BrokerThread]) -> None:
    """There are more consumers than sessions, and each reads everything."""
    broker = start_broker(max_fetch_sessions=1)
    broker.create_topic("granite")
    settings = {"bootstrap.servers": broker.address, "group.id": "unused"}
    consumers = [Consumer(settings) for _ in range(3)]
    for consumer in consumers:
        consumer.assign([TopicPartition("granite", 0, 0)])
    for number in range(3):
        produce(broker.address, "granite", [(None, str(number).encode())])
        for consumer in consumers:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None
            assert message.value() == str(number).encode()
        broker.agent.kafka.fetch_sessions._sessions.clear()
    for consumer in consumers:
        consumer.close()
