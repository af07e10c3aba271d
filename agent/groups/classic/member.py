"""One member of a classic group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from agent.groups.classic.messages import JoinResponse, SyncResponse
from agent.groups.classic.snapshot import ClassicMemberSnapshot

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from agent.groups.classic.messages import JoinCallback, JoinRequest, MemberProtocol, SyncCallback

_PROTOCOL_BYTES = 128
MEMBER_BYTES = 1024
"""About the memory of a member without its subscription, and of a member id that no client has used yet."""


def protocols_size(protocols: Iterable[MemberProtocol]) -> int:
    """Return about the memory of a member's protocols."""
    return sum([_PROTOCOL_BYTES + len(each.name) + len(each.metadata) for each in protocols])


def joining_size(request: JoinRequest) -> int:
    """Return about the memory of the member that a JoinGroup makes."""
    member_id = request.member_id or request.instance_id or request.client_id
    return ClassicMember.from_join(member_id, request).memory_bytes


@dataclass(slots=True, kw_only=True)
class ClassicMember:
    """A member and the callbacks of its pending JoinGroup and SyncGroup requests."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[MemberProtocol, ...]
    assignment: bytes = b""
    # True until the member is in a generation: before that it has no session that heartbeats extend.
    is_new: bool = False
    _join_callback: JoinCallback | None = None
    _sync_callback: SyncCallback | None = None

    @classmethod
    def from_join(cls, member_id: str, request: JoinRequest) -> ClassicMember:
        """Return the member that sent its first JoinGroup."""
        return cls(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            session_timeout_ms=request.session_timeout_ms,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            protocols=request.protocols,
            is_new=True,
        )

    @classmethod
    def from_snapshot(cls, snapshot: ClassicMemberSnapshot) -> ClassicMember:
        """Return the member that another coordinator stored."""
        return cls(
            member_id=snapshot.member_id,
            instance_id=snapshot.instance_id,
            client_id=snapshot.client_id,
            client_host=snapshot.client_host,
            session_timeout_ms=snapshot.session_timeout_ms,
            rebalance_timeout_ms=snapshot.rebalance_timeout_ms,
            protocols=snapshot.protocols,
            assignment=snapshot.assignment,
        )

    def snapshot(self, assignment: bytes) -> ClassicMemberSnapshot:
        """Return the state to store, with the assignment that the member is about to receive."""
        return ClassicMemberSnapshot(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
            assignment=assignment,
        )

    def with_member_id(self, member_id: str) -> ClassicMember:
        """Return a copy with another member id and no pending requests."""
        return replace(self, member_id=member_id, _join_callback=None, _sync_callback=None)

    def update(self, request: JoinRequest) -> None:
        """Take the protocols and timeouts of another JoinGroup."""
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms

    @property
    def memory_bytes(self) -> int:
        """About the memory of the member."""
        return (
            MEMBER_BYTES
            + 2 * len(self.member_id)
            + len(self.instance_id or "")
            + len(self.client_id)
            + len(self.client_host)
            + protocols_size(self.protocols)
            + len(self.assignment)
        )

    @property
    def is_static(self) -> bool:
        """Return True if the member keeps its assignment over restarts (KIP-345)."""
        return self.instance_id is not None

    @property
    def is_awaiting_join(self) -> bool:
        """Return True if a JoinGroup is pending."""
        return self._join_callback is not None

    @property
    def is_awaiting_sync(self) -> bool:
        """Return True if a SyncGroup is pending."""
        return self._sync_callback is not None

    @property
    def is_exempt_from_heartbeats(self) -> bool:
        """Return True if the session cannot end now, because a request of the member is pending."""
        return not self.is_new and (self.is_awaiting_join or self.is_awaiting_sync)

    def await_join(self, callback: JoinCallback) -> None:
        """Respond to this JoinGroup when the generation begins.

        A JoinGroup that is already pending is rejected: its client has given it up.
        """
        self.complete_join(JoinResponse(error=ErrorCode.rebalance_in_progress, member_id=self.member_id))
        self._join_callback = callback

    def await_sync(self, callback: SyncCallback) -> None:
        """Respond to this SyncGroup when the leader has assigned. One that is already pending is rejected."""
        self.complete_sync(SyncResponse(error=ErrorCode.rebalance_in_progress))
        self._sync_callback = callback

    def complete_join(self, response: JoinResponse) -> bool:
        """Respond to the pending JoinGroup. Return False if there is none."""
        callback, self._join_callback = self._join_callback, None
        if callback is not None:
            callback(response)
        return callback is not None

    def complete_sync(self, response: SyncResponse) -> bool:
        """Respond to the pending SyncGroup. Return False if there is none."""
        callback, self._sync_callback = self._sync_callback, None
        if callback is not None:
            callback(response)
        return callback is not None

    def metadata(self, protocol: str) -> bytes:
        """Return the member's metadata for a protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def vote(self, candidates: Container[str]) -> str | None:
        """Return the first of the member's protocols that is a candidate."""
        return next((each.name for each in self.protocols if each.name in candidates), None)
