"""Members of the classic protocol in a consumer group, and conversions between the protocols."""

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
from tests.agent.groups.classic_client import ClassicClient, encode_owned_subscription
from tests.agent.groups.consumer_harness import ConsumerHarness, partitions, topic_view

_GRANITE = frozenset({"granite"})


def _join_classic_client(
    harness: ConsumerHarness, *, cooperative: bool = False, instance_id: str | None = None
) -> ClassicClient:
    member = ClassicClient(harness, _GRANITE, cooperative, instance_id)
    member.stabilize()
    return member


def test_classic_member_rejoins_when_its_partitions_are_revoked() -> None:
    """It gets the free partitions first. Its heartbeat asks for a join when the others are free, too."""
    harness = ConsumerHarness()
    first = harness.join_client()
    second = _join_classic_client(harness)
    assert (first.owned, second.owned) == (partitions("granite", 0, 1, 2, 3), EMPTY_ASSIGNMENT)
    assert second.step() is ErrorCode.none
    first.heartbeat()
    first.heartbeat()
    assert second.step() is ErrorCode.rebalance_in_progress
    second.stabilize()
    assert len(first.owned) == len(second.owned) == 2
    assert first.owned.isdisjoint(second.owned)


@pytest.mark.parametrize("cooperative", [False, True])
def test_partitions_of_a_classic_member_are_not_assigned_while_it_may_read_them(*, cooperative: bool) -> None:
    """A cooperative member reads until its SyncGroup response. An eager one stops before JoinGroup."""
    harness = ConsumerHarness()
    first = _classic_client_alone(harness, cooperative=cooperative)
    assert first.owned == partitions("granite", 0, 1, 2, 3)
    second = harness.join_client()
    assert second.owned == EMPTY_ASSIGNMENT
    assert first.step() is ErrorCode.rebalance_in_progress
    assert first.step() is ErrorCode.none  # it has joined and has no SyncGroup response yet
    second.heartbeat()
    assert second.owned.isdisjoint(first.owned)
    assert len(first.owned) == (4 if cooperative else 0)
    first.step()
    second.heartbeat()
    assert second.owned.isdisjoint(first.owned)
    for _ in range(4):
        first.step()
        second.heartbeat()
    assert len(first.owned) == len(second.owned) == 2


def _classic_client_alone(harness: ConsumerHarness, *, cooperative: bool) -> ClassicClient:
    """Return the only member of a consumer group whose migration policy forbids a downgrade."""
    harness.group._machine.settings = replace(
        harness.settings, group_consumer_migration_policy=MigrationPolicy.UPGRADE
    )
    other = harness.join_client()
    member = _join_classic_client(harness, cooperative=cooperative)
    other.leave()
    for _ in range(4):
        member.stabilize()
    return member


def test_classic_member_that_does_not_rejoin_in_time_is_fenced() -> None:
    """Heartbeats alone do not keep it: it must join within its rebalance timeout."""
    harness = ConsumerHarness()
    first, second = harness.join_client(), _join_classic_client(harness)
    harness.join_client()
    for _ in range(3):
        assert harness.group.classic.heartbeat(second.identity) is ErrorCode.rebalance_in_progress
        harness.advance(10)
        first.heartbeat()
    with pytest.raises(GroupError) as refused:
        harness.group.classic.heartbeat(second.identity)
    assert refused.value.code is ErrorCode.unknown_member_id


def test_commits_and_fetches_of_classic_members_are_fenced_by_generation() -> None:
    """Any version of OffsetCommit will do, because the generation is the member epoch."""
    harness = ConsumerHarness()
    harness.join_client()
    member = _join_classic_client(harness)
    check = harness.group.check_commit
    assert check(member.member_id, member.generation, [], supports_member_epochs=False) == [ErrorCode.none]
    assert check(member.member_id, member.generation - 1, [], supports_member_epochs=True) == [
        ErrorCode.illegal_generation
    ]
    assert harness.group.check_fetch(member.member_id, member.generation + 1) is ErrorCode.illegal_generation


def test_consumer_member_is_unknown_to_classic_requests() -> None:
    harness = ConsumerHarness()
    first, second = harness.join_client(), _join_classic_client(harness)
    with pytest.raises(GroupError) as refused:
        harness.group.classic.heartbeat(replace(second.identity, member_id=first.member_id))
    assert refused.value.code is ErrorCode.unknown_member_id
    described = {each.member_id: each.is_classic for each in harness.group.describe().members}
    assert described == {first.member_id: False, second.member_id: True}


