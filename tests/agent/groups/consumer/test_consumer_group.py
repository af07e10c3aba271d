"""A consumer group's rules (KIP-848), one at a time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.group_settings import GroupSettings
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerGroupState, ConsumerHeartbeat
from agent.groups.consumer.validation import check_heartbeat
from agent.groups.errors import ErrorCode, GroupError
from tests.agent.groups.consumer_stage import ConsumerStage, StageMember, parts, view

JOIN = ConsumerHeartbeat(
    member_id="m",
    member_epoch=0,
    rebalance_timeout_ms=1_000,
    topics=frozenset({"granite"}),
    owned=EMPTY_ASSIGNMENT,
)


def code(group_id: str, request: ConsumerHeartbeat) -> ErrorCode:
    with pytest.raises(GroupError) as refused:
        check_heartbeat(group_id, request)
    return refused.value.code


def test_the_first_member_gets_everything_at_once() -> None:
    """One heartbeat joins, assigns and hands out."""
    stage = ConsumerStage()
    answer = stage.member().beat()
    assert (answer.member_epoch, answer.assignment) == (1, parts("granite", 0, 1, 2, 3))
    assert stage.group.describe().state is ConsumerGroupState.STABLE


def test_a_partition_is_given_away_only_when_its_reader_has_let_it_go() -> None:
    """The newcomer waits, the present reader revokes, then the newcomer gets what became free."""
    stage = ConsumerStage()
    first, second = stage.joined(), stage.joined()
    assert (second.epoch, second.owned) == (2, EMPTY_ASSIGNMENT)
    assert stage.group.describe().state is ConsumerGroupState.RECONCILING
    kept = first.beat().assignment
    assert kept is not None
    assert (len(kept), first.epoch) == (2, 1)
    assert second.beat().assignment is None
    first.beat()
    assert first.epoch == 2
    assert second.beat().assignment == parts("granite", 0, 1, 2, 3) - kept
    assert stage.group.describe().state is ConsumerGroupState.STABLE


def test_a_member_that_does_not_say_what_it_has_may_still_have_it() -> None:
    """Heartbeats without partitions acknowledge no revocation."""
    stage = ConsumerStage()
    first, second = stage.joined(), stage.joined()
    first.beat()
    first.take(stage.send(first.request(with_owned=False)))
    assert first.epoch == 1
    assert second.beat().assignment is None


def test_a_member_that_keeps_what_it_must_give_up_is_fenced() -> None:
    """Its own rebalance timeout is what it has for that."""
    stage = ConsumerStage(settings=GroupSettings(group_consumer_session_timeout_ms=3_600_000))
    first, second = stage.joined(), stage.joined()
    owned = first.owned
    for _ in range(2):
        first.owned = owned
        first.take(stage.send(first.request()))
        first.owned = owned
    stage.pass_time(31)
    assert first.refused() is ErrorCode.unknown_member_id
    stage.settle(second)
    assert second.owned == parts("granite", 0, 1, 2, 3)


def test_a_member_that_falls_silent_is_out() -> None:
    stage = ConsumerStage()
    first, second = stage.joined(), stage.joined()
    stage.settle(first, second)
    stage.pass_time(40)
    first.beat()
    stage.pass_time(10)
    assert second.refused() is ErrorCode.unknown_member_id
    stage.settle(first)
    assert first.owned == parts("granite", 0, 1, 2, 3)


def test_a_member_that_leaves_makes_room_at_once() -> None:
    stage = ConsumerStage()
    first, second = stage.joined(), stage.joined()
    stage.settle(first, second)
    assert first.leave().member_epoch == -1
    assert stage.group.describe().state is ConsumerGroupState.ASSIGNING
    second.beat()
    assert second.owned == parts("granite", 0, 1, 2, 3)


def test_the_last_answer_may_be_asked_for_again() -> None:
    """A member whose answer was lost comes with the epoch before, and is told again."""
    stage = ConsumerStage()
    first = stage.joined()
    other = stage.joined()
    first.beat()
    before = first.request()
    stage.send(before)
    assert stage.send(before).member_epoch == 2
    assert other.beat().assignment is not None


def test_a_member_is_told_again_until_it_says_what_it_has() -> None:
    """Late answers are dropped by librdkafka, which asks no more fully after that than before."""
    stage = ConsumerStage()
    first, second = stage.joined(), stage.joined()
    kept = stage.send(first.request()).assignment  # it does not hear of this
    assert kept is not None
    for _ in range(2):
        assert stage.send(first.request(with_owned=False)).assignment == kept
    first.take(stage.send(first.request(with_owned=False)))
    assert first.beat().assignment is None
    assert stage.send(first.request(with_owned=False)).assignment is None
    given = stage.send(second.request(with_owned=False)).assignment  # nor does this one
    assert given == parts("granite", 0, 1, 2, 3) - kept
    second.take(stage.send(second.request(with_owned=False)))
    assert (second.owned, second.beat().assignment) == (given, None)
    assert stage.send(second.request(with_owned=False)).assignment is None


def test_epochs_that_are_not_the_member_s_are_fenced() -> None:
    stage = ConsumerStage()
    first = stage.joined()
    for epoch in (2, 77):
        first.epoch = epoch
        assert first.refused() is ErrorCode.fenced_member_epoch
    first.epoch = 1
    stage.joined()
    stage.settle(first)
    stage.joined().leave()
    stage.settle(first)
    first.epoch = 1
    assert first.refused() is ErrorCode.fenced_member_epoch


def test_a_static_member_comes_back_to_its_partitions() -> None:
    """Who leaves with epoch -2 keeps them for a session: nobody else's assignment changes."""
    stage = ConsumerStage()
    static, other = stage.joined(instance_id="stone"), stage.joined()
    stage.settle(static, other)
    before, epoch = static.owned, other.epoch
    assert static.leave(-2).member_epoch == -2
    other.beat()
    assert other.epoch == epoch
    static.member_id = "back"
    static.beat()
    assert (static.owned, static.epoch) == (before, epoch)


