"""Members of the classic protocol in a consumer group, as consumers behave that rebalance eagerly or not."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agent.groups.classic.embedded_protocol import read_assignment
from agent.groups.classic.messages import (
    JoinRequest,
    LeavingMember,
    MemberIdentity,
    MemberProtocol,
    SyncRequest,
)
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, Assignment
from agent.groups.errors import ErrorCode, GroupError
from catalog.model import PartitionId
from tests.agent.groups.consumer_stage import topic_id

if TYPE_CHECKING:
    from tests.agent.groups.consumer_stage import ConsumerStage


def subscription(topics: frozenset[str], owned: Assignment = EMPTY_ASSIGNMENT) -> bytes:
    """A consumer's metadata in version 1: topics, no data, and what it owns; topics have names of a stage."""
    said = struct.pack(">hi", 1, len(topics))
    for name in sorted(topics):
        said += struct.pack(">h", len(name)) + name.encode()
    said += struct.pack(">ii", -1, len(owned))
    for part in sorted(owned):
        name = part.topic_id.bytes.lstrip(b"\1").decode()
        said += struct.pack(">h", len(name)) + name.encode() + struct.pack(">ii", 1, part.partition)
    return said


@dataclass
class ClassicMember:
    """A client that joins again when it is told to, and asks for its assignment then."""

    stage: ConsumerStage
    topics: frozenset[str]
    is_cooperative: bool = False
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    owned: Assignment = EMPTY_ASSIGNMENT
    must_join: bool = True
    must_sync: bool = False
    session_timeout_ms: int = 20_000

    @property
    def is_in(self) -> bool:
        """Whether it has been in a generation since it began."""
        return self.generation >= 0

    def request(self) -> JoinRequest:
        name = "cooperative-sticky" if self.is_cooperative else "range"
        both = {name: subscription(self.topics, self.owned), "common": subscription(self.topics, self.owned)}
        return JoinRequest(
            member_id=self.member_id,
            instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=tuple(MemberProtocol(each, said) for each, said in both.items()),
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=30_000,
        )

    def step(self, *, answered: bool = True) -> ErrorCode:
        """Do what is to be done next; tells what was answered, whether it came or not."""
        try:
            if self.must_join:
                return self._join(answered=answered)
            if self.must_sync:
                return self._sync(answered=answered)
            return self._beat(answered=answered)
        except GroupError as error:
            if answered:
                self.refused(error.code)
            return error.code

    def _join(self, *, answered: bool) -> ErrorCode:
        if not self.is_cooperative:
            self.owned = EMPTY_ASSIGNMENT
        answer = self.stage.group.classic.join(self.request(), self.stage.topics)
        if answered:
            self.member_id = answer.member_id
            if answer.error is ErrorCode.none:
                self.generation = answer.generation
                self.must_join, self.must_sync = False, True
        return answer.error

    def _sync(self, *, answered: bool) -> ErrorCode:
        answer = self.stage.group.classic.sync(
            SyncRequest(
                member_id=self.member_id,
                instance_id=self.instance_id,
                generation=self.generation,
                protocol_type="consumer",
                protocol=self.request().protocols[0].name,
            )
        )
        if answered:
            given = read_assignment(answer.assignment)
            assert given is not None
            before = self.owned
            self.owned = frozenset(PartitionId(topic_id(name), number) for name, number in given)
            self.must_sync, self.must_join = False, bool(before - self.owned)
        return answer.error

    def _beat(self, *, answered: bool) -> ErrorCode:
        code = self.stage.group.classic.heartbeat(self.stamp)
        if answered and code is ErrorCode.rebalance_in_progress:
            self.must_join = True
        return code

    @property
    def stamp(self) -> MemberIdentity:
        return MemberIdentity(
            member_id=self.member_id, instance_id=self.instance_id, generation=self.generation
        )

    def refused(self, code: ErrorCode) -> None:
        """Begin anew, or join again, as clients do."""
        if code is ErrorCode.rebalance_in_progress:
            self.must_join, self.must_sync = True, False
        elif code in {
            ErrorCode.unknown_member_id,
            ErrorCode.illegal_generation,
            ErrorCode.fenced_instance_id,
        }:
            self.start_anew()
        else:
            raise GroupError(code)

    def start_anew(self) -> None:
        self.member_id, self.generation, self.owned = "", -1, EMPTY_ASSIGNMENT
        self.must_join, self.must_sync = True, False

    def leave(self) -> ErrorCode:
        leaving = LeavingMember(member_id=self.member_id, instance_id=self.instance_id)
        (code,) = self.stage.group.classic.leave([leaving])
        self.start_anew()
        return code

    def settle(self) -> None:
        """Until it has nothing to do but to send heartbeats."""
        for _ in range(10):
            if self.step() is ErrorCode.none and not self.must_join and not self.must_sync:
                return
        raise AssertionError("the member does not come to rest")