def test_leave_group_removes_members_of_both_protocols() -> None:
    """Static members may be named by instance id alone."""
    harness = ConsumerHarness()
    static, dynamic, classic = (
        harness.join_client(instance_id="stone"),
        harness.join_client(),
        _join_classic_client(harness),
    )
    leaving = [
        LeavingMember(member_id="x"),
        LeavingMember(member_id="x", instance_id="y"),
        LeavingMember(member_id="x", instance_id="stone"),
        LeavingMember(member_id="", instance_id="stone"),
        LeavingMember(member_id=dynamic.member_id),
    ]
    assert harness.group.classic.leave(leaving) == [
        ErrorCode.unknown_member_id,
        ErrorCode.unknown_member_id,
        ErrorCode.fenced_instance_id,
        ErrorCode.none,
        ErrorCode.none,
    ]
    assert static.heartbeat_error() is ErrorCode.unknown_member_id
    assert [each.member_id for each in harness.group.describe().members] == [classic.member_id]
    assert harness.group.downgrade is Downgrade.MEMBER_LEFT


@pytest.mark.parametrize(
    "changes",
    [{"protocol_type": "connect"}, {"protocols": ()}, {"protocols": (MemberProtocol("range", b"\0"),)}],
)
def test_join_with_another_protocol_type_or_bad_metadata_is_refused(changes: dict[str, object]) -> None:
    harness = ConsumerHarness()
    harness.join_client()
    request = ClassicClient(harness, _GRANITE).request()
    with pytest.raises(GroupError) as refused:
        harness.group.classic.join(replace(request, **changes), harness.topics)  # type: ignore[arg-type]  # fields of it
    assert refused.value.code is ErrorCode.inconsistent_group_protocol


def test_static_member_changes_its_protocol() -> None:
    """It keeps its partitions both ways, and its old member id is fenced."""
    harness = ConsumerHarness()
    remaining = harness.join_client()
    static = harness.join_client(instance_id="i")
    harness.stabilize(remaining, static)
    before = static.owned
    again = _join_classic_client(harness, instance_id="i")
    assert again.owned == before
    assert static.heartbeat_error() is ErrorCode.fenced_instance_id
    back = harness.join_client(instance_id="i")
    assert back.owned == before
    assert again.step() is ErrorCode.fenced_instance_id
    assert harness.group.downgrade is None


def test_group_is_downgraded_when_its_last_member_rejoins_as_classic() -> None:
    """The downgrade needs no rebalance."""
    harness = ConsumerHarness()
    harness.join_client(instance_id="i")
    member = ClassicClient(harness, _GRANITE, instance_id="i")
    member.step()
    assert harness.group.downgrade is Downgrade.MEMBER_REPLACED
    snapshot = downgrade_snapshot(harness.group.snapshot())
    (alone,) = snapshot.members
    assert (snapshot.generation, alone.member_id) == (member.generation, member.member_id)
    assert read_assignment(alone.assignment) == frozenset(("granite", index) for index in range(4))


def test_new_coordinator_continues_with_members_of_both_protocols() -> None:
    harness = ConsumerHarness()
    first, second = harness.join_client(), _join_classic_client(harness)
    for _ in range(3):
        first.heartbeat()
        second.stabilize()
    before = (first.owned, second.owned)
    harness.move_coordinator()
    first.heartbeat()
    assert second.step() is ErrorCode.none
    assert (first.owned, second.owned) == before


def test_classic_member_is_refused_if_migration_is_disabled() -> None:
    harness = ConsumerHarness(
        settings=GroupSettings(group_consumer_migration_policy=MigrationPolicy.DISABLED)
    )
    harness.join_client()
    with pytest.raises(GroupError) as refused:
        _join_classic_client(harness).step()
    assert refused.value.code is ErrorCode.inconsistent_group_protocol


@pytest.mark.parametrize(
    ("policy", "is_downgraded"),
    [
        (MigrationPolicy.DISABLED, False),
        (MigrationPolicy.UPGRADE, False),
        (MigrationPolicy.DOWNGRADE, True),
        (MigrationPolicy.BIDIRECTIONAL, True),
    ],
)
def test_group_of_classic_members_is_downgraded_if_the_policy_allows(
    policy: MigrationPolicy, *, is_downgraded: bool
) -> None:
    """The generation stays the same, so members can commit what they read before they rebalance."""
    harness = ConsumerHarness()
    first, second = harness.join_client(), _join_classic_client(harness)
    for _ in range(3):
        first.heartbeat()
        second.stabilize()
    harness.settings = GroupSettings(group_consumer_migration_policy=policy)
    harness.move_coordinator()
    first.leave()
    assert (harness.group.downgrade is Downgrade.MEMBER_LEFT) is is_downgraded
    if is_downgraded:
        snapshot = downgrade_snapshot(harness.group.snapshot())
        assert (snapshot.generation, snapshot.protocol, snapshot.leader) == (
            second.generation,
            "range",
            second.member_id,
        )
        (member,) = snapshot.members
        owned = read_assignment(member.assignment)
        assert owned == frozenset(("granite", part.partition) for part in second.owned)


