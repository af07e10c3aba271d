"""Rules of classic groups, which are those of Kafka's coordinator."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import ClassicGroupState, LeavingMember, MemberIdentity, MemberProtocol
from tests.agent.groups.classic_harness import RANGE, ROUND_ROBIN, ClassicHarness, encode_subscription


@pytest.fixture
def harness() -> ClassicHarness:
    return ClassicHarness()


def test_first_join_of_a_dynamic_member_is_assigned_an_id(harness: ClassicHarness) -> None:
    call = harness.join()
    assert call.error is ErrorCode.member_id_required
    assert call.join_response.member_id.startswith("client-")
    assert harness.group.state is ClassicGroupState.EMPTY


def test_client_of_an_old_version_joins_without_an_id(harness: ClassicHarness) -> None:
    call = harness.join(requires_known_member_id=False)
    harness.advance(3.1)
    assert call.join_response.generation == 1


def test_unused_member_id_expires_after_a_session_timeout(harness: ClassicHarness) -> None:
    member_id = harness.new_member_id()
    harness.advance(10.1)
    assert harness.join(member_id).error is ErrorCode.unknown_member_id


def test_first_generation_is_delayed_while_members_join(harness: ClassicHarness) -> None:
    first, second = harness.new_member_id(), harness.new_member_id()
    one = harness.join(first)
    harness.advance(2)
    two = harness.join(second)
    harness.advance(2)
    assert not one.is_done
    harness.advance(2.1)
    assert one.join_response.generation == two.join_response.generation == 1
    assert one.join_response.leader == first
    assert {member.member_id for member in one.join_response.members} == {first, second}
    assert two.join_response.members == ()


def test_first_generation_is_delayed_by_the_rebalance_timeout_at_most(harness: ClassicHarness) -> None:
    first = harness.join(harness.new_member_id(), rebalance_timeout_ms=6_000)
    for _ in range(4):
        harness.advance(1.5)
        harness.join(harness.new_member_id(), rebalance_timeout_ms=6_000)
    harness.advance(0.2)
    assert first.join_response.generation == 1


def test_assignments_are_sent_after_they_are_stored(
    harness: ClassicHarness,
) -> None:
    ids = [harness.new_member_id(), harness.new_member_id()]
    for member_id in ids:
        harness.join(member_id)
    harness.advance(6.1)
    harness.delay_saves = True
    follower, leader = harness.sync_all(ids)
    assert not follower.is_done
    assert not leader.is_done
    assert harness.group.describe().state is ClassicGroupState.COMPLETING_REBALANCE
    assert harness.snapshots[-1].generation == 1
    harness.pending_saves.pop()(ErrorCode.none)
    assert leader.sync_response.assignment == ids[0].encode()
    assert follower.sync_response.assignment == ids[1].encode()
    assert (leader.sync_response.protocol_type, leader.sync_response.protocol) == ("consumer", "range")
    assert harness.group.state is ClassicGroupState.STABLE


def test_assignment_that_cannot_be_stored_starts_a_rebalance(harness: ClassicHarness) -> None:
    ids = [harness.new_member_id()]
    harness.join(ids[0])
    harness.advance(3.1)
    harness.delay_saves = True
    (call,) = harness.sync_all(ids)
    harness.pending_saves.pop()(ErrorCode.coordinator_not_available)
    assert call.error is ErrorCode.coordinator_not_available
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_new_member_starts_a_rebalance(harness: ClassicHarness) -> None:
    ids = harness.make_stable(2)
    newcomer = harness.join(harness.new_member_id())
    assert [harness.heartbeat(member_id) for member_id in ids] == [ErrorCode.rebalance_in_progress] * 2
    again = [harness.join(member_id) for member_id in ids]
    assert {call.join_response.generation for call in [newcomer, *again]} == {2}
    assert again[0].join_response.leader == ids[0]


def test_leaving_member_starts_a_rebalance(harness: ClassicHarness) -> None:
    ids = harness.make_stable(2)
    assert harness.group.leave([LeavingMember(member_id=ids[0])]) == [ErrorCode.none]
    assert harness.heartbeat(ids[1]) is ErrorCode.rebalance_in_progress
    again = harness.join(ids[1])
    assert again.join_response.leader == ids[1]
    assert again.join_response.generation == 2


def test_group_is_empty_in_a_new_generation_after_its_last_member_left(
    harness: ClassicHarness,
) -> None:
    (member_id,) = harness.make_stable(1)
    harness.group.leave([LeavingMember(member_id=member_id)])
    assert harness.group.state is ClassicGroupState.EMPTY
    assert harness.group.generation == 2
    assert harness.snapshots[-1].members == ()


def test_member_without_heartbeats_is_removed_after_its_session_timeout(harness: ClassicHarness) -> None:
    ids = harness.make_stable(2)
    codes = []
    for _ in range(4):
        harness.advance(3)
        codes.append(harness.heartbeat(ids[0]))
    assert codes == [ErrorCode.none] * 3 + [ErrorCode.rebalance_in_progress]
    assert harness.heartbeat(ids[1]) is ErrorCode.unknown_member_id


def test_commits_extend_the_session_of_their_member(harness: ClassicHarness) -> None:
    """A member that only commits, for example while it processes a long batch, is alive."""
    ids = harness.make_stable(2)
    for _ in range(4):
        harness.advance(6)
        assert harness.group.check_commit(harness.identity(ids[0])) in {
            ErrorCode.none,
            ErrorCode.rebalance_in_progress,
        }
    assert harness.heartbeat(ids[0]) is not ErrorCode.unknown_member_id
    assert harness.heartbeat(ids[1]) is ErrorCode.unknown_member_id


def test_refused_commits_extend_no_session(harness: ClassicHarness) -> None:
    """As in Kafka, a member may not commit before it has its assignment in the new generation."""
    (member_id,) = harness.make_stable(1)
    newcomer = harness.join(harness.new_member_id())
    harness.join(member_id)
    assert newcomer.join_response.generation == 2
    codes = []
    for _ in range(2):
        harness.advance(6)
        codes.append(harness.group.check_commit(harness.identity(member_id)))
    assert codes == [ErrorCode.rebalance_in_progress, ErrorCode.unknown_member_id]


def test_rebalance_removes_members_that_do_not_join_in_time(harness: ClassicHarness) -> None:
    ids = harness.make_stable(3, session_timeout_ms=60_000)
    newcomer = harness.join(harness.new_member_id())
    again = harness.join(ids[1])
    harness.advance(29)
    assert not again.is_done
    harness.advance(1.1)
    assert again.join_response.generation == newcomer.join_response.generation == 2
    assert {again.join_response.leader, newcomer.join_response.leader} == {ids[1]}
    assert harness.heartbeat(ids[0]) is ErrorCode.unknown_member_id


def test_members_that_do_not_send_sync_in_time_are_removed(harness: ClassicHarness) -> None:
    ids = [harness.new_member_id(), harness.new_member_id()]
    for member_id in ids:
        harness.join(member_id, session_timeout_ms=60_000)
    harness.advance(6.1)
    follower = harness.sync(ids[1])
    harness.advance(30.1)
    assert follower.error is ErrorCode.rebalance_in_progress
    assert harness.heartbeat(ids[0]) is ErrorCode.unknown_member_id
    assert harness.heartbeat(ids[1]) is ErrorCode.rebalance_in_progress


def test_new_member_cancels_pending_syncs(harness: ClassicHarness) -> None:
    ids = [harness.new_member_id(), harness.new_member_id()]
    for member_id in ids:
        harness.join(member_id)
    harness.advance(6.1)
    follower = harness.sync(ids[1])
    harness.join(harness.new_member_id())
    assert follower.error is ErrorCode.rebalance_in_progress
    assert harness.sync(ids[0]).error is ErrorCode.rebalance_in_progress


def test_repeated_requests_get_the_same_response(harness: ClassicHarness) -> None:
    ids = [harness.new_member_id(), harness.new_member_id()]
    for member_id in ids:
        harness.join(member_id)
    harness.advance(6.1)
    assert len(harness.join(ids[0]).join_response.members) == 2
    assert harness.join(ids[1]).join_response.generation == 1
    harness.sync_all(ids)
    assert harness.sync(ids[1]).sync_response.assignment == ids[1].encode()
    assert harness.join(ids[1]).join_response.generation == 1
    assert harness.group.state is ClassicGroupState.STABLE


def test_leader_that_joins_again_starts_a_rebalance(harness: ClassicHarness) -> None:
    ids = harness.make_stable(2)
    assert not harness.join(ids[0]).is_done
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_follower_with_a_new_subscription_starts_a_rebalance(harness: ClassicHarness) -> None:
    ids = harness.make_stable(2)
    assert not harness.join(
        ids[1], protocols=(MemberProtocol("range", encode_subscription("other")),)
    ).is_done
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_common_protocol_with_most_votes_is_selected(harness: ClassicHarness) -> None:
    other = MemberProtocol("sticky", b"")
    calls = [
        harness.join(harness.new_member_id(), protocols=protocols)
        for protocols in [(other, ROUND_ROBIN, RANGE), (RANGE, ROUND_ROBIN), (ROUND_ROBIN, RANGE)]
    ]
    harness.advance(6.1)
    assert {call.join_response.protocol for call in calls} == {"roundrobin"}


@pytest.mark.parametrize(
    ("protocol_type", "protocols"), [("consumer", (ROUND_ROBIN,)), ("connect", (RANGE,)), ("consumer", ())]
)
def test_member_without_a_common_protocol_is_refused(
    harness: ClassicHarness, protocol_type: str, protocols: tuple[MemberProtocol, ...]
) -> None:
    harness.make_stable(1)
    call = harness.join(protocol_type=protocol_type, protocols=protocols)
    assert call.error is ErrorCode.inconsistent_group_protocol


def test_empty_group_may_change_its_protocol_type(harness: ClassicHarness) -> None:
    (member_id,) = harness.make_stable(1)
    harness.group.leave([LeavingMember(member_id=member_id)])
    harness.join(harness.join(protocol_type="connect").join_response.member_id, protocol_type="connect")
    assert harness.group.protocol_type == "connect"


def test_full_group_refuses_new_members() -> None:
    harness = ClassicHarness(settings=GroupSettings(group_max_size=2))
    ids = harness.make_stable(2)
    assert harness.join().error is ErrorCode.group_max_size_reached
    assert harness.heartbeat(ids[1]) is ErrorCode.none


@pytest.mark.parametrize(
    ("member_id", "generation", "code"),
    [
        ("unknown", None, ErrorCode.unknown_member_id),
        ("leader", 0, ErrorCode.illegal_generation),
        ("leader", 2, ErrorCode.illegal_generation),
        ("leader", None, ErrorCode.none),
    ],
)
def test_requests_are_fenced_by_member_id_and_generation(
    harness: ClassicHarness, member_id: str, generation: int | None, code: ErrorCode
) -> None:
    ids = harness.make_stable(1)
    sender = ids[0] if member_id == "leader" else member_id
    assert harness.heartbeat(sender, generation) is code
    assert harness.sync(sender, generation).error is code
    assert harness.group.check_commit(harness.identity(sender, generation)) is code


def test_commits_are_refused_only_while_a_rebalance_completes(harness: ClassicHarness) -> None:
    ids = harness.make_stable(2)
    harness.join(harness.new_member_id())
    assert harness.group.check_commit(harness.identity(ids[0])) is ErrorCode.none
    for member_id in ids:
        harness.join(member_id)
    assert harness.group.state is ClassicGroupState.COMPLETING_REBALANCE
    assert harness.group.check_commit(harness.identity(ids[0])) is ErrorCode.rebalance_in_progress
    in_transaction = harness.group.check_commit(harness.identity(ids[0]), is_transactional=True)
    assert in_transaction is ErrorCode.none
    assert harness.group.check_commit(harness.identity(ids[0], 1)) is ErrorCode.illegal_generation


def test_clients_that_are_no_members_commit_to_empty_groups_only(harness: ClassicHarness) -> None:
    assert harness.group.check_commit(MemberIdentity()) is ErrorCode.none
    (member_id,) = harness.make_stable(1)
    assert harness.group.check_commit(MemberIdentity()) is ErrorCode.unknown_member_id
    late = harness.identity(member_id)
    harness.group.leave([LeavingMember(member_id=member_id)])
    assert harness.group.check_commit(MemberIdentity()) is ErrorCode.none
    assert harness.group.check_commit(late) is ErrorCode.unknown_member_id


def test_only_an_empty_group_may_be_deleted(harness: ClassicHarness) -> None:
    assert harness.group.check_delete() is ErrorCode.none
    (member_id,) = harness.make_stable(1)
    assert harness.group.check_delete() is ErrorCode.non_empty_group
    assert harness.group.check_delete_offsets() is ErrorCode.none
    assert harness.group.is_subscribed("t")
    assert not harness.group.is_subscribed("other")
    harness.group.leave([LeavingMember(member_id=member_id)])
    assert harness.group.check_delete() is ErrorCode.none
    assert not harness.group.is_subscribed("t")


def test_new_coordinator_continues_from_the_snapshot(harness: ClassicHarness) -> None:
    ids = harness.make_stable(2)
    harness.group = harness.new_group(harness.snapshots[-1])
    assert [harness.heartbeat(member_id, 1) for member_id in ids] == [ErrorCode.none] * 2
    assert harness.sync(ids[1]).sync_response.assignment == ids[1].encode()
    assert harness.group.is_subscribed("t")
    harness.advance(10.1)
    assert harness.group.state is ClassicGroupState.EMPTY
    assert harness.group.generation == 2


def test_unload_refuses_pending_and_new_requests(harness: ClassicHarness) -> None:
    ids = harness.make_stable(2)
    waiting = harness.join(ids[0])
    harness.group.unload(ErrorCode.not_coordinator)
    assert waiting.error is ErrorCode.not_coordinator
    assert harness.group.state is ClassicGroupState.DEAD
    assert harness.join(ids[0]).error is ErrorCode.coordinator_not_available
    harness.advance(60)


def test_leave_returns_an_error_code_for_each_member(harness: ClassicHarness) -> None:
    ids = harness.make_stable(2)
    pending = harness.new_member_id()
    errors = harness.group.leave(
        [LeavingMember(member_id=name) for name in ["unknown", pending, ids[1]]]
        + [LeavingMember(instance_id="unknown instance")]
    )
    assert errors == [
        ErrorCode.unknown_member_id,
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
    ]


def test_session_timeout_starts_when_the_sync_response_is_sent(harness: ClassicHarness) -> None:
    """No session ends while a request of the member is pending."""
    ids = [harness.new_member_id(), harness.new_member_id()]
    for member_id in ids:
        harness.join(member_id)
    harness.advance(6.1)
    follower = harness.sync(ids[1])
    for _ in range(3):
        harness.advance(5)
        harness.heartbeat(ids[0])
    harness.sync(ids[0], assignments={})
    assert follower.error is ErrorCode.none
    harness.advance(9)
    assert harness.heartbeat(ids[0]) is ErrorCode.none
    harness.advance(1.1)
    assert harness.heartbeat(ids[0]) is ErrorCode.rebalance_in_progress
    assert harness.heartbeat(ids[1]) is ErrorCode.unknown_member_id


def test_a_leader_that_repeats_its_assignment_while_it_is_stored_does_not_replace_it(
    harness: ClassicHarness,
) -> None:
    """The next coordinator would otherwise have another assignment than the members."""
    ids = harness.make_stable(2)
    harness.delay_saves = True
    calls = [harness.join(each, protocols=(RANGE, ROUND_ROBIN)) for each in ids]
    assert [call.error for call in calls] == [ErrorCode.none] * 2
    first = harness.sync(ids[0], assignments={ids[0]: b"x", ids[1]: b"y"})
    repeated = harness.sync(ids[0], assignments={ids[0]: b"y", ids[1]: b"x"})
    while harness.pending_saves:
        harness.pending_saves.pop(0)(ErrorCode.none)
    assert first.error is ErrorCode.rebalance_in_progress
    assert repeated.sync_response.assignment == b"x"
    assert harness.sync(ids[1]).sync_response.assignment == b"y"
    stored = {member.member_id: member.assignment for member in harness.snapshots[-1].members}
    assert stored == {ids[0]: b"x", ids[1]: b"y"}


def test_a_leader_may_assign_again_after_its_assignment_could_not_be_stored(harness: ClassicHarness) -> None:
    ids = harness.make_stable(1)
    harness.delay_saves = True
    for error in (ErrorCode.coordinator_not_available, ErrorCode.none):
        harness.join(ids[0])
        synced = harness.sync(ids[0], assignments={ids[0]: b"x"})
        harness.pending_saves.pop()(error)
        assert synced.error is error
    assert harness.group.state is ClassicGroupState.STABLE
