"""Stateful test of a classic group: clients join, sync and crash while saves are slow or fail."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode
from typing_extensions import override

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import ClassicGroupState, JoinResponse, LeavingMember, SyncResponse
from tests.agent.groups.classic_harness import RANGE, ROUND_ROBIN, Call, ClassicHarness

_REMOVED = {ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}
_RETRIABLE = {
    ErrorCode.rebalance_in_progress,
    ErrorCode.illegal_generation,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
}


@dataclass
class Client:
    """A client that follows the protocol until it crashes."""

    instance_id: str | None
    member_id: str = ""
    generation: int = -1
    joined: JoinResponse | None = None
    assignment: bytes | None = None
    joining: Call | None = None
    syncing: Call | None = None
    crashed: bool = False
    calls: list[Call] = field(default_factory=list)

    def reset(self) -> None:
        self.member_id, self.joined, self.assignment = "", None, None


class GroupMachine(RuleBasedStateMachine):
    """Invariants of a classic group under any sequence of requests, timeouts and failed saves."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = ClassicHarness(
            settings=GroupSettings(group_initial_rebalance_delay_ms=1_000, new_member_timeout_ms=20_000),
            delay_saves=True,
        )
        self.clients: list[Client] = []
        self.highest_generation = 0
        self.assigned: dict[tuple[int, str], bytes] = {}

    @initialize(static=st.lists(st.booleans(), min_size=1, max_size=4))
    def create_clients(self, static: list[bool]) -> None:
        self.clients = [
            Client(f"instance-{at}" if is_static else None) for at, is_static in enumerate(static)
        ]

    def _client(self, index: int) -> Client:
        return self.clients[index % len(self.clients)]

    @rule(index=st.integers(0, 3), supports_both=st.booleans())
    def join(self, index: int, supports_both: bool) -> None:
        client = self._client(index)
        if client.crashed or client.joining or client.syncing:
            return
        client.joining = self.harness.join(
            client.member_id,
            instance_id=client.instance_id,
            protocols=(RANGE, ROUND_ROBIN) if supports_both else (RANGE,),
            rebalance_timeout_ms=5_000,
            session_timeout_ms=6_000,
        )
        client.calls.append(client.joining)
        self._receive_responses()

    @rule(index=st.integers(0, 3))
    def sync(self, index: int) -> None:
        client = self._client(index)
        if client.crashed or client.joining or client.syncing or client.joined is None:
            return
        joined = client.joined
        leads = joined.leader == client.member_id and not joined.skip_assignment
        assignments = {
            each.member_id: f"{joined.generation}/{each.member_id}".encode() for each in joined.members
        }
        client.syncing = self.harness.sync(
            client.member_id, joined.generation, assignments if leads else {}, client.instance_id
        )
        client.calls.append(client.syncing)
        self._receive_responses()

    @rule(index=st.integers(0, 3))
    def heartbeat(self, index: int) -> None:
        client = self._client(index)
        if client.crashed or not client.member_id or client.generation < 0:
            return
        code = self.harness.heartbeat(client.member_id, client.generation, client.instance_id)
        if code in _REMOVED:
            client.reset()

    @rule(index=st.integers(0, 3))
    def leave(self, index: int) -> None:
        client = self._client(index)
        if client.crashed or not client.member_id:
            return
        self.harness.group.leave([LeavingMember(member_id=client.member_id)])
        client.reset()
        self._receive_responses()

    @rule(index=st.integers(0, 3))
    def crash_or_restart(self, index: int) -> None:
        client = self._client(index)
        client.crashed = not client.crashed
        client.joining = client.syncing = None
        client.reset()

    @rule(tenths=st.integers(1, 80))
    def advance_clock(self, tenths: int) -> None:
        self.harness.advance(tenths / 10)
        self._receive_responses()

    @precondition(lambda self: self.harness.pending_saves)
    @rule(succeeds=st.booleans(), last=st.booleans())
    def complete_save(self, succeeds: bool, last: bool) -> None:
        done = self.harness.pending_saves.pop(-1 if last else 0)
        done(ErrorCode.none if succeeds else ErrorCode.coordinator_not_available)
        self._receive_responses()

    @precondition(lambda self: self.harness.snapshots)
    @rule()
    def coordinator_fails(self) -> None:
        """Load the last snapshot in another coordinator; pending saves of the old one never complete."""
        previous = self.harness.group
        self.harness.pending_saves.clear()
        self.harness.group = self.harness.new_group(self.harness.snapshots[-1])
        previous.unload(ErrorCode.not_coordinator)
        self.highest_generation = self.harness.group.generation
        self.assigned.clear()
        self._receive_responses()

    def _receive_responses(self) -> None:
        """Let every client receive its responses."""
        for client in self.clients:
            if client.joining is not None and client.joining.is_done:
                response, client.joining = client.joining.join_response, None
                self._receive_join(client, response)
            if client.syncing is not None and client.syncing.is_done:
                sync_response, client.syncing = client.syncing.sync_response, None
                self._receive_sync(client, sync_response)

    def _receive_join(self, client: Client, response: JoinResponse) -> None:
        if response.error is ErrorCode.none:
            assert response.protocol in {"range", "roundrobin"}
            assert response.leader
            client.member_id, client.generation, client.joined = (
                response.member_id,
                response.generation,
                response,
            )
        elif response.error is ErrorCode.member_id_required:
            assert client.instance_id is None
            client.member_id = response.member_id
        elif response.error in _REMOVED:
            client.reset()
        else:
            assert response.error in _RETRIABLE

    def _receive_sync(self, client: Client, response: SyncResponse) -> None:
        if response.error is ErrorCode.none:
            key = (client.generation, client.member_id)
            assert self.assigned.setdefault(key, response.assignment) == response.assignment
        elif response.error in _REMOVED:
            client.reset()
        else:
            assert response.error in _RETRIABLE
            client.joined = None

    @invariant()
    def every_request_has_at_most_one_response(self) -> None:
        for client in self.clients:
            assert all(len(call.responses) <= 1 for call in client.calls)

    @invariant()
    def generations_never_decrease(self) -> None:
        assert self.harness.group.generation >= self.highest_generation
        self.highest_generation = self.harness.group.generation

    @invariant()
    def group_is_empty_if_and_only_if_it_has_no_members(self) -> None:
        described = self.harness.group.describe()
        if described.state is ClassicGroupState.EMPTY:
            assert not described.members
        if described.state in {ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE}:
            assert described.members

    @invariant()
    def instance_ids_are_unique(self) -> None:
        instances = [
            member.instance_id for member in self.harness.group.describe().members if member.instance_id
        ]
        assert len(instances) == len(set(instances))

    @invariant()
    def pending_requests_have_a_deadline_or_a_save(self) -> None:
        waiting = any(not call.is_done for client in self.clients for call in client.calls)
        if waiting:
            assert self.harness.group.next_deadline is not None or self.harness.pending_saves

    @override
    def teardown(self) -> None:
        """Check that every request has a response once all saves complete and enough time passes."""
        for _ in range(20):
            while self.harness.pending_saves:
                self.harness.pending_saves.pop(0)(ErrorCode.none)
            self.harness.advance(5)
        assert all(call.is_done for client in self.clients for call in client.calls)


TestGroup = GroupMachine.TestCase
