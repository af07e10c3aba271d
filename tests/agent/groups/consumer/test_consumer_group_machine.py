"""Random lives of a consumer group: members obey late and crash, answers are lost, coordinators change.

Some members speak the classic protocol, as in a group that is rolled from one protocol to the other.
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
from tests.agent.groups.consumer_stage import ConsumerStage, StageMember, parts, view
from tests.agent.groups.mixed_stage import ClassicMember

if TYPE_CHECKING:
    from agent.groups.consumer.topics import TopicView

_REFUSALS = {
    ErrorCode.fenced_member_epoch,
    ErrorCode.unknown_member_id,
    # An instance stays with the member that has it until that one's session is over.
    ErrorCode.unreleased_instance_id,
    ErrorCode.fenced_instance_id,
}
_COUNTS = st.fixed_dictionaries({}, optional={name: st.integers(1, 4) for name in ("a", "b", "c")})


@dataclass
class LateMember(StageMember):
    """A member that goes on reading what it shall give up until it gets round to it."""

    shall_have: Assignment = EMPTY_ASSIGNMENT
    is_gone: bool = False

    @override
    def take(self, answer: HeartbeatResponse) -> None:
        super().take(HeartbeatResponse(member_id=answer.member_id, member_epoch=answer.member_epoch))
        if answer.assignment is not None:
            self.shall_have = answer.assignment

    def obey(self) -> None:
        self.owned = self.shall_have

    def refused_with(self, error: GroupError) -> None:
        """Every refusal that a group may give a well-behaved member makes it join anew."""
        if error.code not in _REFUSALS:
            raise error
        self.start_anew()

    @override
    def start_anew(self) -> None:
        super().start_anew()
        self.shall_have = EMPTY_ASSIGNMENT


class ConsumerGroupMachine(RuleBasedStateMachine):
    """What must hold of a group whatever its members, the clock and the catalog do."""

    def __init__(self) -> None:
        super().__init__()
        self.stage = ConsumerStage(
            settings=GroupSettings(
                group_consumer_session_timeout_ms=20_000,
                group_consumer_migration_policy=MigrationPolicy.UPGRADE,
            ),
            topics=view(a=3, b=2),
        )
        self.members: list[LateMember] = []
        self.classic: list[ClassicMember] = []
        self.epoch = 0

    @initialize(count=st.integers(1, 3))
    def people(self, count: int) -> None:
        for _ in range(count):
            self.come(frozenset({"a"}), static=False, pattern=False, assignor=None)

    @rule(
        topics=st.frozensets(st.sampled_from("abc"), min_size=1),
        static=st.booleans(),
        pattern=st.booleans(),
        assignor=st.sampled_from([None, "range", "uniform"]),
    )
    def come(self, topics: frozenset[str], *, static: bool, pattern: bool, assignor: str | None) -> None:
        if len(self.members) < 5:
            number = next(self.stage.numbers)
            self.members.append(
                LateMember(
                    self.stage,
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
    def come_classic(self, topics: frozenset[str], *, cooperative: bool, static: bool) -> None:
        if len(self.classic) < 3:
            number = next(self.stage.numbers)
            instance_id = f"instance-{number}" if static else None
            self.classic.append(ClassicMember(self.stage, topics, cooperative, instance_id))

    @rule(at=st.integers(0, 2), times=st.integers(1, 4), answered=st.booleans())
    def step_classic(self, at: int, times: int, *, answered: bool) -> None:
        """Whoever does not hear the last answer has heard the others."""
        if self.classic:
            for number in range(times):
                self.classic[at % len(self.classic)].step(answered=answered or number < times - 1)

    @rule(times=st.integers(1, 4))
    def everyone_beats_and_obeys(self, times: int) -> None:
        for _ in range(times):
            for member in self.members:
                self._beat(member)
                member.obey()

    @rule(at=st.integers(0, 2), crash=st.booleans())
    def leave_classic(self, at: int, *, crash: bool) -> None:
        if self.classic:
            member = self.classic[at % len(self.classic)]
            member.start_anew() if crash else member.leave()

    def _pick(self, at: int) -> LateMember:
        return self.members[at % len(self.members)]

    def _beat(self, member: LateMember, *, answered: bool = True) -> None:
        try:
            answer = self.stage.send(member.request())
        except GroupError as error:
            member.refused_with(error)
            return
        if answered:
            member.take(answer)
        else:
            member.says_everything = True

    @rule(at=st.integers(0, 4))
    def beat(self, at: int) -> None:
        self._beat(self._pick(at))

    @rule(at=st.integers(0, 4))
    def beat_unheard(self, at: int) -> None:
        self._beat(self._pick(at), answered=False)

    @rule(at=st.integers(0, 4))
    def obey(self, at: int) -> None:
        self._pick(at).obey()

    @rule(at=st.integers(0, 4), epoch=st.sampled_from([-1, -2]))
    def leave(self, at: int, epoch: int) -> None:
        member = self._pick(at)
        if member.is_joining:
            return
        try:
            member.leave(epoch if member.instance_id else -1)
        except GroupError as error:
            member.refused_with(error)

    @rule(at=st.integers(0, 4))
    def crash_and_return(self, at: int) -> None:
        member = self._pick(at)
        member.start_anew()
        member.member_id = f"member-{next(self.stage.numbers)}"

    @rule(seconds=st.integers(1, 15))
    def pass_time(self, seconds: int) -> None:
        self.stage.pass_time(seconds)

    @rule(counts=_COUNTS)
    def change_topics(self, counts: dict[str, int]) -> None:
        self.stage.topics = view(**counts)

    @rule()
    def move_coordinator(self) -> None:
        self.stage.move_coordinator()

    @invariant()
    def nobody_reads_what_another_reads(self) -> None:
        """Members that the group counts on never have a partition in common."""
        known = {each.member_id: each for each in self.stage.group.describe().members}
        readers = [member for member in self._everyone() if member.member_id in known]
        for at, one in enumerate(readers):
            for other in readers[at + 1 :]:
                assert one.owned.isdisjoint(other.owned)

    @invariant()
    def epochs_rise(self) -> None:
        group = self.stage.group
        assert group.group_epoch >= max(self.epoch, group.describe().assignment_epoch)
        self.epoch = group.group_epoch

    @override
    def teardown(self) -> None:
        """Once members behave, each partition that exists is read by one that wants it."""
        for _ in range(30):
            for member in self.members:
                self._beat(member)
                member.obey()
            for classic in self.classic:
                classic.step()
            self.stage.pass_time(1)
        owned = [part for member in self._everyone() for part in member.owned]
        assert len(owned) == len(set(owned))
        assert set(owned) == self._wanted(self.stage.topics)

    def _everyone(self) -> list[LateMember | ClassicMember]:
        return [*self.members, *self.classic]

    def _wanted(self, topics: TopicView) -> Assignment:
        names = {name for member in self._everyone() for name in member.topics}
        names |= {"a", "b"} if any(member.regex for member in self.members) else set()
        return frozenset(
            part
            for name in names & topics.by_name.keys()
            for part in parts(name, *range(topics.by_name[name].partition_count))
        )


TestConsumerGroup = ConsumerGroupMachine.TestCase
TestConsumerGroup.settings = settings(stateful_step_count=30)
