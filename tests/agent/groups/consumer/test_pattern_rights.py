"""Members that subscribe by pattern are assigned only topics that they may describe."""

from __future__ import annotations

from agent.groups.consumer.messages import EMPTY_ASSIGNMENT
from tests.agent.groups.consumer.test_topic_patterns import make_rules
from tests.agent.groups.consumer_harness import ConsumerClient, ConsumerHarness, partitions, topic_view

_ALICE, _BOB = "User:alice", "User:bob"
_ALL = partitions("granite", 0, 1) | partitions("slate", 0, 1)
_BOTH = ((_ALICE, "*", ""), (_BOB, "*", ""))


def allow(harness: ConsumerHarness, *describers: tuple[str, str, str]) -> None:
    """Let the harness have two topics, which these clients may describe."""
    view = topic_view(granite=2, slate=2)
    harness.topics = type(view)(view.by_name, make_rules(*describers))


def join(harness: ConsumerHarness, principal: str) -> ConsumerClient:
    """Return a client that has joined with a pattern for all topics."""
    client = harness.new_client(regex=".*", principal=principal)
    client.topics = frozenset()
    client.heartbeat()
    return client


def test_a_member_takes_no_partition_from_members_that_may_describe_it() -> None:
    """The members share their pattern. Each has its own rights."""
    harness = ConsumerHarness()
    allow(harness, (_ALICE, "*", ""), (_BOB, "*", "gran"))
    alice = join(harness, _ALICE)
    bob = join(harness, _BOB)
    mallory = join(harness, "User:mallory")
    harness.stabilize(alice, bob, mallory)
    assert mallory.owned == EMPTY_ASSIGNMENT
    assert bob.owned <= partitions("granite", 0, 1)
    assert bob.owned
    assert alice.owned | bob.owned == _ALL


def test_another_right_changes_the_assignment_with_the_next_heartbeats() -> None:
    """All members change in one epoch, although the group as a whole subscribes to the same topics."""
    harness = ConsumerHarness()
    allow(harness, *_BOTH)
    alice = join(harness, _ALICE)
    bob = join(harness, _BOB)
    harness.stabilize(alice, bob)
    epoch = harness.group.group_epoch
    allow(harness, (_ALICE, "*", ""))
    harness.stabilize(alice, bob)
    assert (alice.owned, bob.owned) == (_ALL, EMPTY_ASSIGNMENT)
    allow(harness, (_BOB, "*", ""))
    harness.stabilize(alice, bob)
    assert (alice.owned, bob.owned) == (EMPTY_ASSIGNMENT, _ALL)
    assert harness.group.group_epoch == epoch + 2
    allow(harness, (_BOB, "*", ""), ("User:carol", "*", ""))
    harness.stabilize(alice, bob)
    assert harness.group.group_epoch == epoch + 2  # nothing has changed for these members


def test_a_right_that_ends_while_no_agent_coordinates_the_group_ends_with_its_next_coordinator() -> None:
    harness = ConsumerHarness()
    allow(harness, *_BOTH)
    alice = join(harness, _ALICE)
    bob = join(harness, _BOB)
    harness.stabilize(alice, bob)
    epoch = harness.group.group_epoch
    harness.move_coordinator()
    harness.stabilize(alice, bob)
    assert harness.group.group_epoch == epoch  # the same rights start no rebalance
    harness.move_coordinator()
    allow(harness, (_ALICE, "*", ""))
    harness.stabilize(alice, bob)
    assert (alice.owned, bob.owned) == (_ALL, EMPTY_ASSIGNMENT)


def test_a_member_that_authenticates_as_another_principal_has_its_rights() -> None:
    harness = ConsumerHarness()
    allow(harness, (_ALICE, "*", ""))
    client = join(harness, _ALICE)
    harness.stabilize(client)
    assert client.owned == _ALL
    client.principal = _BOB
    harness.stabilize(client)
    assert client.owned == EMPTY_ASSIGNMENT
