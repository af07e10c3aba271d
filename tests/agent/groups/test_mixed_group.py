"""Members of both protocols in one consumer group, and groups that go from one to the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.group_settings import GroupSettings, MigrationPolicy
from agent.groups.classic.embedded_protocol import read_assignment, write_assignment
from agent.groups.classic.messages import LeavingMember, MemberProtocol
from agent.groups.classic.snapshot import ClassicGroupSnapshot, ClassicMemberSnapshot
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT
from agent.groups.consumer.state_machine import Downgrade
from agent.groups.errors import ErrorCode, GroupError
from agent.groups.migration import check_upgrade, downgrade_snapshot, upgrade_snapshot
from tests.agent.groups.consumer_stage import ConsumerStage, parts, view
from tests.agent.groups.mixed_stage import ClassicMember, subscription

_GRANITE = frozenset({"granite"})


def _classic(
    stage: ConsumerStage, *, cooperative: bool = False, instance_id: str | None = None
) -> ClassicMember:
    member = ClassicMember(stage, _GRANITE, cooperative, instance_id)
    member.settle()
    return member


def test_a_classic_member_gets_its_share_when_the_others_have_let_it_go() -> None:
    """It is given what is free, and called to join again when the rest is."""
    stage = ConsumerStage()
    first = stage.joined()
    second = _classic(stage)
    assert (first.owned, second.owned) == (parts("granite", 0, 1, 2, 3), EMPTY_ASSIGNMENT)
    assert second.step() is ErrorCode.none
    first.beat()
    first.beat()
    assert second.step() is ErrorCode.rebalance_in_progress
    second.settle()
    assert len(first.owned) == len(second.owned) == 2
    assert first.owned.isdisjoint(second.owned)


@pytest.mark.parametrize("cooperative", [False, True])
def test_nobody_is_given_what_a_classic_member_still_reads(*, cooperative: bool) -> None:
    """A cooperative member reads on until it is told what to keep, an eager one stops before it joins."""
    stage = ConsumerStage()
    first = _classic_in_new_group(stage, cooperative=cooperative)
    assert first.owned == parts("granite", 0, 1, 2, 3)
    second = stage.joined()
    assert second.owned == EMPTY_ASSIGNMENT
    assert first.step() is ErrorCode.rebalance_in_progress
    assert first.step() is ErrorCode.none  # it has joined, and not heard yet what it may keep
    second.beat()
    assert second.owned.isdisjoint(first.owned)
    assert len(first.owned) == (4 if cooperative else 0)
    first.step()
    second.beat()
    assert second.owned.isdisjoint(first.owned)
    for _ in range(4):
        first.step()
        second.beat()
    assert len(first.owned) == len(second.owned) == 2


def _classic_in_new_group(stage: ConsumerStage, *, cooperative: bool) -> ClassicMember:
    """A member alone in a group whose member of the other protocol has left; it is not classic by policy."""
    stage.group._machine.settings = replace(
        stage.settings, group_consumer_migration_policy=MigrationPolicy.UPGRADE
    )
    other = stage.joined()
    member = _classic(stage, cooperative=cooperative)
    other.leave()
    for _ in range(4):
        member.settle()
    return member


def test_a_classic_member_that_does_not_come_again_in_time_is_out() -> None:
    """Its heartbeats alone do not keep it: it has its rebalance timeout to join, and to ask what it has."""
    stage = ConsumerStage()
    first, second = stage.joined(), _classic(stage)
    stage.joined()
    for _ in range(3):
        assert stage.group.classic.heartbeat(second.stamp) is ErrorCode.rebalance_in_progress
        stage.pass_time(10)
        first.beat()
    with pytest.raises(GroupError) as refused:
        stage.group.classic.heartbeat(second.stamp)
    assert refused.value.code is ErrorCode.unknown_member_id


def test_offsets_of_classic_members_are_fenced_by_their_generation() -> None:
    """A commit of any version will do, for their epoch is their generation."""
    stage = ConsumerStage()
    stage.joined()
    member = _classic(stage)
    check = stage.group.check_commit
    assert check(member.member_id, member.generation, [], supports_member_epochs=False) == [ErrorCode.none]
    assert check(member.member_id, member.generation - 1, [], supports_member_epochs=True) == [
        ErrorCode.illegal_generation
    ]
    assert stage.group.check_fetch(member.member_id, member.generation + 1) is ErrorCode.illegal_generation


def test_members_of_either_protocol_are_strangers_to_the_calls_of_the_other() -> None:
    stage = ConsumerStage()
    first, second = stage.joined(), _classic(stage)
    with pytest.raises(GroupError) as refused:
        stage.group.classic.heartbeat(replace(second.stamp, member_id=first.member_id))
    assert refused.value.code is ErrorCode.unknown_member_id
    described = {each.member_id: each.is_classic for each in stage.group.describe().members}
    assert described == {first.member_id: False, second.member_id: True}


def test_an_administrator_takes_members_of_either_protocol_away() -> None:
    """By their ids, or static ones by their instances alone; nobody else's id will do."""
    stage = ConsumerStage()
    static, dynamic, classic = stage.joined(instance_id="stone"), stage.joined(), _classic(stage)
    leaving = [
        LeavingMember(member_id="x"),
        LeavingMember(member_id="x", instance_id="y"),
        LeavingMember(member_id="x", instance_id="stone"),
        LeavingMember(member_id="", instance_id="stone"),
        LeavingMember(member_id=dynamic.member_id),
    ]
    assert stage.group.classic.leave(leaving) == [
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.none,
        ErrorCode.none,
    ]
    assert static.refused() is ErrorCode.unknown_member_id
    assert [each.member_id for each in stage.group.describe().members] == [classic.member_id]
    assert stage.group.downgrade is Downgrade.MEMBER_LEFT