def test_a_static_member_that_stays_away_loses_its_place() -> None:
    stage = ConsumerStage()
    static, other = stage.joined(instance_id="stone"), stage.joined()
    stage.settle(static, other)
    static.leave(-2)
    for _ in range(5):
        stage.pass_time(10)
        other.beat()
    stage.settle(other)
    assert other.owned == parts("granite", 0, 1, 2, 3)


def test_instances_are_had_by_one_member_at_a_time() -> None:
    stage = ConsumerStage()
    first = stage.joined(instance_id="stone")
    second = stage.member(instance_id="stone")
    assert second.refused() is ErrorCode.unreleased_instance_id
    first.leave(-2)
    second.beat()
    first.is_joining, first.epoch = False, 1
    assert first.refused() is ErrorCode.fenced_instance_id
    with pytest.raises(GroupError, match="fenced by member"):
        first.leave(-2)
    stranger = stage.member(instance_id="gravel")
    stranger.is_joining, stranger.epoch = False, 1
    assert stranger.refused() is ErrorCode.unknown_member_id


def test_topics_that_come_grow_and_go_change_the_assignment() -> None:
    stage = ConsumerStage(topics=view(granite=1))
    member = stage.joined("granite", "basalt")
    assert member.owned == parts("granite", 0)
    stage.topics = view(granite=1, basalt=2)
    stage.settle(member)
    assert member.owned == parts("granite", 0) | parts("basalt", 0, 1)
    stage.topics = view(granite=3)
    stage.settle(member)
    assert member.owned == parts("granite", 0, 1, 2)


def test_a_pattern_subscribes_to_what_it_matches_as_a_whole() -> None:
    stage = ConsumerStage(topics=view(granite=1, granola=1, igranite=1))
    member = stage.member("slate", regex="gran.*")
    member.beat()
    assert member.owned == parts("granite", 0) | parts("granola", 0)
    stage.topics = view(granite=1, granola=1, granary=1)
    stage.settle(member)
    assert member.owned == parts("granite", 0) | parts("granola", 0) | parts("granary", 0)
    stage.topics = view(granite=1, slate=1)
    member.take(stage.send(replace(member.request(), regex="")))
    stage.settle(member)
    assert member.owned == parts("slate", 0)


def test_the_assignor_that_most_members_want_is_used() -> None:
    stage = ConsumerStage()
    stage.joined(assignor="range")
    stage.joined()
    assert stage.group.describe().assignor == "range"
    assert ConsumerStage().group.describe().assignor == "uniform"


def test_a_member_that_wants_no_topic_yet_may_join() -> None:
    """A pattern that its client matches itself may match nothing before a topic comes."""
    stage = ConsumerStage()
    for wants in (replace(JOIN, topics=frozenset()), replace(JOIN, topics=None, regex="")):
        assert stage.send(wants).assignment == frozenset()
    later = ConsumerHeartbeat(member_id=JOIN.member_id, member_epoch=1, topics=frozenset({"granite"}))
    assert stage.send(later).assignment == parts("granite", 0, 1, 2, 3)


def test_a_member_that_was_fenced_may_join_again_at_once() -> None:
    """Its session need not end first: it has what it had, and no other is disturbed."""
    stage = ConsumerStage()
    first, other = stage.joined(), stage.joined()
    stage.settle(first, other)
    had = first.owned
    first.epoch = 77
    assert first.refused() is ErrorCode.fenced_member_epoch
    first.is_joining = True
    assert first.beat().assignment == had
    assert (first.epoch, stage.group.group_epoch, stage.group.member_count) == (2, 2, 2)
    assert other.beat().assignment is None


def test_a_full_group_takes_nobody_else() -> None:
    stage = ConsumerStage(settings=GroupSettings(group_consumer_max_size=1))
    first = stage.joined()
    assert stage.member().refused() is ErrorCode.group_max_size_reached
    first.beat()


