"""Fetch sessions (KIP-227): what they remember, whom they make room for, and how requests see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from agent.kafka.apis.records.fetch import session_request
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode, KafkaError
from agent.kafka.fetch_sessions import FetchSessions, PartitionStatus
from core.clock import ManualClock
from core.ids import SeededIds
from tests.agent.kafka.in_process_clients import PATIENCE_SECONDS, produce
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


class Desk:
    """The sessions on a clock that tests move; partitions are answered with what `state` says of them."""

    def __init__(self, **changes: int) -> None:
        self.clock = ManualClock()
        limits = {"max_sessions": 2, "max_partitions": 100, "evict_ms": 120_000, **changes}
        self.sessions = FetchSessions(clock=self.clock, ids=SeededIds(1, self.clock), **limits)
        self.state: dict[int, PartitionStatus] = {}

    def begin(self, asked: Struct, *, by_id: bool = False) -> FetchContext:
        context = self.sessions.find(session_request(asked, by_id=by_id))
        context.begin()
        return context

    def fetch(self, asked: Struct, *, by_id: bool = False) -> tuple[int, list[int]]:
        """(session, partitions that are answered)."""
        context = self.begin(asked, by_id=by_id)
        partitions = [partition for _, partition in context.wanted]
        seen = [
            self.state.get(partition, PartitionStatus(0, 0, has_records=False)) for partition in partitions
        ]
        session_id, news = context.complete(seen)
        told = [True] * len(partitions) if news is None else news
        return session_id, [each for each, is_news in zip(partitions, told, strict=True) if is_news]

    def refused(self, asked: Struct, *, by_id: bool = False) -> ErrorCode:
        with pytest.raises(KafkaError) as refused:
            self.fetch(asked, by_id=by_id)
        return refused.value.code


def test_what_was_found_is_current_until_another_request_comes() -> None:
    """Who begins later than it was found must look again when the session went on, or is no more."""
    desk = Desk()
    session_id, _ = desk.fetch(request(1, 2))
    first, second = (
        desk.sessions.find(session_request(request(session_id=session_id, epoch=1), by_id=False))
        for _ in range(2)
    )
    assert [first.is_current, second.is_current] == [True, True]
    first.begin()
    assert [second.is_current] == [False]
    third = desk.sessions.find(session_request(request(session_id=session_id, epoch=2), by_id=False))
    assert [third.is_current] == [True]
    desk.sessions.remove(session_id)
    assert [third.is_current] == [False]


def test_after_the_first_answer_only_news_are_told() -> None:
    """Records, a moved log and errors are news; errors stay news until they are over."""
    desk = Desk()
    session_id, told = desk.fetch(request(0, 1, 2))
    assert told == [0, 1, 2]
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
    for epoch, (state, news) in enumerate(steps, start=1):
        desk.state = state
        again, told = desk.fetch(request(session_id=session_id, epoch=epoch))
        assert (again, sorted(told)) == (session_id, news)


def test_partitions_are_added_changed_and_forgotten() -> None:
    desk = Desk()
    session_id, _ = desk.fetch(request(0, 1))
    assert desk.fetch(request(2, session_id=session_id, epoch=1)) == (session_id, [2])
    context = desk.begin(request(1, session_id=session_id, epoch=2, forget=(0,), offset=7))
    assert [(number, wanted.offset) for (_, number), wanted in context.wanted.items()] == [(1, 7), (2, 0)]
    assert desk.sessions.partition_count == 2


def test_a_partition_that_had_records_is_read_last_the_next_time() -> None:
    desk = Desk()
    session_id, _ = desk.fetch(request(0, 1, 2))
    desk.state = {0: PartitionStatus(1, 0, has_records=True), 1: PartitionStatus(1, 0, has_records=False)}
    desk.fetch(request(session_id=session_id, epoch=1))
    context = desk.begin(request(session_id=session_id, epoch=2))
    assert [number for _, number in context.wanted] == [1, 2, 0]
    desk.state = {number: PartitionStatus(1, 0, has_records=True) for number in range(3)}
    desk.fetch(request(session_id=session_id, epoch=3))
    assert [number for _, number in desk.begin(request(session_id=session_id, epoch=4)).wanted] == [1, 2, 0]


def test_sessions_end_when_the_client_or_nothing_is_left() -> None:
    desk = Desk()
    first, _ = desk.fetch(request(0))
    assert desk.fetch(request(0, session_id=first, epoch=-1)) == (0, [0])
    second, _ = desk.fetch(request(0))
    assert desk.fetch(request(session_id=second, epoch=1, forget=(0,))) == (0, [])
    third, _ = desk.fetch(request(0))
    desk.fetch(request(0, session_id=third, epoch=0))
    assert desk.refused(request(session_id=third, epoch=1)) is ErrorCode.fetch_session_id_not_found
    assert (len(desk.sessions), desk.sessions.partition_count) == (1, 1)


def test_sessions_refuse_what_is_out_of_step() -> None:
    desk = Desk()
    session_id, _ = desk.fetch(request(0))
    assert desk.refused(request(session_id=77, epoch=1)) is ErrorCode.fetch_session_id_not_found
    wrong = request(session_id=session_id, epoch=2)
    assert desk.refused(wrong) is ErrorCode.invalid_fetch_session_epoch
    named = request(session_id=session_id, epoch=1)
    assert desk.refused(named, by_id=True) is ErrorCode.fetch_session_topic_id_error
    context = desk.begin(named)
    desk.fetch(request(session_id=session_id, epoch=2))
    with pytest.raises(KafkaError, match="another request"):
        context.complete([])


def test_what_was_only_looked_at_has_changed_nothing() -> None:
    """A request may be looked at, and refused or taken later: until it begins, the session is as it was."""
    desk = Desk()
    session_id, _ = desk.fetch(request(0, 1))
    looked = session_request(request(2, session_id=session_id, epoch=1, forget=(0,)), by_id=False)
    assert [number for _, number in desk.sessions.find(looked).wanted] == [1, 2]
    desk.sessions.find(session_request(request(5), by_id=False))
    assert (len(desk.sessions), desk.sessions.partition_count) == (1, 2)
    context = desk.begin(request(session_id=session_id, epoch=1))
    assert [number for _, number in context.wanted] == [0, 1]


def test_a_session_that_is_evicted_while_its_request_waits_is_answered_once_more() -> None:
    """As Kafka has it: the next request is told that the session is gone."""
    desk = Desk(max_sessions=1)
    session_id, _ = desk.fetch(request(0))
    context = desk.begin(request(session_id=session_id, epoch=1))
    desk.clock.advance(121)
    desk.fetch(request(0))
    assert context.complete([PartitionStatus(7, 0, has_records=True)]) == (session_id, [True])
    assert desk.refused(request(session_id=session_id, epoch=2)) is ErrorCode.fetch_session_id_not_found


def test_a_session_that_was_not_used_since_it_had_its_time_stays() -> None:
    """Whether a session may go for a larger one is noted when it is used, as in Kafka's cache."""
    desk = Desk(max_sessions=1)
    session_id, _ = desk.fetch(request(0))
    desk.clock.advance(100)
    desk.fetch(request(session_id=session_id, epoch=1))
    desk.clock.advance(100)
    assert desk.fetch(request(0, 1))[0] == 0
    desk.fetch(request(session_id=session_id, epoch=2))
    assert desk.fetch(request(0, 1))[0] != 0


