"""Static members of classic groups (KIP-345)."""

from __future__ import annotations

import pytest
from kio.schema.errors import ErrorCode

from agent.groups.classic.messages import ClassicGroupState, LeavingMember
from tests.agent.groups.classic_harness import RANGE, ROUND_ROBIN, Call, ClassicHarness


@pytest.fixture
def harness() -> ClassicHarness:
    return ClassicHarness()


def static_group(harness: ClassicHarness, *instances: str) -> list[str]:
    """Return the member ids of a stable group of static members, in the order of the instances."""
    calls = [harness.join(instance_id=instance) for instance in instances]
    harness.advance(6.1)
    ids = [call.join_response.member_id for call in calls]
    harness.sync_all(ids)
    assert harness.group.state is ClassicGroupState.STABLE
    return ids


def test_restarted_static_member_causes_no_rebalance(harness: ClassicHarness) -> None:
    ids = static_group(harness, "a", "b")
    rejoined = harness.join(instance_id="b")
    assert rejoined.join_response.generation == 1
    assert rejoined.join_response.member_id not in ids
    assert harness.group.state is ClassicGroupState.STABLE
    assert (
        harness.sync(rejoined.join_response.member_id, instance_id="b").sync_response.assignment
        == ids[1].encode()
    )
    assert harness.snapshots[-1].members[1].member_id == rejoined.join_response.member_id
    assert harness.heartbeat(ids[0], instance_id="a") is ErrorCode.none


def test_old_member_id_of_a_restarted_static_member_is_fenced(harness: ClassicHarness) -> None:
    ids = static_group(harness, "a", "b")
    harness.join(instance_id="b")
    assert harness.heartbeat(ids[1], instance_id="b") is ErrorCode.fenced_instance_id
    assert harness.join(ids[1], instance_id="b").error is ErrorCode.fenced_instance_id
    assert harness.sync(ids[1], instance_id="b").error is ErrorCode.fenced_instance_id
    assert harness.group.check_commit(harness.identity(ids[1], None, "b")) is ErrorCode.fenced_instance_id


def test_restarted_leader_skips_the_assignment(harness: ClassicHarness) -> None:
    static_group(harness, "a", "b")
    rejoined = harness.join(instance_id="a").join_response
    assert rejoined.leader == rejoined.member_id
    assert rejoined.skip_assignment
    assert len(rejoined.members) == 2


def test_restarted_leader_of_an_old_version_sees_its_old_id_as_leader(harness: ClassicHarness) -> None:
    ids = static_group(harness, "a", "b")
    rejoined = harness.join(instance_id="a", supports_skipping_assignment=False).join_response
    assert rejoined.leader == ids[0]
    assert rejoined.members == ()
    assert not rejoined.skip_assignment


def test_restarted_static_member_with_another_protocol_starts_a_rebalance(harness: ClassicHarness) -> None:
    calls = [harness.join(instance_id=instance, protocols=(RANGE, ROUND_ROBIN)) for instance in "ab"]
    harness.advance(6.1)
    harness.sync_all([call.join_response.member_id for call in calls])
    rejoined = harness.join(instance_id="b", protocols=(ROUND_ROBIN,))
    assert not rejoined.is_done
    assert harness.group.state is ClassicGroupState.PREPARING_REBALANCE


def test_replacement_that_cannot_be_stored_is_undone(harness: ClassicHarness) -> None:
    ids = static_group(harness, "a", "b")
    harness.delay_saves = True
    rejoined = harness.join(instance_id="b")
    assert not rejoined.is_done
    harness.pending_saves.pop()(ErrorCode.coordinator_not_available)
    assert rejoined.error is ErrorCode.coordinator_not_available
    assert harness.heartbeat(ids[1], instance_id="b") is ErrorCode.none


def test_second_join_of_a_restarted_member_fences_the_first(harness: ClassicHarness) -> None:
    """The client has given up the first join, so only the second gets the member id."""
    static_group(harness, "a", "b")
    harness.delay_saves = True
    first, second = harness.join(instance_id="b"), harness.join(instance_id="b")
    assert first.error is ErrorCode.fenced_instance_id
    harness.pending_saves.pop(0)(ErrorCode.none)
    assert not second.is_done
    harness.pending_saves.pop(0)(ErrorCode.none)
    assert second.join_response.error is ErrorCode.none
    assert harness.snapshots[-1].members[1].member_id == second.join_response.member_id
    assert harness.sync(second.join_response.member_id, instance_id="b").error is ErrorCode.none


def test_second_join_succeeds_if_the_first_could_not_be_stored(harness: ClassicHarness) -> None:
    static_group(harness, "a", "b")
    harness.delay_saves = True
    harness.join(instance_id="b")
    second = harness.join(instance_id="b")
    harness.pending_saves.pop(0)(ErrorCode.coordinator_not_available)
    assert not second.is_done
    harness.pending_saves.pop(0)(ErrorCode.none)
    assert harness.heartbeat(second.join_response.member_id, instance_id="b") is ErrorCode.none


def test_undone_replacement_restores_protocols_and_timeouts(harness: ClassicHarness) -> None:
    static_group(harness, "a", "b")
    before = harness.group.snapshot()
    harness.delay_saves = True
    harness.join(
        instance_id="b", protocols=(RANGE, ROUND_ROBIN), session_timeout_ms=9_000, rebalance_timeout_ms=1
    )
    assert harness.group.snapshot() != before
    harness.pending_saves.pop()(ErrorCode.coordinator_not_available)
    assert harness.group.snapshot() == before


def test_rebalance_keeps_static_members_that_do_not_join(harness: ClassicHarness) -> None:
    ids = static_group(harness, "a", "b")
    new_member = harness.join(harness.new_member_id())
    again = harness.join(ids[0], instance_id="a")
    for _ in range(9):
        harness.advance(4)
        harness.heartbeat(ids[1], instance_id="b")
    assert again.join_response.generation == new_member.join_response.generation == 2
    assert {member.instance_id for member in again.join_response.members} == {"a", "b", None}


def test_static_member_leaves_by_instance_id_or_session_timeout(harness: ClassicHarness) -> None:
    static_group(harness, "a", "b")
    assert harness.group.leave([LeavingMember(instance_id="b")]) == [ErrorCode.none]
    harness.advance(10.1)
    assert harness.group.state is ClassicGroupState.EMPTY


def test_second_member_of_an_instance_fences_the_first(harness: ClassicHarness) -> None:
    first: Call = harness.join(instance_id="a")
    second = harness.join(instance_id="a")
    assert first.error is ErrorCode.fenced_instance_id
    harness.advance(6.1)
    assert second.join_response.generation == 1


def test_a_static_member_that_dies_while_its_restart_is_stored_is_removed(harness: ClassicHarness) -> None:
    """The write takes longer than its session."""
    ids = static_group(harness, "a", "b")
    harness.delay_saves = True
    rejoined = harness.join(instance_id="b")
    for _ in range(3):
        harness.advance(4)
        harness.heartbeat(ids[0], instance_id="a")
    harness.pending_saves.pop()(ErrorCode.none)
    assert rejoined.error is ErrorCode.none
    for _ in range(3):
        harness.advance(4)
        harness.heartbeat(ids[0], instance_id="a")
    assert harness.group.member_count == 1
