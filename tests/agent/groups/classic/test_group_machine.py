"""Random lives of a group: members that join, sync, crash and come back while saves are slow or fail."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from kio.schema.errors import ErrorCode
from typing_extensions import override

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import ClassicGroupState, JoinResponse, LeavingMember, SyncResponse
from tests.agent.groups.stage import RANGE, ROBIN, Call, Stage

_GONE = {ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}
_AGAIN = {
    ErrorCode.rebalance_in_progress,
    ErrorCode.illegal_generation,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
}


@dataclass
class Client:
    """A client that does what the protocol asks of it, until it crashes."""

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
    """What must hold of a group whatever its members, the clock and the catalog do."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(
            settings=GroupSettings(group_initial_rebalance_delay_ms=1_000, new_member_timeout_ms=20_000),
            saves_wait=True,
        )
        self.clients: list[Client] = []
        self.highest_generation = 0
        self.assigned: dict[tuple[int, str], bytes] = {}

    @initialize(static=st.lists(st.booleans(), min_size=1, max_size=4))
    def people(self, static: list[bool]) -> None:
        self.clients = [
            Client(f"instance-{at}" if is_static else None) for at, is_static in enumerate(static)
        ]

    def _pick(self, number: int) -> Client:
        return self.clients[number % len(self.clients)]

    @rule(number=st.integers(0, 3), both=st.booleans())
    def join(self, number: int, both: bool) -> None:
        client = self._pick(number)
        if client.crashed or client.joining or client.syncing:
            return
        client.joining = self.stage.join(
            client.member_id,
            instance_id=client.instance_id,
            protocols=(RANGE, ROBIN) if both else (RANGE,),
            rebalance_timeout_ms=5_000,
            session_timeout_ms=6_000,
        )
        client.calls.append(client.joining)
        self._read()

    @rule(number=st.integers(0, 3))
    def sync(self, number: int) -> None:
        client = self._pick(number)
        if client.crashed or client.joining or client.syncing or client.joined is None:
            return
        joined = client.joined
        leads = joined.leader == client.member_id and not joined.skip_assignment
        work = {each.member_id: f"{joined.generation}/{each.member_id}".encode() for each in joined.members}
        client.syncing = self.stage.sync(
            client.member_id, joined.generation, work if leads else {}, client.instance_id
        )
        client.calls.append(client.syncing)
        self._read()

    @rule(number=st.integers(0, 3))
    def heartbeat(self, number: int) -> None:
        client = self._pick(number)
        if client.crashed or not client.member_id or client.generation < 0:
            return
        code = self.stage.heartbeat(client.member_id, client.generation, client.instance_id)
        if code in _GONE:
            client.reset()

    @rule(number=st.integers(0, 3))
    def leave(self, number: int) -> None:
        client = self._pick(number)
        if client.crashed or not client.member_id:
            return
        self.stage.group.leave([LeavingMember(member_id=client.member_id)])
        client.reset()
        self._read()

    @rule(number=st.integers(0, 3))
    def crash_or_restart(self, number: int) -> None:
        client = self._pick(number)
        client.crashed = not client.crashed
        client.joining = client.syncing = None
        client.reset()

    @rule(tenths=st.integers(1, 80))
    def pass_time(self, tenths: int) -> None:
        self.stage.pass_time(tenths / 10)
        self._read()

    @precondition(lambda self: self.stage.waiting_saves)
    @rule(works=st.booleans(), last=st.booleans())
    def save_ends(self, works: bool, last: bool) -> None:
        done = self.stage.waiting_saves.pop(-1 if last else 0)
        done(ErrorCode.none if works else ErrorCode.coordinator_not_available)
        self._read()

    @precondition(lambda self: self.stage.snapshots)
    @rule()
    def coordinator_dies(self) -> None:
        """Another one takes over what was saved last; late answers of the old one's saves do not matter."""
        old = self.stage.group
        self.stage.waiting_saves.clear()
        self.stage.group = self.stage.new_group(self.stage.snapshots[-1])
        old.unload(ErrorCode.not_coordinator)
        self.highest_generation = self.stage.group.generation
        self.assigned.clear()
        self._read()

    def _read(self) -> None:
        """Every client reads its answers."""
        for client in self.clients:
            if client.joining is not None and client.joining.answered:
                answer, client.joining = client.joining.joined, None
                self._joined(client, answer)
            if client.syncing is not None and client.syncing.answered:
                answer_to_sync, client.syncing = client.syncing.synced, None
                self._synced(client, answer_to_sync)

    def _joined(self, client: Client, answer: JoinResponse) -> None:
        if answer.error is ErrorCode.none:
            assert answer.protocol in {"range", "roundrobin"}
            assert answer.leader
            client.member_id, client.generation, client.joined = answer.member_id, answer.generation, answer
        elif answer.error is ErrorCode.member_id_required:
            assert client.instance_id is None
            client.member_id = answer.member_id
        elif answer.error in _GONE:
            client.reset()
        else:
            assert answer.error in _AGAIN

    def _synced(self, client: Client, answer: SyncResponse) -> None:
        if answer.error is ErrorCode.none:
            key = (client.generation, client.member_id)
            assert self.assigned.setdefault(key, answer.assignment) == answer.assignment
        elif answer.error in _GONE:
            client.reset()
        else:
            assert answer.error in _AGAIN
            client.joined = None

    @invariant()
    def every_call_is_answered_at_most_once(self) -> None:
        for client in self.clients:
            assert all(len(call.answers) <= 1 for call in client.calls)

    @invariant()
    def generations_only_rise(self) -> None:
        assert self.stage.group.generation >= self.highest_generation
        self.highest_generation = self.stage.group.generation

    @invariant()
    def a_group_without_members_is_empty_and_one_with_members_is_not(self) -> None:
        described = self.stage.group.describe()
        if described.state is ClassicGroupState.EMPTY:
            assert not described.members
        if described.state in {ClassicGroupState.STABLE, ClassicGroupState.COMPLETING_REBALANCE}:
            assert described.members

    @invariant()
    def no_instance_is_in_the_group_twice(self) -> None:
        instances = [
            member.instance_id for member in self.stage.group.describe().members if member.instance_id
        ]
        assert len(instances) == len(set(instances))

    @invariant()
    def something_will_happen_while_anyone_waits(self) -> None:
        """Whoever waits is waited for by a deadline or by a save: nobody waits for ever."""
        waiting = any(not call.answered for client in self.clients for call in client.calls)
        if waiting:
            assert self.stage.group.next_deadline is not None or self.stage.waiting_saves

    @override
    def teardown(self) -> None:
        """When all saves end and time passes, every call is answered."""
        for _ in range(20):
            while self.stage.waiting_saves:
                self.stage.waiting_saves.pop(0)(ErrorCode.none)
            self.stage.pass_time(5)
        assert all(call.answered for client in self.clients for call in client.calls)


TestGroup = GroupMachine.TestCase