def test_epochs_go_round() -> None:
    """After the largest epoch comes 1: 0 and -1 mean something else."""
    desk = Desk()
    session_id, _ = desk.fetch(request(0))
    desk.sessions._sessions[session_id].epoch = 2**31 - 1
    desk.fetch(request(session_id=session_id, epoch=2**31 - 1))
    assert desk.fetch(request(session_id=session_id, epoch=1))[0] == session_id


def test_new_sessions_take_the_place_of_those_nobody_uses_or_that_save_less() -> None:
    """Young and busy ones stay: then the new one is served without a session."""
    desk = Desk()
    first, _ = desk.fetch(request(0, 1))
    second, _ = desk.fetch(request(0, 1, 2))
    assert desk.fetch(request(0, 1, 2, 3))[0] == 0
    for epoch in (1, 2, 3):
        desk.clock.advance(50)
        desk.fetch(request(session_id=first, epoch=epoch))
        desk.fetch(request(session_id=second, epoch=epoch))
    assert desk.fetch(request(0, 1))[0] == 0
    third, _ = desk.fetch(request(0, 1, 2, 3))
    assert third
    assert desk.refused(request(session_id=first, epoch=4)) is ErrorCode.fetch_session_id_not_found
    desk.clock.advance(121)
    assert desk.fetch(request(0))[0]
    assert (desk.sessions.evictions, len(desk.sessions)) == (2, 2)


