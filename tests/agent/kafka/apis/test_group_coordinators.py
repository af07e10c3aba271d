"""Committed offsets and members survive when the coordinator of a group is killed, stopped or fenced."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.errors import ErrorCode, GroupError
from agent.kafka.codec import Struct
from tests.agent.kafka.coordinators import NO_EXPIRY, group_of, groups_of, kill, two_brokers
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from agent.groups.consumer.messages import HeartbeatResponse
    from tests.agent.kafka.brokers import BrokerThread

_QUICK = {**NO_EXPIRY, "groups": QUICK_GROUPS, "stop_timeout_ms": 5000}


@pytest.fixture
def brokers(start_broker: Callable[..., BrokerThread]) -> list[BrokerThread]:
    """Two agents that see each other as brokers."""
    return two_brokers(lambda: start_broker(**_QUICK))


class Member:
    """A consumer that counts its assignments."""

    def __init__(self, brokers: list[BrokerThread], group_id: str) -> None:
        self.assignments = 0
        self.consumer = Consumer(
            {
                "bootstrap.servers": ",".join(broker.address for broker in brokers),
                "group.id": group_id,
                "session.timeout.ms": 60_000,
                "heartbeat.interval.ms": 200,
                "enable.auto.commit": False,
            }
        )
        self.consumer.subscribe(["granite"], on_assign=self._assigned)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.assignments += 1
        consumer.assign(partitions)

    @property
    def has(self) -> int:
        self.consumer.poll(0.05)
        return len(self.consumer.assignment())

    def commit(self, offset: int) -> bool:
        """Commit an offset of partition 0. Return False if the commit must be retried."""
        try:
            self.consumer.commit(offsets=[TopicPartition("granite", 0, offset)], asynchronous=False)
        except KafkaException as error:
            if error.args[0].name() in {"ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID"}:
                raise
            self.consumer.poll(0.05)
            return False
        return True

    def committed(self) -> int:
        """Return the committed offset of partition 0; retry until there is a response."""
        found: list[TopicPartition] = []

        def has_response() -> bool:
            with suppress(KafkaException):
                found.extend(self.consumer.committed([TopicPartition("granite", 0)], timeout=5))
            return bool(found)

        until(has_response)
        return int(found[0].offset)


@pytest.fixture
def join(brokers: list[BrokerThread]) -> Iterator[Callable[[str], Member]]:
    """Creates members that leave at the end of the test."""
    members: list[Member] = []

    def new(group_id: str) -> Member:
        members.append(Member(brokers, group_id))
        return members[-1]

    yield new
    for member in members:
        member.consumer.close()


def test_members_continue_under_a_new_coordinator_without_a_rebalance(
    brokers: list[BrokerThread], join: Callable[[str], Member]
) -> None:
    """The old coordinator was killed. The new one reads members, generation and offsets from the catalog."""
    brokers[0].create_topic("granite", 2)
    member = join(group_of(brokers[0]))
    until(lambda: member.has == 2)
    until(lambda: member.commit(41))
    kill(brokers[0])
    until(lambda: member.commit(42))
    assert member.committed() == 42
    assert member.assignments == 1


def test_every_agent_returns_committed_offsets(
    brokers: list[BrokerThread], join: Callable[[str], Member]
) -> None:
    """A member whose coordinator changes meanwhile gets its offsets; librdkafka would not ask again."""
    brokers[0].create_topic("granite", 2)
    group_id = group_of(brokers[0])
    member = join(group_id)
    until(lambda: member.has == 2)
    until(lambda: member.commit(41))
    topics = [Struct(name="granite", partition_indexes=[0])]
    sender = {"member_id": "a member", "member_epoch": 3}
    for broker in brokers:
        with Wire(broker.host_and_port) as wire:
            old = wire.ask("offset_fetch", 7, Struct(group_id=group_id, topics=topics)).topics
            wanted = Struct(group_id=group_id, topics=topics, **sender)
            (new,) = wire.ask("offset_fetch", 9, Struct(groups=[wanted])).groups
        for found in (old, new.topics):
            assert [part.committed_offset for each in found for part in each.partitions] == [41]


def test_a_group_rebalances_under_a_new_coordinator(
    brokers: list[BrokerThread], join: Callable[[str], Member]
) -> None:
    brokers[0].create_topic("granite", 2)
    group_id = group_of(brokers[0])
    member = join(group_id)
    until(lambda: member.has == 2)
    until(lambda: member.commit(7))
    brokers[0].stop()
    other = join(group_id)
    until(lambda: (member.has, other.has) == (1, 1))
    assert other.committed() == 7


def test_an_agent_that_lost_its_claim_on_a_group_cannot_commit(
    brokers: list[BrokerThread], join: Callable[[str], Member]
) -> None:
    """If two agents both act as coordinator, the catalog accepts only commits under the later claim."""
    brokers[0].create_topic("granite", 2)
    group_id = group_of(brokers[0])
    member = join(group_id)
    until(lambda: member.has == 2)
    until(lambda: member.commit(1))
    agent = brokers[0].agent
    before = groups_of(brokers[0]).cache._groups[group_id].claim_id
    stolen = brokers[0].catalog.groups.claim(group_id, agent.resources.ids.new_uuid(), create=False)
    assert stolen is not None
    assert stolen.generation == 1
    # The client looks up the coordinator again. It is still this agent, which claims the group a second time.
    until(lambda: member.commit(2))
    assert groups_of(brokers[0]).cache._groups[group_id].claim_id != before
    assert member.committed() == 2
    assert member.assignments == 1


async def _beat(broker: BrokerThread, group_id: str, member_id: str, epoch: int) -> HeartbeatResponse:
    """Send a heartbeat of a member of a consumer group. Epoch 0 joins the group."""
    joins = {"rebalance_timeout_ms": 60_000, "topics": frozenset({"granite"}), "owned": EMPTY_ASSIGNMENT}
    request = ConsumerHeartbeat(member_id=member_id, member_epoch=epoch, **({} if epoch else joins))  # type: ignore[arg-type]  # as the keys say
    return await groups_of(broker).consumers.heartbeat(group_id, request)


def test_a_paused_agent_drops_the_groups_that_others_claimed(
    brokers: list[BrokerThread],
) -> None:
    """It rejects old members before it notices that it was fenced, and after it has a new session."""
    paused, other = brokers
    paused.create_topic("granite", 2)
    group_id = group_of(paused)
    before = paused.run(_beat(paused, group_id, "before", 0))
    resumed = threading.Event()
    for loop in (paused._loop, paused.agent._control._loop):
        loop.call_soon_threadsafe(resumed.wait)
    try:
        paused.catalog.sessions.fence(paused.agent.session.session_id)
        until(lambda: other.run(groups_of(other).ownership.is_own(group_id)))
        other.run(_beat(other, group_id, "before", -1))  # the member leaves
        joined = other.run(_beat(other, group_id, "meanwhile", 0))
        cast("Any", groups_of(paused).ownership._brokers)._until = 0.0  # its list of brokers is stale
        first = asyncio.run_coroutine_threadsafe(
            _beat(paused, group_id, "before", before.member_epoch), paused._loop
        )
    finally:
        resumed.set()
    refused = first.exception(60)
    assert isinstance(refused, GroupError)
    assert refused.code is ErrorCode.not_coordinator
    paused.run(paused.agent._control.run(paused.agent.session._send_heartbeat()))
    until(lambda: paused.run(groups_of(paused).ownership.is_own(group_id)))
    again = paused.run(_beat(paused, group_id, "meanwhile", joined.member_epoch))
    assert again.member_epoch == joined.member_epoch
    with pytest.raises(GroupError) as unknown:
        paused.run(_beat(paused, group_id, "before", before.member_epoch))
    assert unknown.value.code is ErrorCode.unknown_member_id
