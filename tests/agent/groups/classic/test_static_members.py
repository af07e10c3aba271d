"""Static membership (KIP-345): members that keep their place over restarts."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from agent.groups.classic.messages import ClassicGroupState, LeavingMember
from tests.agent.groups.stage import RANGE, ROBIN, Call, Stage


@pytest.fixture
def stage() -> Stage:
    return Stage()


def static_group(stage: Stage, *instances: str) -> list[str]:
    """A stable group of static members; their ids in the order of the instances."""
    calls = [stage.join(instance_id=instance) for instance in instances]
    stage.pass_time(6.1)
    ids = [call.joined.member_id for call in calls]
    stage.assign(ids)
    assert stage.group.state is ClassicGroupState.STABLE
    return ids


def test_a_static_member_that_comes_back_disturbs_nobody(stage: Stage) -> None:
    ids = static_group(stage, "a", "b")
    back = stage.join(instance_id="b")
    assert back.joined.generation == 1
    assert back.joined.member_id not in ids
    assert stage.group.state is ClassicGroupState.STABLE
    assert stage.sync(back.joined.member_id, instance_id="b").synced.assignment == ids[1].encode()
    assert stage.snapshots[-1].members[1].member_id == back.joined.member_id
    assert stage.heartbeat(ids[0], instance_id="a") is ErrorCode.none


def test_its_former_self_is_fenced(stage: Stage) -> None:
    ids = static_group(stage, "a", "b")
    stage.join(instance_id="b")
    assert stage.heartbeat(ids[1], instance_id="b") is ErrorCode.fenced_instance_id
    assert stage.join(ids[1], instance_id="b").error is ErrorCode.fenced_instance_id
    assert stage.sync(ids[1], instance_id="b").error is ErrorCode.fenced_instance_id
    assert stage.group.check_commit(stage.stamp(ids[1], None, "b")) is ErrorCode.fenced_instance_id


def test_a_leader_that_comes_back_need_not_assign_again(stage: Stage) -> None:
    static_group(stage, "a", "b")
    back = stage.join(instance_id="a").joined
    assert back.leader == back.member_id
    assert back.skip_assignment
    assert len(back.members) == 2


def test_an_old_leader_is_told_that_its_former_self_leads(stage: Stage) -> None:
    ids = static_group(stage, "a", "b")
    back = stage.join(instance_id="a", supports_skipping_assignment=False).joined
    assert back.leader == ids[0]
    assert back.members == ()
    assert not back.skip_assignment


def test_one_that_comes_back_with_another_protocol_begins_a_rebalance(stage: Stage) -> None:
    calls = [stage.join(instance_id=instance, protocols=(RANGE, ROBIN)) for instance in "ab"]
    stage.pass_time(6.1)
    stage.assign([call.joined.member_id for call in calls])
    back = stage.join(instance_id="b", protocols=(ROBIN,))
    assert not back.answered
    assert stage.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_a_place_that_could_not_be_handed_over_stays_with_its_former_holder(stage: Stage) -> None:
    ids = static_group(stage, "a", "b")
    stage.saves_wait = True
    back = stage.join(instance_id="b")
    assert not back.answered
    stage.waiting_saves.pop()(ErrorCode.coordinator_not_available)
    assert back.error is ErrorCode.coordinator_not_available
    assert stage.heartbeat(ids[1], instance_id="b") is ErrorCode.none


def test_one_that_joins_twice_before_it_is_stored_has_the_second_id(stage: Stage) -> None:
    """Its client gave up the first join: the answer to that is not the answer to the second."""
    static_group(stage, "a", "b")
    stage.saves_wait = True
    first, second = stage.join(instance_id="b"), stage.join(instance_id="b")
    assert first.error is ErrorCode.fenced_instance_id
    stage.waiting_saves.pop(0)(ErrorCode.none)
    assert not second.answered
    stage.waiting_saves.pop(0)(ErrorCode.none)
    assert second.joined.error is ErrorCode.none
    assert stage.snapshots[-1].members[1].member_id == second.joined.member_id
    assert stage.sync(second.joined.member_id, instance_id="b").error is ErrorCode.none


def test_a_second_join_stands_though_the_first_could_not_be_stored(stage: Stage) -> None:
    static_group(stage, "a", "b")
    stage.saves_wait = True
    stage.join(instance_id="b")
    second = stage.join(instance_id="b")
    stage.waiting_saves.pop(0)(ErrorCode.coordinator_not_available)
    assert not second.answered
    stage.waiting_saves.pop(0)(ErrorCode.none)
    assert stage.heartbeat(second.joined.member_id, instance_id="b") is ErrorCode.none


def test_a_place_that_could_not_be_handed_over_stays_as_it_was(stage: Stage) -> None:
    """With the protocols and the timeouts of its former holder."""
    static_group(stage, "a", "b")
    before = stage.group.snapshot()
    stage.saves_wait = True
    stage.join(instance_id="b", protocols=(RANGE, ROBIN), session_timeout_ms=9_000, rebalance_timeout_ms=1)
    assert stage.group.snapshot() != before
    stage.waiting_saves.pop()(ErrorCode.coordinator_not_available)
    assert stage.group.snapshot() == before


def test_a_rebalance_waits_for_static_members_and_keeps_their_places(stage: Stage) -> None:
    ids = static_group(stage, "a", "b")
    newcomer = stage.join(stage.new_member_id())
    again = stage.join(ids[0], instance_id="a")
    for _ in range(9):
        stage.pass_time(4)
        stage.heartbeat(ids[1], instance_id="b")
    assert again.joined.generation == newcomer.joined.generation == 2
    assert {member.instance_id for member in again.joined.members} == {"a", "b", None}


def test_a_static_member_leaves_only_by_session_or_by_name(stage: Stage) -> None:
    static_group(stage, "a", "b")
    assert stage.group.leave([LeavingMember(instance_id="b")]) == [ErrorCode.none]
    stage.pass_time(10.1)
    assert stage.group.state is ClassicGroupState.EMPTY


def test_two_members_of_one_instance_that_join_at_once(stage: Stage) -> None:
    """The second takes the place of the first, which is told so at once."""
    first: Call = stage.join(instance_id="a")
    second = stage.join(instance_id="a")
    assert first.error is ErrorCode.fenced_instance_id
    stage.pass_time(6.1)
    assert second.joined.generation == 1
