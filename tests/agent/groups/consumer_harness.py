"""A consumer group with a manual clock, and clients of the consumer protocol (KIP-848)."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from agent.group_settings import GroupSettings
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.messages import (
    EMPTY_ASSIGNMENT,
    LEAVE_EPOCH,
    Assignment,
    ConsumerHeartbeat,
    HeartbeatResponse,
)
from agent.groups.consumer.snapshot import decode_consumer_group, encode_consumer_group
from agent.groups.consumer.topics import TopicMetadata, TopicView
from agent.groups.consumer.validation import check_heartbeat
from agent.groups.errors import ErrorCode, GroupError
from catalog.model import PartitionId
from core.clock import ManualClock
from core.ids import SeededIds


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().rjust(16, b"\1"))


def partitions(name: str, *indexes: int) -> Assignment:
    return frozenset(PartitionId(topic_id(name), index) for index in indexes)


def topic_view(**partition_counts: int) -> TopicView:
    return TopicView({name: TopicMetadata(topic_id(name), count) for name, count in partition_counts.items()})


@dataclass
class ConsumerHarness:
    """A group, its clock and the topics that exist."""

    settings: GroupSettings = field(default_factory=GroupSettings)
    clock: ManualClock = field(default_factory=ManualClock)
    topics: TopicView = field(default_factory=lambda: topic_view(granite=4))

    def __post_init__(self) -> None:
        self.ids = SeededIds(1, self.clock)
        self.client_numbers = count(1)
        self.group = ConsumerGroup("g", settings=self.settings, clock=self.clock, ids=self.ids)

    def move_coordinator(self) -> None:
        """Let another coordinator load the group from its stored state."""
        stored = encode_consumer_group("g", self.group.snapshot())
        self.group.unload(ErrorCode.not_coordinator)
        self.group = ConsumerGroup(
            "g",
            settings=self.settings,
            clock=self.clock,
            ids=self.ids,
            snapshot=decode_consumer_group(stored),
        )

    def send(self, request: ConsumerHeartbeat) -> HeartbeatResponse:
        check_heartbeat("g", request)
        return self.group.heartbeat(request, self.topics)

    def advance(self, seconds: float) -> None:
        """Advance the clock in steps of half a second."""
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            self.group.expire()

    def new_client(self, *topics: str, **options: Any) -> ConsumerClient:  # noqa: ANN401  # any field of it
        """Return a client that has not joined yet."""
        member_id = f"member-{next(self.client_numbers)}"
        return ConsumerClient(self, member_id, frozenset(topics or ("granite",)), **options)

    def join_client(self, *topics: str, **options: Any) -> ConsumerClient:  # noqa: ANN401  # as above
        """Return a client that has joined."""
        client = self.new_client(*topics, **options)
        client.heartbeat()
        return client

    def stabilize(self, *clients: ConsumerClient) -> None:
        """Let clients send heartbeats and follow the responses until nothing changes."""
        for _ in range(20):
            before = [(client.epoch, client.owned) for client in clients]
            for client in clients:
                client.heartbeat()
            if before == [(client.epoch, client.owned) for client in clients]:
                return
        raise AssertionError("the group does not become stable")


@dataclass
class ConsumerClient:
    """A client that takes and revokes partitions at once and reports them with its next heartbeat."""

    harness: ConsumerHarness
    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    assignor: str | None = None
    regex: str | None = None
    principal: str = "User:ANONYMOUS"
    epoch: int = 0
    owned: Assignment = EMPTY_ASSIGNMENT
    is_joining: bool = True
    # After a lost response, clients send a full heartbeat and receive their whole assignment.
    sends_full_heartbeat: bool = False

    def request(self, *, with_owned: bool = True) -> ConsumerHeartbeat:
        if self.is_joining:
            return ConsumerHeartbeat(
                member_id=self.member_id,
                member_epoch=0,
                instance_id=self.instance_id,
                rebalance_timeout_ms=30_000,
                topics=self.topics,
                regex=self.regex,
                assignor=self.assignor,
                owned=EMPTY_ASSIGNMENT,
                principal=self.principal,
            )
        return ConsumerHeartbeat(
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            owned=self.owned if with_owned else None,
            rebalance_timeout_ms=30_000 if self.sends_full_heartbeat else -1,
            topics=self.topics if self.sends_full_heartbeat else None,
            principal=self.principal,
        )

    def receive(self, response: HeartbeatResponse) -> None:
        self.is_joining = self.sends_full_heartbeat = False
        self.member_id, self.epoch = response.member_id, response.member_epoch
        if response.assignment is not None:
            self.owned = response.assignment

    def heartbeat(self) -> HeartbeatResponse:
        response = self.harness.send(self.request())
        self.receive(response)
        return response

    def heartbeat_error(self) -> ErrorCode:
        """Send a heartbeat that must be refused; return the error code."""
        try:
            self.heartbeat()
        except GroupError as error:
            return error.code
        raise AssertionError("the heartbeat was accepted")

    def leave(self, epoch: int = LEAVE_EPOCH) -> HeartbeatResponse:
        response = self.harness.send(
            ConsumerHeartbeat(member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id)
        )
        self.reset()
        return response

    def reset(self) -> None:
        """Join again with the next heartbeat, as after a crash or when fenced."""
        self.epoch, self.owned, self.is_joining = 0, EMPTY_ASSIGNMENT, True
