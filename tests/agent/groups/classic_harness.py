"""A classic group with a manual clock and recorded responses."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.group_settings import GroupSettings
from agent.groups.classic.group import ClassicGroup
from agent.groups.classic.messages import (
    JoinRequest,
    JoinResponse,
    MemberIdentity,
    MemberProtocol,
    SyncRequest,
    SyncResponse,
)
from agent.groups.errors import ErrorCode
from core.clock import ManualClock
from core.ids import SeededIds

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.groups.classic.snapshot import ClassicGroupSnapshot


def encode_subscription(*topics: str) -> bytes:
    """Return a subscription of version 0 without user data."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


RANGE = MemberProtocol("range", encode_subscription("t"))
ROUND_ROBIN = MemberProtocol("roundrobin", encode_subscription("t"))


@dataclass
class Call:
    """A request with the responses to it; there must never be more than one."""

    responses: list[JoinResponse | SyncResponse] = field(default_factory=list)

    @property
    def is_done(self) -> bool:
        return bool(self.responses)

    @property
    def error(self) -> ErrorCode:
        (response,) = self.responses
        return response.error

    @property
    def join_response(self) -> JoinResponse:
        (response,) = self.responses
        assert isinstance(response, JoinResponse)
        return response

    @property
    def sync_response(self) -> SyncResponse:
        (response,) = self.responses
        assert isinstance(response, SyncResponse)
        return response


@dataclass
class ClassicHarness:
    """A group, its clock and its stored snapshots.

    A save completes at once unless `delay_saves` is set; then the test calls `pending_saves`.
    """

    settings: GroupSettings = field(default_factory=GroupSettings)
    clock: ManualClock = field(default_factory=ManualClock)
    snapshots: list[ClassicGroupSnapshot] = field(default_factory=list)
    pending_saves: list[Callable[[ErrorCode], None]] = field(default_factory=list)
    delay_saves: bool = False

    def __post_init__(self) -> None:
        self.ids = SeededIds(1, self.clock)
        self.group = self.new_group()

    def new_group(self, snapshot: ClassicGroupSnapshot | None = None) -> ClassicGroup:
        return ClassicGroup(
            "g", settings=self.settings, clock=self.clock, ids=self.ids, save=self._save, snapshot=snapshot
        )

    def _save(self, snapshot: ClassicGroupSnapshot, on_stored: Callable[[ErrorCode], None]) -> None:
        self.snapshots.append(snapshot)
        if self.delay_saves:
            self.pending_saves.append(on_stored)
        else:
            on_stored(ErrorCode.none)

    def advance(self, seconds: float) -> None:
        """Advance the clock in steps of a tenth of a second."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.group.expire()

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: tuple[MemberProtocol, ...] = (RANGE,),
        protocol_type: str = "consumer",
        requires_known_member_id: bool = True,
        supports_skipping_assignment: bool = True,
        session_timeout_ms: int = 10_000,
        rebalance_timeout_ms: int = 30_000,
    ) -> Call:
        call = Call()
        self.group.join(
            JoinRequest(
                member_id=member_id,
                instance_id=instance_id,
                protocol_type=protocol_type,
                protocols=protocols,
                session_timeout_ms=session_timeout_ms,
                rebalance_timeout_ms=rebalance_timeout_ms,
                client_id="client",
                client_host="127.0.0.1",
                requires_known_member_id=requires_known_member_id,
                supports_skipping_assignment=supports_skipping_assignment,
            ),
            call.responses.append,
        )
        return call

    def new_member_id(self) -> str:
        """Return the member id that the response to a first join assigns (KIP-394)."""
        call = self.join()
        assert call.error is ErrorCode.member_id_required
        return call.join_response.member_id

    def sync(
        self,
        member_id: str,
        generation: int | None = None,
        assignments: dict[str, bytes] | None = None,
        instance_id: str | None = None,
    ) -> Call:
        call = Call()
        self.group.sync(
            SyncRequest(
                member_id=member_id,
                instance_id=instance_id,
                generation=self.group.generation if generation is None else generation,
                assignments=assignments or {},
            ),
            call.responses.append,
        )
        return call

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> ErrorCode:
        return self.group.heartbeat(self.identity(member_id, generation, instance_id))

    def identity(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> MemberIdentity:
        return MemberIdentity(
            member_id=member_id,
            instance_id=instance_id,
            generation=self.group.generation if generation is None else generation,
        )

    def make_stable(self, count: int, **options: object) -> list[str]:
        """Take a new group to its first generation; return the ids of its members, the leader's first."""
        ids = [self.new_member_id() for _ in range(count)]
        calls = [self.join(member_id, **options) for member_id in ids]  # type: ignore[arg-type]  # as given
        self.advance(self.settings.group_initial_rebalance_delay_ms / 1000 * 2 + 0.1)
        leader = calls[0].join_response.leader
        ids.sort(key=lambda member_id: member_id != leader)
        self.sync_all(ids)
        return ids

    def sync_all(self, ids: list[str]) -> list[Call]:
        """Send a SyncGroup for each member, the leader last; the assignment of each is its own id."""
        calls = [self.sync(member_id) for member_id in ids[1:]]
        calls.append(self.sync(ids[0], assignments={each: each.encode() for each in ids}))
        return calls