def _snapshot(*assignments: bytes, metadata: bytes | None = None) -> ClassicGroupSnapshot:
    """Return a classic group with one member for each assignment."""
    encoded = encode_owned_subscription(_GRANITE) if metadata is None else metadata
    return ClassicGroupSnapshot(
        generation=7,
        protocol_type="consumer",
        protocol="range",
        leader="0",
        members=tuple(
            ClassicMemberSnapshot(
                member_id=str(index),
                instance_id=None,
                client_id="c",
                client_host="/h",
                session_timeout_ms=9_000,
                rebalance_timeout_ms=30_000,
                protocols=(MemberProtocol("range", encoded),),
                assignment=assignment,
            )
            for index, assignment in enumerate(assignments)
        ),
    )


def test_upgrade_and_downgrade_keep_members_assignments_and_generation() -> None:
    """Partitions of deleted topics are left out."""
    before = _snapshot(
        write_assignment(1, [("granite", 0), ("gone", 0)]), write_assignment(1, [("granite", 1)]), b""
    )
    upgraded = upgrade_snapshot("g", before, topic_view(granite=2))
    assert [member.assigned for member in upgraded.members] == [
        partitions("granite", 0),
        partitions("granite", 1),
        EMPTY_ASSIGNMENT,
    ]
    assert {member.epoch for member in upgraded.members} == {upgraded.group_epoch} == {7}
    again = downgrade_snapshot(replace(upgraded, topics=topic_view(granite=2).by_name))
    assert [read_assignment(member.assignment) for member in again.members] == [
        frozenset({("granite", 0)}),
        frozenset({("granite", 1)}),
        frozenset(),
    ]
    assert replace(again, members=(), subscribed_topics=None) == replace(before, members=())


@pytest.mark.parametrize(
    "snapshot",
    [
        _snapshot(write_assignment(0, [("granite", 0)]), write_assignment(0, [("granite", 0)])),
        _snapshot(b"\0"),
        _snapshot(b"", metadata=b""),
    ],
)
def test_group_with_malformed_members_is_not_upgraded(snapshot: ClassicGroupSnapshot) -> None:
    """A partition is assigned twice, or an assignment or a subscription cannot be parsed."""
    with pytest.raises(GroupError) as refused:
        upgrade_snapshot("g", snapshot, topic_view(granite=2))
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
def test_upgrade_is_refused_by_policy_size_and_protocol_type(
    settings: GroupSettings, protocol_type: str
) -> None:
    snapshot = replace(_snapshot(b"", b""), protocol_type=protocol_type)
    with pytest.raises(GroupError) as refused:
        check_upgrade("g", snapshot, settings)
    assert refused.value.code is ErrorCode.group_id_not_found


def _moved_harness(*, classic_members: int, session_timeout_ms: int) -> ConsumerHarness:
    """Return a group after a change of its coordinator, so that all sessions start at once."""
    harness = ConsumerHarness()
    harness.join_client()
    for _ in range(classic_members):
        ClassicClient(harness, _GRANITE, session_timeout_ms=session_timeout_ms).stabilize()
    harness.move_coordinator()
    return harness


@pytest.mark.parametrize("session_timeout_ms", [20_000, 45_000, 50_000])
@pytest.mark.parametrize("classic_members", [1, 3])
def test_group_is_empty_after_all_sessions_time_out_at_once(
    classic_members: int, session_timeout_ms: int
) -> None:
    """In no order of expiry does it become a classic group. The next member joins in a new epoch."""
    harness = _moved_harness(classic_members=classic_members, session_timeout_ms=session_timeout_ms)
    before = harness.group.group_epoch
    harness.clock.advance(60)
    harness.group.expire()
    group = harness.group
    assert group.is_empty
    assert group.downgrade is None
    assert group.group_epoch > before
    assert group.snapshot().state_ms == harness.clock.now_ms()
    assert not group.is_subscribed("granite")
    new_client = harness.join_client()
    assert new_client.owned == partitions("granite", 0, 1, 2, 3)
    assert harness.group.downgrade is None


def test_group_is_downgraded_to_the_one_classic_member_left() -> None:
    harness = _moved_harness(classic_members=2, session_timeout_ms=50_000)
    remaining = ClassicClient(harness, _GRANITE, session_timeout_ms=90_000)
    remaining.stabilize()
    harness.clock.advance(60)
    harness.group.expire()
    assert harness.group.downgrade is Downgrade.MEMBER_LEFT
    (alone,) = downgrade_snapshot(harness.group.snapshot()).members
    assert alone.member_id == remaining.member_id
