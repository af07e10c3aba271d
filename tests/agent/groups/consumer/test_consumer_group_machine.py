"""Stateful test of a consumer group: slow members, crashes, lost responses and new coordinators.

Some members use the classic protocol, as during a migration between the protocols.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from typing_extensions import override

from agent.group_settings import GroupSettings, MigrationPolicy
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, Assignment, HeartbeatResponse
from agent.groups.errors import ErrorCode, GroupError
from tests.agent.groups.classic_client import ClassicClient
from tests.agent.groups.consumer_harness import ConsumerClient, ConsumerHarness, partitions, topic_view

if TYPE_CHECKING:
    from agent.groups.consumer.topics import TopicView

_EXPECTED_ERRORS = {
    ErrorCode.fenced_member_epoch,
    ErrorCode.unknown_member_id,
    # An instance id belongs to one member until that member leaves or its session times out.
    ErrorCode.unreleased_instance_id,
    ErrorCode.fenced_instance_id,
}
_COUNTS = st.fixed_dictionaries({}, optional={name: st.integers(1, 4) for name in ("a", "b", "c")})


@dataclass
class SlowClient(ConsumerClient):
    """A client that keeps reading revoked partitions until it calls `apply_assignment`."""

    pending_assignment: Assignment = EMPTY_ASSIGNMENT

    @override
    def receive(self, response: HeartbeatResponse) -> None:
        super().receive(HeartbeatResponse(member_id=response.member_id, member_epoch=response.member_epoch))
        if response.assignment is not None:
            self.pending_assignment = response.assignment

    def apply_assignment(self) -> None:
        self.owned = self.pending_assignment

    def handle_error(self, error: GroupError) -> None:
        """Join as a new member; raise for a code that a correct client must not get."""
        if error.code not in _EXPECTED_ERRORS:
            raise error
        self.reset()

    @override
    def reset(self) -> None:
        super().reset()
        self.pending_assignment = EMPTY_ASSIGNMENT


class ConsumerGroupMachine(RuleBasedStateMachine):
    """Invariants of a consumer group under any sequence of requests, timeouts and coordinators."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = ConsumerHarness(
            settings=GroupSettings(
                group_consumer_session_timeout_ms=20_000,
                group_consumer_migration_policy=MigrationPolicy.UPGRADE,
            ),
            topics=topic_view(a=3, b=2),
        )
        self.clients: list[SlowClient] = []
        self.classic: list[ClassicClient] = []
        self.epoch = 0

    @initialize(count=st.integers(1, 3))
    def create_clients(self, count: int) -> None:
        for _ in range(count):
            self.add_client(frozenset({"a"}), static=False, pattern=False, assignor=None)

    @rule(
        topics=st.frozensets(st.sampled_from("abc"), min_size=1),
        static=st.booleans(),
        pattern=st.booleans(),
        assignor=st.sampled_from([None, "range", "uniform"]),
    )
    def add_client(
        self, topics: frozenset[str], *, static: bool, pattern: bool, assignor: str | None
    ) -> None:
        if len(self.clients) < 5:
            number = next(self.harness.client_numbers)
            self.clients.append(
                SlowClient(
                    self.harness,
                    f"member-{number}",
                    topics,
                    instance_id=f"instance-{number}" if static else None,
                    regex="[ab]" if pattern else None,
                    assignor=assignor,
                )
            )

    @rule(
        topics=st.frozensets(st.sampled_from("abc"), min_size=1),
        cooperative=st.booleans(),
        static=st.booleans(),
    )
    def add_classic_client(self, topics: frozenset[str], *, cooperative: bool, static: bool) -> None:
        if len(self.classic) < 3:
            number = next(self.harness.client_numbers)
            instance_id = f"instance-{number}" if static else None
            self.classic.append(ClassicClient(self.harness, topics, cooperative, instance_id))

    @rule(at=st.integers(0, 2), times=st.integers(1, 4), receives_response=st.booleans())
    def step_classic(self, at: int, times: int, *, receives_response: bool) -> None:
        """Send requests of a classic client; it may lose the last response."""
        if self.classic:
            for number in range(times):
                self.classic[at % len(self.classic)].step(
                    receives_response=receives_response or number < times - 1
                )

    @rule(times=st.integers(1, 4))
    def all_heartbeat_and_apply(self, times: int) -> None:
        for _ in range(times):
            for client in self.clients:
                self._heartbeat(client)
                client.apply_assignment()

    @rule(at=st.integers(0, 2), crash=st.booleans())
    def leave_classic(self, at: int, *, crash: bool) -> None:
        if self.classic:
            client = self.classic[at % len(self.classic)]
            client.reset() if crash else client.leave()

    def _client(self, at: int) -> SlowClient:
        return self.clients[at % len(self.clients)]

    def _heartbeat(self, client: SlowClient, *, receives_response: bool = True) -> None:
        try:
            response = self.harness.send(client.request())
        except GroupError as error:
            client.handle_error(error)
            return
        if receives_response:
            client.receive(response)
        else:
            client.sends_full_heartbeat = True

    @rule(at=st.integers(0, 4))
    def heartbeat(self, at: int) -> None:
        self._heartbeat(self._client(at))

    @rule(at=st.integers(0, 4))
    def heartbeat_with_lost_response(self, at: int) -> None:
        self._heartbeat(self._client(at), receives_response=False)

    @rule(at=st.integers(0, 4))
    def apply_assignment(self, at: int) -> None:
        self._client(at).apply_assignment()

    @rule(at=st.integers(0, 4), epoch=st.sampled_from([-1, -2]))
    def leave(self, at: int, epoch: int) -> None:
        client = self._client(at)
        if client.is_joining:
            return
        try:
            client.leave(epoch if client.instance_id else -1)
        except GroupError as error:
            client.handle_error(error)

    @rule(at=st.integers(0, 4))
    def crash_and_rejoin(self, at: int) -> None:
        client = self._client(at)
        client.reset()
        client.member_id = f"member-{next(self.harness.client_numbers)}"

    @rule(seconds=st.integers(1, 15))
    def advance_clock(self, seconds: int) -> None:
        self.harness.advance(seconds)

    @rule(counts=_COUNTS)
    def change_topics(self, counts: dict[str, int]) -> None:
        self.harness.topics = topic_view(**counts)

    @rule()
    def move_coordinator(self) -> None:
        self.harness.move_coordinator()

    @invariant()
    def no_partition_is_read_twice(self) -> None:
        """Members of the group never have a partition in common."""
        known = {each.member_id: each for each in self.harness.group.describe().members}
        readers = [client for client in self._all_clients() if client.member_id in known]
        for at, one in enumerate(readers):
            for other in readers[at + 1 :]:
                assert one.owned.isdisjoint(other.owned)

    @invariant()
    def epochs_never_decrease(self) -> None:
        group = self.harness.group
        assert group.group_epoch >= max(self.epoch, group.describe().assignment_epoch)
        self.epoch = group.group_epoch

    @override
    def teardown(self) -> None:
        """Check that correct clients read each partition they want exactly once in the end."""
        for _ in range(30):
            for client in self.clients:
                self._heartbeat(client)
                client.apply_assignment()
            for classic in self.classic:
                classic.step()
            self.harness.advance(1)
        owned = [part for client in self._all_clients() for part in client.owned]
        assert len(owned) == len(set(owned))
        assert set(owned) == self._wanted(self.harness.topics)

    def _all_clients(self) -> list[SlowClient | ClassicClient]:
        return [*self.clients, *self.classic]

    def _wanted(self, topics: TopicView) -> Assignment:
        names = {name for client in self._all_clients() for name in client.topics}
        names |= {"a", "b"} if any(client.regex for client in self.clients) else set()
        return frozenset(
            part
            for name in names & topics.by_name.keys()
            for part in partitions(name, *range(topics.by_name[name].partition_count))
        )


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(stateful_step_count=30)
