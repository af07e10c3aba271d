"""Clients of the classic protocol in a consumer group, with an eager or a cooperative assignor."""

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
from tests.agent.groups.consumer_harness import topic_id

if TYPE_CHECKING:
    from tests.agent.groups.consumer_harness import ConsumerHarness


def encode_owned_subscription(topics: frozenset[str], owned: Assignment = EMPTY_ASSIGNMENT) -> bytes:
    """Return a subscription of version 1. The ids of the owned topics are those of the harness."""
    encoded = struct.pack(">hi", 1, len(topics))
    for name in sorted(topics):
        encoded += struct.pack(">h", len(name)) + name.encode()
    encoded += struct.pack(">ii", -1, len(owned))
    for part in sorted(owned):
        name = part.topic_id.bytes.lstrip(b"\1").decode()
        encoded += struct.pack(">h", len(name)) + name.encode() + struct.pack(">ii", 1, part.partition)
    return encoded


@dataclass
class ClassicClient:
    """A client that joins again when a response asks for it, and then requests its assignment."""

    harness: ConsumerHarness
    topics: frozenset[str]
    is_cooperative: bool = False
    instance_id: str | None = None
    member_id: str = ""
    generation: int = -1
    owned: Assignment = EMPTY_ASSIGNMENT
    must_join: bool = True
    must_sync: bool = False
    session_timeout_ms: int = 20_000

    def request(self) -> JoinRequest:
        name = "cooperative-sticky" if self.is_cooperative else "range"
        metadata = encode_owned_subscription(self.topics, self.owned)
        return JoinRequest(
            member_id=self.member_id,
            instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=tuple(MemberProtocol(each, metadata) for each in (name, "common")),
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=30_000,
        )

    def step(self, *, receives_response: bool = True) -> ErrorCode:
        """Send the next request; return the error code, even if the client does not receive the response."""
        try:
            if self.must_join:
                return self._join(receives_response=receives_response)
            if self.must_sync:
                return self._sync(receives_response=receives_response)
            return self._heartbeat(receives_response=receives_response)
        except GroupError as error:
            if receives_response:
                self.handle_error(error.code)
            return error.code

    def _join(self, *, receives_response: bool) -> ErrorCode:
        if not self.is_cooperative:
            self.owned = EMPTY_ASSIGNMENT
        response = self.harness.group.classic.join(self.request(), self.harness.topics)
        if receives_response:
            self.member_id = response.member_id
            if response.error is ErrorCode.none:
                self.generation = response.generation
                self.must_join, self.must_sync = False, True
        return response.error

    def _sync(self, *, receives_response: bool) -> ErrorCode:
        response = self.harness.group.classic.sync(
            SyncRequest(
                member_id=self.member_id,
                instance_id=self.instance_id,
                generation=self.generation,
                protocol_type="consumer",
                protocol=self.request().protocols[0].name,
            )
        )
        if receives_response:
            assignment = read_assignment(response.assignment)
            assert assignment is not None
            before = self.owned
            self.owned = frozenset(PartitionId(topic_id(name), index) for name, index in assignment)
            self.must_sync, self.must_join = False, bool(before - self.owned)
        return response.error

    def _heartbeat(self, *, receives_response: bool) -> ErrorCode:
        code = self.harness.group.classic.heartbeat(self.identity)
        if receives_response and code is ErrorCode.rebalance_in_progress:
            self.must_join = True
        return code

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(
            member_id=self.member_id, instance_id=self.instance_id, generation=self.generation
        )

    def handle_error(self, code: ErrorCode) -> None:
        """Join again, with the present member id or as a new member; raise for an unexpected code."""
        if code is ErrorCode.rebalance_in_progress:
            self.must_join, self.must_sync = True, False
        elif code in {
            ErrorCode.unknown_member_id,
            ErrorCode.illegal_generation,
            ErrorCode.fenced_instance_id,
        }:
            self.reset()
        else:
            raise GroupError(code)

    def reset(self) -> None:
        """Join as a new member with the next request, as after a crash."""
        self.member_id, self.generation, self.owned = "", -1, EMPTY_ASSIGNMENT
        self.must_join, self.must_sync = True, False

    def leave(self) -> ErrorCode:
        leaving = LeavingMember(member_id=self.member_id, instance_id=self.instance_id)
        (code,) = self.harness.group.classic.leave([leaving])
        self.reset()
        return code

    def stabilize(self) -> None:
        """Send requests until only heartbeats are left to send."""
        for _ in range(10):
            if self.step() is ErrorCode.none and not self.must_join and not self.must_sync:
                return
        raise AssertionError("the client does not become stable")