def test_the_partitions_in_all_sessions_are_bounded() -> None:
    desk = Desk(max_partitions=4)
    session_id, _ = desk.fetch(request(0, 1))
    assert desk.fetch(request(0, 1, 2))[0] == 0
    grown = request(2, 3, 4, session_id=session_id, epoch=1)
    assert desk.refused(grown) is ErrorCode.fetch_session_id_not_found
    assert desk.sessions.partition_count == 0


def ask(wire: Wire, version: int, session: tuple[int, int], **fields: Any) -> Struct:  # noqa: ANN401  # any field
    given = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "topics": [], **fields}
    return wire.ask(
        "fetch", version, Struct(replica_id=-1, session_id=session[0], session_epoch=session[1], **given)
    )


@pytest.mark.parametrize("version", [7, 12, 13, 18])
def test_requests_use_sessions(broker: BrokerThread, version: int) -> None:
    """Full, incremental, out of step, and closed, by name as by identifier."""
    topic = broker.create_topic("granite", 2)
    named: dict[str, Any] = {"topic_id": topic.topic_id} if version >= 13 else {"topic": "granite"}
    wanted = [Struct(partition=each, fetch_offset=0, partition_max_bytes=1 << 20) for each in (0, 1)]
    topics = [Struct(**named, partitions=wanted)]
    with Wire(broker.host_and_port) as wire:
        first = ask(wire, version, (0, 0), topics=topics)
        assert len(first.responses[0].partitions) == 2
        quiet = ask(wire, version, (first.session_id, 1))
        assert (quiet.session_id, quiet.responses) == (first.session_id, [])
        produce(broker.address, "granite", [(None, b"x")])
        news = ask(wire, version, (first.session_id, 2), min_bytes=1, max_wait=20_000)
        assert [each.partition_index for each in news.responses[0].partitions] == [0]
        late = ask(wire, version, (first.session_id, 2))
        assert (late.error_code, late.session_id) == (ErrorCode.invalid_fetch_session_epoch, 0)
        other = 12 if version >= 13 else 13
        mixed = ask(wire, other, (first.session_id, 3))
        assert mixed.error_code == ErrorCode.fetch_session_topic_id_error
        closed = ask(wire, version, (first.session_id, -1))
        assert (closed.error_code, closed.session_id) == (ErrorCode.none, 0)
        gone = ask(wire, version, (first.session_id, 3))
        assert gone.error_code == ErrorCode.fetch_session_id_not_found
    metrics = broker.agent.metrics.render().decode()
    assert "siltstone_fetch_sessions 0.0" in metrics


def test_a_topic_that_is_deleted_and_one_that_nobody_knows_are_told_once_more(broker: BrokerThread) -> None:
    """Identifiers that name nothing are UNKNOWN_TOPIC_ID in each answer, and the rest is served."""
    topic = broker.create_topic("granite")
    unknown = broker.agent._ids.new_uuid()
    topics = [
        Struct(topic_id=each, partitions=[Struct(partition=0, fetch_offset=0, partition_max_bytes=1)])
        for each in (topic.topic_id, unknown)
    ]
    with Wire(broker.host_and_port) as wire:
        session_id = ask(wire, 13, (0, 0), topics=topics).session_id
        for epoch in (1, 2):
            (told,) = ask(wire, 13, (session_id, epoch)).responses
            assert (told.topic_id, told.partitions[0].error_code) == (unknown, ErrorCode.unknown_topic_id)
        broker.catalog.topics.delete("granite")
        epochs = iter(range(3, 1000))
        until(lambda: len(ask(wire, 13, (session_id, next(epochs))).responses) == 2)


def test_clients_go_on_when_their_session_is_gone(start_broker: Callable[..., BrokerThread]) -> None:
    """More consumers than there is room for sessions: everyone reads everything."""
    broker = start_broker(max_fetch_sessions=1)
    broker.create_topic("granite")
    settings = {"bootstrap.servers": broker.address, "group.id": "unused"}
    consumers = [Consumer(settings) for _ in range(3)]
    for consumer in consumers:
        consumer.assign([TopicPartition("granite", 0, 0)])
    for number in range(3):
        produce(broker.address, "granite", [(None, str(number).encode())])
        for consumer in consumers:
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None
            assert message.value() == str(number).encode()
        broker.agent.fetch_sessions._sessions.clear()
    for consumer in consumers:
        consumer.close()
