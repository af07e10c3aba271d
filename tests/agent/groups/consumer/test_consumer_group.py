"""Rules of consumer groups (KIP-848)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from agent.group_settings import GroupSettings
from agent.groups.consumer.members import ConsumerMembers
from agent.groups.consumer.messages import (
    EMPTY_ASSIGNMENT,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupState,
    ConsumerHeartbeat,
)
from agent.groups.consumer.state_machine import MAX_PATTERNS
from agent.groups.consumer.validation import check_heartbeat
from agent.groups.errors import ErrorCode, GroupError
from tests.agent.groups.consumer_harness import ConsumerClient, ConsumerHarness, partitions, topic_view

if TYPE_CHECKING:
    from agent.groups.consumer.topics import TopicView

JOIN = ConsumerHeartbeat(
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=1_000,
    topics=frozenset({"granite"}),
    owned=EMPTY_ASSIGNMENT,
)


def validation_error(group_id: str, request: ConsumerHeartbeat) -> ErrorCode:
    with pytest.raises(GroupError) as refused:
        check_heartbeat(group_id, request)
    return refused.value.code


def test_first_heartbeat_joins_and_returns_the_assignment() -> None:
    harness = ConsumerHarness()
    response = harness.new_client().heartbeat()
    assert (response.member_epoch, response.assignment) == (1, partitions("granite", 0, 1, 2, 3))
    assert harness.group.describe().state is ConsumerGroupState.STABLE


def test_partition_is_assigned_after_its_owner_has_revoked_it() -> None:
    """The new member gets no partition until the heartbeat of the owner omits it."""
    harness = ConsumerHarness()
    first, second = harness.join_client(), harness.join_client()
    assert (second.epoch, second.owned) == (2, EMPTY_ASSIGNMENT)
    assert harness.group.describe().state is ConsumerGroupState.RECONCILING
    kept = first.heartbeat().assignment
    assert kept is not None
    assert (len(kept), first.epoch) == (2, 1)
    assert second.heartbeat().assignment is None
    first.heartbeat()
    assert first.epoch == 2
    assert second.heartbeat().assignment == partitions("granite", 0, 1, 2, 3) - kept
    assert harness.group.describe().state is ConsumerGroupState.STABLE


def test_heartbeat_without_partitions_confirms_no_revocation() -> None:
    harness = ConsumerHarness()
    first, second = harness.join_client(), harness.join_client()
    first.heartbeat()
    first.receive(harness.send(first.request(with_owned=False)))
    assert first.epoch == 1
    assert second.heartbeat().assignment is None


def test_member_that_does_not_revoke_within_its_rebalance_timeout_is_fenced() -> None:
    harness = ConsumerHarness(settings=GroupSettings(group_consumer_session_timeout_ms=3_600_000))
    first, second = harness.join_client(), harness.join_client()
    owned = first.owned
    for _ in range(2):
        first.owned = owned
        first.receive(harness.send(first.request()))
        first.owned = owned
    harness.advance(31)
    assert first.heartbeat_error() is ErrorCode.unknown_member_id
    harness.stabilize(second)
    assert second.owned == partitions("granite", 0, 1, 2, 3)


def test_member_without_heartbeats_is_fenced_after_the_session_timeout() -> None:
    harness = ConsumerHarness()
    first, second = harness.join_client(), harness.join_client()
    harness.stabilize(first, second)
    harness.advance(40)
    first.heartbeat()
    harness.advance(10)
    assert second.heartbeat_error() is ErrorCode.unknown_member_id
    harness.stabilize(first)
    assert first.owned == partitions("granite", 0, 1, 2, 3)


def test_partitions_of_a_leaving_member_are_assigned_at_once() -> None:
    harness = ConsumerHarness()
    first, second = harness.join_client(), harness.join_client()
    harness.stabilize(first, second)
    assert first.leave().member_epoch == -1
    assert harness.group.describe().state is ConsumerGroupState.ASSIGNING
    second.heartbeat()
    assert second.owned == partitions("granite", 0, 1, 2, 3)


def test_heartbeat_of_the_previous_epoch_is_accepted() -> None:
    """The response that raised the epoch may have been lost."""
    harness = ConsumerHarness()
    first = harness.join_client()
    other = harness.join_client()
    first.heartbeat()
    before = first.request()
    harness.send(before)
    assert harness.send(before).member_epoch == 2
    assert other.heartbeat().assignment is not None


@pytest.mark.parametrize("reports_partitions", [True, False])
def test_previous_epoch_with_lost_partitions_is_fenced(*, reports_partitions: bool) -> None:
    """A member may repeat the previous epoch because a response was lost, but it owns no lost partition."""
    harness = ConsumerHarness()
    first = harness.join_client()
    before = first.request()
    second = harness.join_client()
    harness.stabilize(first, second)
    assert (first.epoch, before.member_epoch) == (2, 1)
    assert before.owned is not None
    assert before.owned > first.owned
    late = before if reports_partitions else replace(before, owned=None)
    with pytest.raises(GroupError) as refused:
        harness.send(late)
    assert refused.value.code is ErrorCode.fenced_member_epoch
    assert second.heartbeat().assignment is None
    assert first.owned.isdisjoint(second.owned)


def test_previous_epoch_with_partitions_to_revoke_is_fenced() -> None:
    """The lost response asked the member to revoke one more partition in its new epoch."""
    harness = ConsumerHarness(topics=topic_view(granite=6))
    first = harness.join_client()
    harness.join_client()
    first.heartbeat()
    assert (first.epoch, len(first.owned)) == (1, 3)
    harness.join_client()
    before = first.request()
    response = harness.send(before)
    assert response.assignment is not None
    assert (response.member_epoch, len(response.assignment)) == (2, 2)
    with pytest.raises(GroupError) as refused:
        harness.send(before)
    assert refused.value.code is ErrorCode.fenced_member_epoch


def test_new_coordinator_repeats_assignments_until_members_confirm_them() -> None:
    """The response with the assignment may have been lost with the previous coordinator."""
    harness = ConsumerHarness()
    member = harness.new_client()
    epoch = harness.send(member.request()).member_epoch  # the member receives all but the assignment
    member.is_joining, member.epoch = False, epoch
    harness.move_coordinator()
    for _ in range(2):
        repeated = harness.send(member.request(with_owned=False)).assignment
        assert repeated == partitions("granite", 0, 1, 2, 3)
    member.owned = partitions("granite", 0, 1, 2, 3)
    assert member.heartbeat().assignment is None
    assert harness.send(member.request(with_owned=False)).assignment is None


def test_assignment_is_repeated_until_the_member_confirms_it() -> None:
    """The client librdkafka drops late responses and does not ask for its assignment again."""
    harness = ConsumerHarness()
    first, second = harness.join_client(), harness.join_client()
    kept = harness.send(first.request()).assignment  # this response is lost
    assert kept is not None
    for _ in range(2):
        assert harness.send(first.request(with_owned=False)).assignment == kept
    first.receive(harness.send(first.request(with_owned=False)))
    assert first.heartbeat().assignment is None
    assert harness.send(first.request(with_owned=False)).assignment is None
    given = harness.send(second.request(with_owned=False)).assignment  # so is this one
    assert given == partitions("granite", 0, 1, 2, 3) - kept
    second.receive(harness.send(second.request(with_owned=False)))
    assert (second.owned, second.heartbeat().assignment) == (given, None)
    assert harness.send(second.request(with_owned=False)).assignment is None


def test_wrong_member_epochs_are_fenced() -> None:
    harness = ConsumerHarness()
    first = harness.join_client()
    for epoch in (2, 77):
        first.epoch = epoch
        assert first.heartbeat_error() is ErrorCode.fenced_member_epoch
    first.epoch = 1
    harness.join_client()
    harness.stabilize(first)
    harness.join_client().leave()
    harness.stabilize(first)
    first.epoch = 1
    assert first.heartbeat_error() is ErrorCode.fenced_member_epoch


def test_static_member_rejoins_with_its_assignment() -> None:
    """A member that left with epoch -2 keeps its partitions for a session timeout."""
    harness = ConsumerHarness()
    static, other = harness.join_client(instance_id="stone"), harness.join_client()
    harness.stabilize(static, other)
    before, epoch = static.owned, other.epoch
    assert static.leave(-2).member_epoch == -2
    other.heartbeat()
    assert other.epoch == epoch
    static.member_id = "back"
    static.heartbeat()
    assert (static.owned, static.epoch) == (before, epoch)


def test_static_member_that_does_not_rejoin_loses_its_assignment() -> None:
    harness = ConsumerHarness()
    static, other = harness.join_client(instance_id="stone"), harness.join_client()
    harness.stabilize(static, other)
    static.leave(-2)
    for _ in range(5):
        harness.advance(10)
        other.heartbeat()
    harness.stabilize(other)
    assert other.owned == partitions("granite", 0, 1, 2, 3)


def test_a_rejected_static_member_uses_no_generated_member_id() -> None:
    harness, without_rejection = ConsumerHarness(), ConsumerHarness()
    for each in (harness, without_rejection):
        each.join_client(instance_id="stone")
    with pytest.raises(GroupError, match="owned by member-1"):
        harness.group.heartbeat(replace(JOIN, member_id="", instance_id="stone"), harness.topics)
    assert harness.ids.new_uuid() == without_rejection.ids.new_uuid()


def test_instance_id_belongs_to_one_member() -> None:
    harness = ConsumerHarness()
    first = harness.join_client(instance_id="stone")
    second = harness.new_client(instance_id="stone")
    assert second.heartbeat_error() is ErrorCode.unreleased_instance_id
    first.leave(-2)
    second.heartbeat()
    first.is_joining, first.epoch = False, 1
    assert first.heartbeat_error() is ErrorCode.fenced_instance_id
    with pytest.raises(GroupError, match="fenced by member"):
        first.leave(-2)
    unknown = harness.new_client(instance_id="gravel")
    unknown.is_joining, unknown.epoch = False, 1
    assert unknown.heartbeat_error() is ErrorCode.unknown_member_id


def test_created_extended_and_deleted_topics_change_the_assignment() -> None:
    harness = ConsumerHarness(topics=topic_view(granite=1))
    member = harness.join_client("granite", "basalt")
    assert member.owned == partitions("granite", 0)
    harness.topics = topic_view(granite=1, basalt=2)
    harness.stabilize(member)
    assert member.owned == partitions("granite", 0) | partitions("basalt", 0, 1)
    harness.topics = topic_view(granite=3)
    harness.stabilize(member)
    assert member.owned == partitions("granite", 0, 1, 2)


def test_pattern_subscribes_to_the_names_it_matches_as_a_whole() -> None:
    harness = ConsumerHarness(topics=topic_view(granite=1, granola=1, igranite=1))
    member = harness.new_client("slate", regex="gran.*")
    member.heartbeat()
    assert member.owned == partitions("granite", 0) | partitions("granola", 0)
    harness.topics = topic_view(granite=1, granola=1, granary=1)
    harness.stabilize(member)
    assert member.owned == partitions("granite", 0) | partitions("granola", 0) | partitions("granary", 0)
    harness.topics = topic_view(granite=1, slate=1)
    member.receive(harness.send(replace(member.request(), regex="")))
    harness.stabilize(member)
    assert member.owned == partitions("slate", 0)


def test_assignor_with_most_votes_is_used() -> None:
    harness = ConsumerHarness()
    harness.join_client(assignor="range")
    harness.join_client()
    assert harness.group.describe().assignor == "range"
    assert ConsumerHarness().group.describe().assignor == "uniform"


def test_member_without_topics_may_join() -> None:
    """A pattern that the client itself evaluates may match no topic yet."""
    harness = ConsumerHarness()
    for request in (replace(JOIN, topics=frozenset()), replace(JOIN, topics=None, regex="")):
        assert harness.send(request).assignment == frozenset()
    later = ConsumerHeartbeat(member_id=JOIN.member_id, member_epoch=1, topics=frozenset({"granite"}))
    assert harness.send(later).assignment == partitions("granite", 0, 1, 2, 3)


def test_fenced_member_rejoins_with_its_assignment() -> None:
    """Its session need not end first, and the other members keep their epoch."""
    harness = ConsumerHarness()
    first, other = harness.join_client(), harness.join_client()
    harness.stabilize(first, other)
    had = first.owned
    first.epoch = 77
    assert first.heartbeat_error() is ErrorCode.fenced_member_epoch
    first.is_joining = True
    assert first.heartbeat().assignment == had
    assert (first.epoch, harness.group.group_epoch, harness.group.member_count) == (2, 2, 2)
    assert other.heartbeat().assignment is None


def test_full_group_refuses_new_members() -> None:
    harness = ConsumerHarness(settings=GroupSettings(group_consumer_max_size=1))
    first = harness.join_client()
    assert harness.new_client().heartbeat_error() is ErrorCode.group_max_size_reached
    first.heartbeat()


@pytest.mark.parametrize(
    ("group_id", "request_", "expected"),
    [
        (" ", JOIN, ErrorCode.invalid_request),
        ("g", replace(JOIN, instance_id=""), ErrorCode.invalid_request),
        ("g", replace(JOIN, rack_id=" "), ErrorCode.invalid_request),
        ("g", replace(JOIN, member_epoch=-3), ErrorCode.invalid_request),
        ("g", replace(JOIN, member_epoch=1, member_id=""), ErrorCode.invalid_request),
        ("g", replace(JOIN, member_id="", member_id_required=True), ErrorCode.invalid_request),
        ("g", replace(JOIN, member_epoch=-2), ErrorCode.invalid_request),
        ("g", replace(JOIN, rebalance_timeout_ms=-1), ErrorCode.invalid_request),
        ("g", replace(JOIN, owned=None), ErrorCode.invalid_request),
        ("g", replace(JOIN, owned=partitions("granite", 0)), ErrorCode.invalid_request),
        ("g", replace(JOIN, topics=None), ErrorCode.invalid_request),
        ("g", replace(JOIN, assignor="magic"), ErrorCode.unsupported_assignor),
        ("g", replace(JOIN, regex="("), ErrorCode.invalid_regular_expression),
    ],
)
def test_invalid_heartbeats_are_refused(
    group_id: str, request_: ConsumerHeartbeat, expected: ErrorCode
) -> None:
    assert validation_error(group_id, request_) is expected


def test_commits_and_fetches_are_fenced_by_the_member_epoch() -> None:
    harness = ConsumerHarness()
    check = harness.group.check_commit
    assert check("", -1, [], supports_member_epochs=True) == [ErrorCode.none]
    member = harness.join_client()
    assert check("", -1, [], supports_member_epochs=True) == [ErrorCode.unknown_member_id]
    assert check(member.member_id, 1, [], supports_member_epochs=True) == [ErrorCode.none]
    assert check(member.member_id, 1, [], supports_member_epochs=False) == [ErrorCode.unsupported_version]
    for epoch in (-1, 0, 2):
        assert check(member.member_id, epoch, [], supports_member_epochs=True) == [
            ErrorCode.stale_member_epoch
        ]
    assert harness.group.check_fetch(None, -1) is ErrorCode.none
    assert harness.group.check_fetch(member.member_id, 1) is ErrorCode.none
    assert harness.group.check_fetch(member.member_id, 2) is ErrorCode.stale_member_epoch
    assert harness.group.check_fetch("unknown", 1) is ErrorCode.unknown_member_id


def refused_partitions(
    harness: ConsumerHarness, member: ConsumerClient, epoch: int, *indexes: int
) -> list[bool]:
    """Return True for each commit to a partition of granite that is refused, in order of the partitions."""
    committed = sorted(partitions("granite", *indexes))
    codes = harness.group.check_commit(member.member_id, epoch, committed, supports_member_epochs=True)
    assert set(codes) <= {ErrorCode.none, ErrorCode.stale_member_epoch}
    return [code is not ErrorCode.none for code in codes]


def test_commit_in_an_earlier_epoch_is_accepted_for_partitions_owned_since_then() -> None:
    """Partitions that the member is revoking are included (KIP-1251)."""
    harness = ConsumerHarness()
    first = harness.join_client()
    second = harness.join_client()
    assert first.epoch == 1
    response = first.heartbeat()
    assert (first.epoch, len(response.assignment or ())) == (1, 2)
    assert refused_partitions(harness, first, 1, 0, 1, 2, 3) == [False] * 4
    harness.stabilize(first, second)
    assert first.epoch == second.epoch == 2
    kept = sorted(each.partition for each in first.owned)
    assert [not each for each in refused_partitions(harness, first, 1, 0, 1, 2, 3)] == [
        n in kept for n in range(4)
    ]
    assert refused_partitions(harness, second, 1, 0, 1, 2, 3) == [True] * 4
    second.leave()
    harness.stabilize(first)
    assert first.epoch == 3
    for epoch in (1, 2):
        found = [not each for each in refused_partitions(harness, first, epoch, 0, 1, 2, 3)]
        assert found == [n in kept for n in range(4)]
    assert refused_partitions(harness, first, 3, 0, 1, 2, 3) == [False] * 4
    assert refused_partitions(harness, first, 4, 0, 1, 2, 3) == [True] * 4
    assert refused_partitions(harness, first, 2, 9) == [True]


def test_new_coordinator_refuses_commits_of_epochs_before_its_own() -> None:
    harness = ConsumerHarness()
    first, second = harness.join_client(), harness.join_client()
    harness.stabilize(first, second)
    kept = [each.partition for each in first.owned]
    harness.move_coordinator()
    assert refused_partitions(harness, first, 1, *kept) == [True] * 2
    second.leave()
    harness.stabilize(first)
    assert first.epoch == 3
    assert refused_partitions(harness, first, 2, *kept) == [False] * 2


def test_new_coordinator_continues_from_the_snapshot() -> None:
    """Members, epochs, assignments and pending revocations are stored."""
    harness = ConsumerHarness(topics=topic_view(granite=4, granola=1))
    first, second = (
        harness.join_client(instance_id="stone"),
        harness.join_client(assignor="range", regex="granola"),
    )
    first.heartbeat()
    before = harness.group.describe()
    harness.move_coordinator()
    assert harness.group.describe() == before
    harness.stabilize(first, second)
    assert first.owned | second.owned == partitions("granite", 0, 1, 2, 3) | partitions("granola", 0)
    assert first.owned.isdisjoint(second.owned)
    harness.move_coordinator()
    harness.advance(46)
    assert harness.group.is_empty


def test_heartbeat_that_changes_nothing_leaves_the_version_unchanged() -> None:
    harness = ConsumerHarness()
    member = harness.join_client()
    version = harness.group.version
    responses = [member.heartbeat() for _ in range(3)]
    assert harness.group.version == version
    assert [response.assignment for response in responses] == [None] * 3


def test_member_without_an_id_is_assigned_one() -> None:
    harness = ConsumerHarness()
    member = ConsumerClient(harness, "", frozenset({"granite"}))
    member.heartbeat()
    assert member.member_id
    assert member.heartbeat().member_epoch == 1


def test_a_member_that_changes_its_instance_id_gives_the_earlier_one_up() -> None:
    harness = ConsumerHarness()
    client = harness.join_client(instance_id="first")
    client.instance_id = "second"
    client.reset()
    client.heartbeat()
    harness.join_client(instance_id="first")
    assert harness.group.member_count == 2


def test_a_static_member_whose_restart_is_refused_may_still_join_again() -> None:
    """It joins without its new pattern, which is one too many."""
    harness = ConsumerHarness()
    for number in range(MAX_PATTERNS - 1):
        harness.join_client(regex=f"pattern{number}")
    harness.join_client()
    static = harness.join_client(instance_id="i")
    static.leave(LEAVE_STATIC_EPOCH)
    restarted = harness.new_client(instance_id="i", regex="another")
    assert restarted.heartbeat_error() is ErrorCode.group_max_size_reached
    restarted.regex = None
    restarted.heartbeat()
    harness.advance(60)
    assert harness.group.is_empty


def test_sessions_that_end_together_cost_one_look_at_all_members(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one look for each, 10,000 members that die would block the event loop for seconds."""
    harness = ConsumerHarness(topics=topic_view(granite=4, basalt=4))
    for _ in range(20):
        harness.join_client("basalt")
    harness.clock.advance(30)
    survivor = harness.join_client("granite")
    looks: list[int] = []
    subscribed_topics = ConsumerMembers.subscribed_topics

    def looked(members: ConsumerMembers, topics: TopicView) -> frozenset[str]:
        looks.append(len(members))
        return subscribed_topics(members, topics)

    monkeypatch.setattr(ConsumerMembers, "subscribed_topics", looked)
    harness.clock.advance(20)
    harness.group.expire()
    assert looks == [1]
    assert not harness.group.is_subscribed("basalt")
    survivor.heartbeat()
    assert survivor.owned == partitions("granite", 0, 1, 2, 3)
