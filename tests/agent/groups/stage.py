"""A group on a clock that tests move, with members that remember what they were answered."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

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
from core.clock import ManualClock
from core.ids import SeededIds

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.groups.classic.snapshot import ClassicGroupSnapshot


def subscription(*topics: str) -> bytes:
    """A consumer's metadata in version 0: these topics, no user data."""
    names = b"".join(struct.pack(">h", len(topic)) + topic.encode() for topic in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


RANGE = MemberProtocol("range", subscription("t"))
ROBIN = MemberProtocol("roundrobin", subscription("t"))


@dataclass
class Call:
    """One request that is answered once, now or later."""

    answers: list[JoinResponse | SyncResponse] = field(default_factory=list)

    @property
    def answered(self) -> bool:
        return bool(self.answers)

    @property
    def error(self) -> ErrorCode:
        (answer,) = self.answers
        return answer.error

    @property
    def joined(self) -> JoinResponse:
        (answer,) = self.answers
        assert isinstance(answer, JoinResponse)
        return answer

    @property
    def synced(self) -> SyncResponse:
        (answer,) = self.answers
        assert isinstance(answer, SyncResponse)
        return answer


@dataclass
class Stage:
    """The group, its clock, and the store of its snapshots, which answers at once unless `saves_wait`."""

    settings: GroupSettings = field(default_factory=GroupSettings)
    clock: ManualClock = field(default_factory=ManualClock)
    snapshots: list[ClassicGroupSnapshot] = field(default_factory=list)
    waiting_saves: list[Callable[[ErrorCode], None]] = field(default_factory=list)
    saves_wait: bool = False

    def __post_init__(self) -> None:
        self.ids = SeededIds(1, self.clock)
        self.group = self.new_group()

    def new_group(self, snapshot: ClassicGroupSnapshot | None = None) -> ClassicGroup:
        return ClassicGroup(
            "g", settings=self.settings, clock=self.clock, ids=self.ids, save=self._save, snapshot=snapshot
        )

    def _save(self, snapshot: ClassicGroupSnapshot, done: Callable[[ErrorCode], None]) -> None:
        self.snapshots.append(snapshot)
        if self.saves_wait:
            self.waiting_saves.append(done)
        else:
            done(ErrorCode.none)

    def pass_time(self, seconds: float) -> None:
        """Let time pass, a tenth of a second at a time."""
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
            call.answers.append,
        )
        return call

    def new_member_id(self) -> str:
        """An id from a first join, as KIP-394 has it."""
        call = self.join()
        assert call.error is ErrorCode.member_id_required
        return call.joined.member_id

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
            call.answers.append,
        )
        return call

    def heartbeat(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> ErrorCode:
        return self.group.heartbeat(self.stamp(member_id, generation, instance_id))

    def stamp(
        self, member_id: str, generation: int | None = None, instance_id: str | None = None
    ) -> MemberIdentity:
        return MemberIdentity(
            member_id=member_id,
            instance_id=instance_id,
            generation=self.group.generation if generation is None else generation,
        )

    def stable(self, count: int, **options: object) -> list[str]:
        """Bring a new group to its first generation with `count` members; their ids, the leader's first."""
        ids = [self.new_member_id() for _ in range(count)]
        calls = [self.join(member_id, **options) for member_id in ids]  # type: ignore[arg-type]  # as given
        self.pass_time(self.settings.group_initial_rebalance_delay_ms / 1000 * 2 + 0.1)
        leader = calls[0].joined.leader
        ids.sort(key=lambda member_id: member_id != leader)
        self.assign(ids)
        return ids

    def assign(self, ids: list[str]) -> list[Call]:
        """Everyone syncs, the leader last: each is assigned its own name."""
        calls = [self.sync(member_id) for member_id in ids[1:]]
        calls.append(self.sync(ids[0], assignments={each: each.encode() for each in ids}))
        return calls