@pytest.mark.parametrize(
    "changes",
    [{"protocol_type": "connect"}, {"protocols": ()}, {"protocols": (MemberProtocol("range", b"\0"),)}],
)
def test_whoever_is_no_consumer_is_refused(changes: dict[str, object]) -> None:
    stage = ConsumerStage()
    stage.joined()
    request = ClassicMember(stage, _GRANITE).request()
    with pytest.raises(GroupError) as refused:
        stage.group.classic.join(replace(request, **changes), stage.topics)  # type: ignore[arg-type]  # fields of it
    assert refused.value.code is ErrorCode.inconsistent_group_protocol


def test_a_static_member_comes_back_in_the_other_protocol() -> None:
    """It has its partitions again, and its former self is fenced; and so when it goes back."""
    stage = ConsumerStage()
    lasting = stage.joined()
    static = stage.joined(instance_id="i")
    stage.settle(lasting, static)
    before = static.owned
    again = _classic(stage, instance_id="i")
    assert again.owned == before
    assert static.refused() is ErrorCode.fenced_instance_id
    back = stage.joined(instance_id="i")
    assert back.owned == before
    assert again.step() is ErrorCode.fenced_instance_id
    assert stage.group.downgrade is None


def test_the_last_static_member_that_comes_back_classic_takes_the_group_with_it() -> None:
    """Nobody needs to rebalance for that."""
    stage = ConsumerStage()
    stage.joined(instance_id="i")
    member = ClassicMember(stage, _GRANITE, instance_id="i")
    member.step()
    assert stage.group.downgrade is Downgrade.MEMBER_REPLACED
    kept = downgrade_snapshot(stage.group.snapshot())
    (alone,) = kept.members
    assert (kept.generation, alone.member_id) == (member.generation, member.member_id)
    assert read_assignment(alone.assignment) == frozenset(("granite", number) for number in range(4))


def test_a_group_of_both_goes_on_under_another_coordinator() -> None:
    stage = ConsumerStage()
    first, second = stage.joined(), _classic(stage)
    for _ in range(3):
        first.beat()
        second.settle()
    before = (first.owned, second.owned)
    stage.move_coordinator()
    first.beat()
    assert second.step() is ErrorCode.none
    assert (first.owned, second.owned) == before


def test_classic_members_do_not_come_where_neither_protocol_may_be_left() -> None:
    stage = ConsumerStage(settings=GroupSettings(group_consumer_migration_policy=MigrationPolicy.DISABLED))
    stage.joined()
    with pytest.raises(GroupError) as refused:
        _classic(stage).step()
    assert refused.value.code is ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize(
    ("policy", "becomes_classic"),
    [
        (MigrationPolicy.DISABLED, False),
        (MigrationPolicy.UPGRADE, False),
        (MigrationPolicy.DOWNGRADE, True),
        (MigrationPolicy.BIDIRECTIONAL, True),
    ],
)
def test_a_group_left_to_classic_members_is_classic_if_it_may(
    policy: MigrationPolicy, *, becomes_classic: bool
) -> None:
    """At the same generation, so that what they read can be committed before they rebalance."""
    stage = ConsumerStage()
    first, second = stage.joined(), _classic(stage)
    for _ in range(3):
        first.beat()
        second.settle()
    stage.settings = GroupSettings(group_consumer_migration_policy=policy)
    stage.move_coordinator()
    first.leave()
    assert (stage.group.downgrade is Downgrade.MEMBER_LEFT) is becomes_classic
    if becomes_classic:
        kept = downgrade_snapshot(stage.group.snapshot())
        assert (kept.generation, kept.protocol, kept.leader) == (
            second.generation,
            "range",
            second.member_id,
        )
        (member,) = kept.members
        owned = read_assignment(member.assignment)
        assert owned == frozenset(("granite", part.partition) for part in second.owned)


