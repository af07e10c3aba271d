"""A consumer group on a clock that tests move, with members as clients of KIP-848 behave."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any
from uuid import UUID

from agent.group_settings import GroupSettings
from agent.groups.consumer.group import ConsumerGroup
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, Assignment, ConsumerHeartbeat, HeartbeatResponse
from agent.groups.consumer.snapshot import decode_consumer_group, encode_consumer_group
from agent.groups.consumer.topics import TopicMetadata, TopicView
from agent.groups.consumer.validation import check_heartbeat
from agent.groups.errors import ErrorCode, GroupError
from catalog.model import PartitionId
from core.clock import ManualClock
from core.ids import SeededIds


def topic_id(name: str) -> UUID:
    return UUID(bytes=name.encode().rjust(16, b"\1"))


def parts(name: str, *numbers: int) -> Assignment:
    return frozenset(PartitionId(topic_id(name), number) for number in numbers)


def view(**partition_counts: int) -> TopicView:
    return TopicView({name: TopicMetadata(topic_id(name), count) for name, count in partition_counts.items()})


@dataclass
class ConsumerStage:
    """The group, its clock and the topics that there are."""

    settings: GroupSettings = field(default_factory=GroupSettings)
    clock: ManualClock = field(default_factory=ManualClock)
    topics: TopicView = field(default_factory=lambda: view(granite=4))

    def __post_init__(self) -> None:
        self.ids = SeededIds(1, self.clock)
        self.numbers = count(1)
        self.group = ConsumerGroup("g", settings=self.settings, clock=self.clock, ids=self.ids)

    def move_coordinator(self) -> None:
        """Let another coordinator take the group from what was stored."""
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

    def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds * 2)):
            self.clock.advance(0.5)
            self.group.expire()

    def member(self, *topics: str, **options: Any) -> StageMember:  # noqa: ANN401  # any field of it
        """A client that has not joined yet."""
        return StageMember(self, f"member-{next(self.numbers)}", frozenset(topics or ("granite",)), **options)

    def joined(self, *topics: str, **options: Any) -> StageMember:  # noqa: ANN401  # as above
        member = self.member(*topics, **options)
        member.beat()
        return member

    def settle(self, *members: StageMember) -> None:
        """Let members send heartbeats, and do what they are told, until nothing changes any more."""
        for _ in range(20):
            before = [(member.epoch, member.owned) for member in members]
            for member in members:
                member.beat()
            if before == [(member.epoch, member.owned) for member in members]:
                return
        raise AssertionError("the group does not come to rest")


@dataclass
class StageMember:
    """A client: it gives partitions up and takes them when told to, and says so with the next heartbeat."""

    stage: ConsumerStage
    member_id: str
    topics: frozenset[str]
    instance_id: str | None = None
    assignor: str | None = None
    regex: str | None = None
    epoch: int = 0
    owned: Assignment = EMPTY_ASSIGNMENT
    is_joining: bool = True
    # After an answer that did not come clients say everything, and so hear everything.
    says_everything: bool = False

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
            )
        return ConsumerHeartbeat(
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance_id,
            owned=self.owned if with_owned else None,
            rebalance_timeout_ms=30_000 if self.says_everything else -1,
            topics=self.topics if self.says_everything else None,
        )

    def take(self, answer: HeartbeatResponse) -> None:
        self.is_joining = self.says_everything = False
        self.member_id, self.epoch = answer.member_id, answer.member_epoch
        if answer.assignment is not None:
            self.owned = answer.assignment

    def beat(self) -> HeartbeatResponse:
        answer = self.stage.send(self.request())
        self.take(answer)
        return answer

    def refused(self) -> ErrorCode:
        """The code with which the next heartbeat is refused."""
        try:
            self.beat()
        except GroupError as error:
            return error.code
        raise AssertionError("the heartbeat was taken")

    def leave(self, epoch: int = -1) -> HeartbeatResponse:
        answer = self.stage.send(
            ConsumerHeartbeat(member_id=self.member_id, member_epoch=epoch, instance_id=self.instance_id)
        )
        self.start_anew()
        return answer

    def start_anew(self) -> None:
        """Forget everything, as after a crash or when fenced."""
        self.epoch, self.owned, self.is_joining = 0, EMPTY_ASSIGNMENT, True
