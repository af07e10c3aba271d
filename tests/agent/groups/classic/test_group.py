"""The life of a classic group, as Kafka's coordinator has it."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from agent.group_settings import GroupSettings
from agent.groups.classic.messages import ClassicGroupState, LeavingMember, MemberIdentity, MemberProtocol
from tests.agent.groups.stage import RANGE, ROBIN, Stage, subscription


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_a_dynamic_member_is_sent_back_with_an_id(stage: Stage) -> None:
    call = stage.join()
    assert call.error is ErrorCode.member_id_required
    assert call.joined.member_id.startswith("client-")
    assert stage.group.state is ClassicGroupState.EMPTY


def test_old_clients_join_without_an_id(stage: Stage) -> None:
    call = stage.join(requires_known_member_id=False)
    stage.pass_time(3.1)
    assert call.joined.generation == 1


def test_an_id_that_is_not_used_is_forgotten_after_a_session(stage: Stage) -> None:
    member_id = stage.new_member_id()
    stage.pass_time(10.1)
    assert stage.join(member_id).error is ErrorCode.unknown_member_id


def test_the_first_generation_waits_for_more_members_as_long_as_they_come(stage: Stage) -> None:
    first, second = stage.new_member_id(), stage.new_member_id()
    one = stage.join(first)
    stage.pass_time(2)
    two = stage.join(second)
    stage.pass_time(2)
    assert not one.answered
    stage.pass_time(2.1)
    assert one.joined.generation == two.joined.generation == 1
    assert one.joined.leader == first
    assert {member.member_id for member in one.joined.members} == {first, second}
    assert two.joined.members == ()


def test_the_first_generation_waits_no_longer_than_the_rebalance_timeout(stage: Stage) -> None:
    first = stage.join(stage.new_member_id(), rebalance_timeout_ms=6_000)
    for _ in range(4):
        stage.pass_time(1.5)
        stage.join(stage.new_member_id(), rebalance_timeout_ms=6_000)
    stage.pass_time(0.2)
    assert first.joined.generation == 1


def test_assignments_reach_everyone_once_the_leader_has_assigned_and_they_are_stored(stage: Stage) -> None:
    ids = [stage.new_member_id(), stage.new_member_id()]
    for member_id in ids:
        stage.join(member_id)
    stage.pass_time(6.1)
    stage.saves_wait = True
    follower, leader = stage.assign(ids)
    assert not follower.answered
    assert not leader.answered
    assert stage.group.describe().state is ClassicGroupState.COMPLETING_REBALANCE
    assert stage.snapshots[-1].generation == 1
    stage.waiting_saves.pop()(ErrorCode.none)
    assert leader.synced.assignment == ids[0].encode()
    assert follower.synced.assignment == ids[1].encode()
    assert (leader.synced.protocol_type, leader.synced.protocol) == ("consumer", "range")
    assert stage.group.state is ClassicGroupState.STABLE


def test_an_assignment_that_cannot_be_stored_begins_a_new_rebalance(stage: Stage) -> None:
    ids = [stage.new_member_id()]
    stage.join(ids[0])
    stage.pass_time(3.1)
    stage.saves_wait = True
    (call,) = stage.assign(ids)
    stage.waiting_saves.pop()(ErrorCode.coordinator_not_available)
    assert call.error is ErrorCode.coordinator_not_available
    assert stage.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_a_member_that_comes_makes_the_others_join_again(stage: Stage) -> None:
    ids = stage.stable(2)
    newcomer = stage.join(stage.new_member_id())
    assert [stage.heartbeat(member_id) for member_id in ids] == [ErrorCode.rebalance_in_progress] * 2
    again = [stage.join(member_id) for member_id in ids]
    assert {call.joined.generation for call in [newcomer, *again]} == {2}
    assert again[0].joined.leader == ids[0]


def test_a_member_that_leaves_makes_the_others_join_again(stage: Stage) -> None:
    ids = stage.stable(2)
    assert stage.group.leave([LeavingMember(member_id=ids[0])]) == [ErrorCode.none]
    assert stage.heartbeat(ids[1]) is ErrorCode.rebalance_in_progress
    again = stage.join(ids[1])
    assert again.joined.leader == ids[1]
    assert again.joined.generation == 2


def test_the_last_member_that_leaves_leaves_an_empty_group_of_a_later_generation(stage: Stage) -> None:
    (member_id,) = stage.stable(1)
    stage.group.leave([LeavingMember(member_id=member_id)])
    assert stage.group.state is ClassicGroupState.EMPTY
    assert stage.group.generation == 2
    assert stage.snapshots[-1].members == ()


def test_a_member_that_is_silent_is_removed_after_its_session(stage: Stage) -> None:
    ids = stage.stable(2)
    codes = []
    for _ in range(4):
        stage.pass_time(3)
        codes.append(stage.heartbeat(ids[0]))
    assert codes == [ErrorCode.none] * 3 + [ErrorCode.rebalance_in_progress]
    assert stage.heartbeat(ids[1]) is ErrorCode.unknown_member_id


def test_a_rebalance_goes_on_without_those_who_do_not_join_again(stage: Stage) -> None:
    ids = stage.stable(3, session_timeout_ms=60_000)
    newcomer = stage.join(stage.new_member_id())
    again = stage.join(ids[1])
    stage.pass_time(29)
    assert not again.answered
    stage.pass_time(1.1)
    assert again.joined.generation == newcomer.joined.generation == 2
    assert {again.joined.leader, newcomer.joined.leader} == {ids[1]}
    assert stage.heartbeat(ids[0]) is ErrorCode.unknown_member_id


def test_members_that_never_ask_for_their_assignment_are_removed(stage: Stage) -> None:
    ids = [stage.new_member_id(), stage.new_member_id()]
    for member_id in ids:
        stage.join(member_id, session_timeout_ms=60_000)
    stage.pass_time(6.1)
    follower = stage.sync(ids[1])
    stage.pass_time(30.1)
    assert follower.error is ErrorCode.rebalance_in_progress
    assert stage.heartbeat(ids[0]) is ErrorCode.unknown_member_id
    assert stage.heartbeat(ids[1]) is ErrorCode.rebalance_in_progress


def test_a_newcomer_during_the_assignment_stops_it(stage: Stage) -> None:
    ids = [stage.new_member_id(), stage.new_member_id()]
    for member_id in ids:
        stage.join(member_id)
    stage.pass_time(6.1)
    follower = stage.sync(ids[1])
    stage.join(stage.new_member_id())
    assert follower.error is ErrorCode.rebalance_in_progress
    assert stage.sync(ids[0]).error is ErrorCode.rebalance_in_progress


def test_a_member_that_lost_the_answer_gets_it_again(stage: Stage) -> None:
    ids = [stage.new_member_id(), stage.new_member_id()]
    for member_id in ids:
        stage.join(member_id)
    stage.pass_time(6.1)
    assert len(stage.join(ids[0]).joined.members) == 2
    assert stage.join(ids[1]).joined.generation == 1
    stage.assign(ids)
    assert stage.sync(ids[1]).synced.assignment == ids[1].encode()
    assert stage.join(ids[1]).joined.generation == 1
    assert stage.group.state is ClassicGroupState.STABLE


def test_a_leader_that_joins_again_begins_a_rebalance(stage: Stage) -> None:
    ids = stage.stable(2)
    assert not stage.join(ids[0]).answered
    assert stage.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_a_follower_with_another_subscription_begins_a_rebalance(stage: Stage) -> None:
    ids = stage.stable(2)
    assert not stage.join(ids[1], protocols=(MemberProtocol("range", subscription("other")),)).answered
    assert stage.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_the_protocol_that_most_like_best_of_the_common_ones_is_taken(stage: Stage) -> None:
    other = MemberProtocol("sticky", b"")
    calls = [
        stage.join(stage.new_member_id(), protocols=protocols)
        for protocols in [(other, ROBIN, RANGE), (RANGE, ROBIN), (ROBIN, RANGE)]
    ]
    stage.pass_time(6.1)
    assert {call.joined.protocol for call in calls} == {"roundrobin"}


@pytest.mark.parametrize(
    ("protocol_type", "protocols"), [("consumer", (ROBIN,)), ("connect", (RANGE,)), ("consumer", ())]
)
def test_members_without_a_common_protocol_are_refused(
    stage: Stage, protocol_type: str, protocols: tuple[MemberProtocol, ...]
) -> None:
    stage.stable(1)
    call = stage.join(protocol_type=protocol_type, protocols=protocols)
    assert call.error is ErrorCode.inconsistent_group_protocol


def test_an_empty_group_may_become_one_of_another_kind(stage: Stage) -> None:
    (member_id,) = stage.stable(1)
    stage.group.leave([LeavingMember(member_id=member_id)])
    stage.join(stage.join(protocol_type="connect").joined.member_id, protocol_type="connect")
    assert stage.group.protocol_type == "connect"


def test_a_full_group_takes_nobody_in() -> None:
    stage = Stage(settings=GroupSettings(group_max_size=2))
    ids = stage.stable(2)
    assert stage.join().error is ErrorCode.group_max_size_reached
    assert stage.heartbeat(ids[1]) is ErrorCode.none


@pytest.mark.parametrize(
    ("member_id", "generation", "code"),
    [
        ("nobody", None, ErrorCode.unknown_member_id),
        ("leader", 0, ErrorCode.illegal_generation),
        ("leader", 2, ErrorCode.illegal_generation),
        ("leader", None, ErrorCode.none),
    ],
)
def test_heartbeats_and_syncs_are_fenced_by_member_and_generation(
    stage: Stage, member_id: str, generation: int | None, code: ErrorCode
) -> None:
    ids = stage.stable(1)
    name = ids[0] if member_id == "leader" else member_id
    assert stage.heartbeat(name, generation) is code
    assert stage.sync(name, generation).error is code
    assert stage.group.check_commit(stage.stamp(name, generation)) is code


def test_commits_wait_for_the_end_of_a_rebalance_only_while_it_assigns(stage: Stage) -> None:
    ids = stage.stable(2)
    stage.join(stage.new_member_id())
    assert stage.group.check_commit(stage.stamp(ids[0])) is ErrorCode.none
    for member_id in ids:
        stage.join(member_id)
    assert stage.group.state is ClassicGroupState.COMPLETING_REBALANCE
    assert stage.group.check_commit(stage.stamp(ids[0])) is ErrorCode.rebalance_in_progress
    assert stage.group.check_commit(stage.stamp(ids[0], 1)) is ErrorCode.illegal_generation


def test_consumers_without_a_group_commit_only_to_an_empty_one(stage: Stage) -> None:
    assert stage.group.check_commit(MemberIdentity()) is ErrorCode.none
    stage.stable(1)
    assert stage.group.check_commit(MemberIdentity()) is ErrorCode.unknown_member_id


def test_only_an_empty_group_may_be_deleted(stage: Stage) -> None:
    assert stage.group.check_delete() is ErrorCode.none
    (member_id,) = stage.stable(1)
    assert stage.group.check_delete() is ErrorCode.non_empty_group
    assert stage.group.check_delete_offsets() is ErrorCode.none
    assert stage.group.is_subscribed("t")
    assert not stage.group.is_subscribed("other")
    stage.group.leave([LeavingMember(member_id=member_id)])
    assert stage.group.check_delete() is ErrorCode.none
    assert not stage.group.is_subscribed("t")


def test_a_group_goes_on_under_another_coordinator(stage: Stage) -> None:
    ids = stage.stable(2)
    stage.group = stage.new_group(stage.snapshots[-1])
    assert [stage.heartbeat(member_id, 1) for member_id in ids] == [ErrorCode.none] * 2
    assert stage.sync(ids[1]).synced.assignment == ids[1].encode()
    assert stage.group.is_subscribed("t")
    stage.pass_time(10.1)
    assert stage.group.state is ClassicGroupState.EMPTY
    assert stage.group.generation == 2


def test_a_group_that_is_unloaded_answers_everyone(stage: Stage) -> None:
    ids = stage.stable(2)
    waiting = stage.join(ids[0])
    stage.group.unload(ErrorCode.not_coordinator)
    assert waiting.error is ErrorCode.not_coordinator
    assert stage.group.state is ClassicGroupState.DEAD
    assert stage.join(ids[0]).error is ErrorCode.coordinator_not_available
    stage.pass_time(60)


def test_leaving_tells_for_each_member_whether_it_was_there(stage: Stage) -> None:
    ids = stage.stable(2)
    pending = stage.new_member_id()
    errors = stage.group.leave(
        [LeavingMember(member_id=name) for name in ["nobody", pending, ids[1]]]
        + [LeavingMember(instance_id="nobody's")]
    )
    assert errors == [
        ErrorCode.unknown_member_id,
        ErrorCode.none,
        ErrorCode.none,
        ErrorCode.unknown_member_id,
    ]


def test_a_member_that_waited_long_for_its_assignment_has_a_new_session_then(stage: Stage) -> None:
    """While it waits it need not send heartbeats; once it is answered it must again."""
    ids = [stage.new_member_id(), stage.new_member_id()]
    for member_id in ids:
        stage.join(member_id)
    stage.pass_time(6.1)
    follower = stage.sync(ids[1])
    for _ in range(3):
        stage.pass_time(5)
        stage.heartbeat(ids[0])
    stage.sync(ids[0], assignments={})
    assert follower.error is ErrorCode.none
    stage.pass_time(9)
    assert stage.heartbeat(ids[0]) is ErrorCode.none
    stage.pass_time(1.1)
    assert stage.heartbeat(ids[0]) is ErrorCode.rebalance_in_progress
    assert stage.heartbeat(ids[1]) is ErrorCode.unknown_member_id