def _kept(*assignments: bytes, metadata: bytes | None = None) -> ClassicGroupSnapshot:
    """A classic group with a member for each assignment."""
    said = subscription(_GRANITE) if metadata is None else metadata
    return ClassicGroupSnapshot(
        generation=7,
        protocol_type="consumer",
        protocol="range",
        leader="0",
        members=tuple(
            ClassicMemberSnapshot(
                member_id=str(number),
                instance_id=None,
                client_id="c",
                client_host="/h",
                session_timeout_ms=9_000,
                rebalance_timeout_ms=30_000,
                protocols=(MemberProtocol("range", said),),
                assignment=assignment,
            )
            for number, assignment in enumerate(assignments)
        ),
    )


def test_a_classic_group_becomes_a_consumer_group_and_back() -> None:
    """With members, assignments and generation; topics that are gone are left out."""
    before = _kept(
        write_assignment(1, [("granite", 0), ("gone", 0)]), write_assignment(1, [("granite", 1)]), b""
    )
    made = upgrade_snapshot("g", before, view(granite=2))
    assert [member.assigned for member in made.members] == [
        parts("granite", 0),
        parts("granite", 1),
        EMPTY_ASSIGNMENT,
    ]
    assert {member.epoch for member in made.members} == {made.group_epoch} == {7}
    again = downgrade_snapshot(replace(made, topics=view(granite=2).by_name))
    assert [read_assignment(member.assignment) for member in again.members] == [
        frozenset({("granite", 0)}),
        frozenset({("granite", 1)}),
        frozenset(),
    ]
    assert replace(again, members=(), subscribed_topics=None) == replace(before, members=())


@pytest.mark.parametrize(
    "kept",
    [
        _kept(write_assignment(0, [("granite", 0)]), write_assignment(0, [("granite", 0)])),
        _kept(b"\0"),
        _kept(b"", metadata=b""),
    ],
)
def test_a_group_whose_members_make_no_sense_stays_classic(kept: ClassicGroupSnapshot) -> None:
    """One partition given twice, and bytes that are no assignment or no subscription."""
    with pytest.raises(GroupError) as refused:
        upgrade_snapshot("g", kept, view(granite=2))
    assert refused.value.code is ErrorCode.group_id_not_found


@pytest.mark.parametrize(
    ("settings", "protocol_type"),
    [
        (GroupSettings(group_consumer_migration_policy=MigrationPolicy.DOWNGRADE), "consumer"),
        (GroupSettings(group_consumer_migration_policy=MigrationPolicy.DISABLED), "consumer"),
        (GroupSettings(group_consumer_max_size=1), "consumer"),
        (GroupSettings(), "connect"),
    ],
)
def test_not_every_classic_group_may_become_a_consumer_group(
    settings: GroupSettings, protocol_type: str
) -> None:
    kept = replace(_kept(b"", b""), protocol_type=protocol_type)
    with pytest.raises(GroupError) as refused:
        check_upgrade("g", kept, settings)
    assert refused.value.code is ErrorCode.group_id_not_found


def _taken_over(*, classic_members: int, session_timeout_ms: int) -> ConsumerStage:
    """A group of both whose coordinator changes, so that all sessions begin at once."""
    stage = ConsumerStage()
    stage.joined()
    for _ in range(classic_members):
        ClassicMember(stage, _GRANITE, session_timeout_ms=session_timeout_ms).settle()
    stage.move_coordinator()
    return stage


@pytest.mark.parametrize("session_timeout_ms", [20_000, 45_000, 50_000])
@pytest.mark.parametrize("classic_members", [1, 3])
def test_a_group_whose_members_are_all_out_at_once_takes_new_ones(
    classic_members: int, session_timeout_ms: int
) -> None:
    """Whichever was the last, it is empty and no classic group; what comes then is in a new epoch."""
    stage = _taken_over(classic_members=classic_members, session_timeout_ms=session_timeout_ms)
    before = stage.group.group_epoch
    stage.clock.advance(60)
    stage.group.expire()
    group = stage.group
    assert group.is_empty
    assert group.downgrade is None
    assert group.group_epoch > before
    assert group.snapshot().state_ms == stage.clock.now_ms()
    assert not group.is_subscribed("granite")
    newcomer = stage.joined()
    assert newcomer.owned == parts("granite", 0, 1, 2, 3)
    assert stage.group.downgrade is None


def test_of_a_group_that_is_out_but_for_a_classic_member_that_one_is_left() -> None:
    """It is classic, and has nobody else in it, when the others' sessions ended in one go."""
    stage = _taken_over(classic_members=2, session_timeout_ms=50_000)
    lasting = ClassicMember(stage, _GRANITE, session_timeout_ms=90_000)
    lasting.settle()
    stage.clock.advance(60)
    stage.group.expire()
    assert stage.group.downgrade is Downgrade.MEMBER_LEFT
    (alone,) = downgrade_snapshot(stage.group.snapshot()).members
    assert alone.member_id == lasting.member_id