@pytest.mark.parametrize(
    ("group_id", "request_", "wanted"),
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
        ("g", replace(JOIN, owned=parts("granite", 0)), ErrorCode.invalid_request),
        ("g", replace(JOIN, topics=None), ErrorCode.invalid_request),
        ("g", replace(JOIN, assignor="magic"), ErrorCode.unsupported_assignor),
        ("g", replace(JOIN, regex="("), ErrorCode.invalid_regular_expression),
    ],
)
def test_heartbeats_that_make_no_sense_are_refused(
    group_id: str, request_: ConsumerHeartbeat, wanted: ErrorCode
) -> None:
    assert code(group_id, request_) is wanted


def test_offsets_are_committed_in_the_member_s_own_epoch() -> None:
    stage = ConsumerStage()
    check = stage.group.check_commit
    assert check("", -1, [], supports_member_epochs=True) == [ErrorCode.none]
    member = stage.joined()
    assert check("", -1, [], supports_member_epochs=True) == [ErrorCode.unknown_member_id]
    assert check(member.member_id, 1, [], supports_member_epochs=True) == [ErrorCode.none]
    assert check(member.member_id, 1, [], supports_member_epochs=False) == [ErrorCode.unsupported_version]
    for epoch in (-1, 0, 2):
        assert check(member.member_id, epoch, [], supports_member_epochs=True) == [
            ErrorCode.stale_member_epoch
        ]
    assert stage.group.check_fetch(None, -1) is ErrorCode.none
    assert stage.group.check_fetch(member.member_id, 1) is ErrorCode.none
    assert stage.group.check_fetch(member.member_id, 2) is ErrorCode.stale_member_epoch
    assert stage.group.check_fetch("nobody", 1) is ErrorCode.unknown_member_id


def refusals(stage: ConsumerStage, member: StageMember, epoch: int, *numbers: int) -> list[bool]:
    """Of a member's commits to partitions of granite in an epoch: which are refused."""
    partitions = sorted(parts("granite", *numbers))
    codes = stage.group.check_commit(member.member_id, epoch, partitions, supports_member_epochs=True)
    assert set(codes) <= {ErrorCode.none, ErrorCode.stale_member_epoch}
    return [code is not ErrorCode.none for code in codes]


def test_what_a_member_has_had_since_an_epoch_it_may_still_commit_in_it() -> None:
    """As long as nobody else can have had it; also while it gives it up."""
    stage = ConsumerStage()
    first = stage.joined()
    second = stage.joined()
    assert first.epoch == 1
    told = first.beat()
    assert (first.epoch, len(told.assignment or ())) == (1, 2)
    assert refusals(stage, first, 1, 0, 1, 2, 3) == [False] * 4
    stage.settle(first, second)
    assert first.epoch == second.epoch == 2
    kept = sorted(each.partition for each in first.owned)
    assert [not each for each in refusals(stage, first, 1, 0, 1, 2, 3)] == [n in kept for n in range(4)]
    assert refusals(stage, second, 1, 0, 1, 2, 3) == [True] * 4
    second.leave()
    stage.settle(first)
    assert first.epoch == 3
    for epoch in (1, 2):
        found = [not each for each in refusals(stage, first, epoch, 0, 1, 2, 3)]
        assert found == [n in kept for n in range(4)]
    assert refusals(stage, first, 3, 0, 1, 2, 3) == [False] * 4
    assert refusals(stage, first, 4, 0, 1, 2, 3) == [True] * 4
    assert refusals(stage, first, 2, 9) == [True]


def test_another_coordinator_knows_no_epochs_before_its_own() -> None:
    """What it took over is committed in the epoch that the member was in then, or later."""
    stage = ConsumerStage()
    first, second = stage.joined(), stage.joined()
    stage.settle(first, second)
    kept = [each.partition for each in first.owned]
    stage.move_coordinator()
    assert refusals(stage, first, 1, *kept) == [True] * 2
    second.leave()
    stage.settle(first)
    assert first.epoch == 3
    assert refusals(stage, first, 2, *kept) == [False] * 2


def test_another_coordinator_goes_on_where_the_last_one_stopped() -> None:
    """Members, epochs, what they have and what they are about to give up: all is stored."""
    stage = ConsumerStage(topics=view(granite=4, granola=1))
    first, second = stage.joined(instance_id="stone"), stage.joined(assignor="range", regex="granola")
    first.beat()
    before = stage.group.describe()
    stage.move_coordinator()
    assert stage.group.describe() == before
    stage.settle(first, second)
    assert first.owned | second.owned == parts("granite", 0, 1, 2, 3) | parts("granola", 0)
    assert first.owned.isdisjoint(second.owned)
    stage.move_coordinator()
    stage.pass_time(46)
    assert stage.group.is_empty


def test_heartbeats_that_change_nothing_have_nothing_to_store() -> None:
    stage = ConsumerStage()
    member = stage.joined()
    version = stage.group.version
    answers = [member.beat() for _ in range(3)]
    assert stage.group.version == version
    assert [answer.assignment for answer in answers] == [None] * 3


def test_a_member_without_an_id_is_given_one() -> None:
    stage = ConsumerStage()
    member = StageMember(stage, "", frozenset({"granite"}))
    member.beat()
    assert member.member_id
    assert member.beat().member_epoch == 1
