"""One member of a classic group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kio.schema.errors import ErrorCode

from agent.groups.messages import JoinAnswer, MemberSnapshot, SyncAnswer

if TYPE_CHECKING:
    from collections.abc import Container

    from agent.groups.messages import JoinReply, JoinRequest, Protocol, SyncReply


@dataclass(slots=True, kw_only=True)
class Member:
    """A member, and whom to answer when its join or its sync comes to an end."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[Protocol, ...]
    assignment: bytes = b""
    # Has joined and not been in a generation yet: it has no session that heartbeats could keep.
    is_new: bool = False
    _join_reply: JoinReply | None = None
    _sync_reply: SyncReply | None = None

    @classmethod
    def joining(cls, member_id: str, request: JoinRequest) -> Member:
        """The member that a first join makes."""
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
    def restored(cls, snapshot: MemberSnapshot) -> Member:
        """The member that another coordinator has left."""
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

    def snapshot(self, assignment: bytes) -> MemberSnapshot:
        """What another coordinator has to know, with the assignment that the member is about to get."""
        return MemberSnapshot(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ms=self.session_timeout_ms,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            protocols=self.protocols,
            assignment=assignment,
        )

    def successor(self, member_id: str) -> Member:
        """The same member under another id; nobody waits for its answers yet."""
        return replace(self, member_id=member_id, _join_reply=None, _sync_reply=None)

    def update(self, request: JoinRequest) -> None:
        """Take over what a new join says."""
        self.protocols = request.protocols
        self.session_timeout_ms = request.session_timeout_ms
        self.rebalance_timeout_ms = request.rebalance_timeout_ms

    @property
    def is_static(self) -> bool:
        """Whether the member keeps its place over restarts (KIP-345)."""
        return self.instance_id is not None

    @property
    def awaits_join(self) -> bool:
        """Whether a join waits for its answer."""
        return self._join_reply is not None

    @property
    def awaits_sync(self) -> bool:
        """Whether a sync waits for its answer."""
        return self._sync_reply is not None

    @property
    def is_excused(self) -> bool:
        """Whether it need not send heartbeats now: it waits for the coordinator, not the other way round."""
        return not self.is_new and (self.awaits_join or self.awaits_sync)

    def await_join(self, reply: JoinReply) -> None:
        """Answer this join when the generation begins; one that waits already was given up by its sender."""
        self.answer_join(JoinAnswer(error=ErrorCode.rebalance_in_progress, member_id=self.member_id))
        self._join_reply = reply

    def await_sync(self, reply: SyncReply) -> None:
        """Answer this sync when all is assigned; one that waits already was given up by its sender."""
        self.answer_sync(SyncAnswer(error=ErrorCode.rebalance_in_progress))
        self._sync_reply = reply

    def answer_join(self, answer: JoinAnswer) -> bool:
        """Answer the waiting join, if there is one; tells whether there was."""
        reply, self._join_reply = self._join_reply, None
        if reply is not None:
            reply(answer)
        return reply is not None

    def answer_sync(self, answer: SyncAnswer) -> bool:
        """Answer the waiting sync, if there is one; tells whether there was."""
        reply, self._sync_reply = self._sync_reply, None
        if reply is not None:
            reply(answer)
        return reply is not None

    def metadata(self, protocol: str) -> bytes:
        """What the member tells the leader for this protocol."""
        return next((each.metadata for each in self.protocols if each.name == protocol), b"")

    def vote(self, candidates: Container[str]) -> str | None:
        """The first of its protocols that is a candidate."""
        return next((each.name for each in self.protocols if each.name in candidates), None)
