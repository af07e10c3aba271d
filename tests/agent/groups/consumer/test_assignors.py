"""Properties of the assignors for any members and topics."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from agent.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT
from tests.agent.groups.consumer_harness import partitions, topic_id

_NAMES = ("a", "b", "c", "d")
_COUNTS = st.fixed_dictionaries({name: st.integers(0, 7) for name in _NAMES})
_SUBSCRIPTIONS = st.lists(st.frozensets(st.sampled_from(_NAMES)), min_size=1, max_size=6)


def subscribers(subscriptions: list[frozenset[str]]) -> list[Subscriber]:
    return [
        Subscriber(
            member_id=f"m{index}",
            instance_id=None,
            topics=frozenset(map(topic_id, names)),
            assigned=EMPTY_ASSIGNMENT,
        )
        for index, names in enumerate(subscriptions)
    ]


@given(_SUBSCRIPTIONS, _COUNTS, st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_is_assigned_to_one_subscriber(
    subscriptions: list[frozenset[str]], counts: dict[str, int], assignor: str
) -> None:
    members = subscribers(subscriptions)
    by_id = {topic_id(name): count for name, count in counts.items()}
    shares = ASSIGNORS[assignor](members, by_id)
    owners = Counter(part for share in shares.values() for part in share)
    subscribed = frozenset().union(*subscriptions)
    assert set(owners) == {part for name in subscribed for part in partitions(name, *range(counts[name]))}
    assert set(owners.values()) <= {1}
    for member in members:
        assert {part.topic_id for part in shares[member.member_id]} <= member.topics


@given(st.integers(1, 7), _COUNTS, st.frozensets(st.sampled_from(_NAMES), min_size=1))
def test_uniform_balances_equal_subscriptions_with_minimal_movement(
    size: int, counts: dict[str, int], topics: frozenset[str]
) -> None:
    """A new member only takes partitions, and a leaving one only gives partitions."""
    by_id = {topic_id(name): count for name, count in counts.items()}
    members = subscribers([topics] * size)
    shares = assign_uniform(members, by_id)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    present = [replace(each, assigned=shares[each.member_id]) for each in subscribers([topics] * size)]
    new_member = replace(present[0], member_id="new", assigned=EMPTY_ASSIGNMENT)
    again = assign_uniform([*present, new_member], by_id)
    for member in present:
        assert again[member.member_id] <= shares[member.member_id]
    fewer = assign_uniform(present[1:], by_id) if size > 1 else {}
    for member_id, share in fewer.items():
        assert share >= shares[member_id]


@given(_SUBSCRIPTIONS, _COUNTS)
def test_uniform_balances_unequal_subscriptions(
    subscriptions: list[frozenset[str]], counts: dict[str, int]
) -> None:
    """No member could give a partition to a member with two or more partitions fewer."""
    members = subscribers(subscriptions)
    shares = assign_uniform(members, {topic_id(name): count for name, count in counts.items()})
    for giver in members:
        for taker in members:
            could_move = any(part.topic_id in taker.topics for part in shares[giver.member_id])
            if could_move:
                assert len(shares[giver.member_id]) <= len(shares[taker.member_id]) + 1


def test_range_assigns_equal_ranges_of_topics_to_the_same_member() -> None:
    """Static members come first, in the order of their instance ids."""
    members = subscribers([frozenset({"a", "b"})] * 3)
    members[2] = replace(members[2], instance_id="z")
    shares = assign_range(members, {topic_id("a"): 5, topic_id("b"): 5})
    assert shares == {
        "m2": partitions("a", 0, 1) | partitions("b", 0, 1),
        "m0": partitions("a", 2, 3) | partitions("b", 2, 3),
        "m1": partitions("a", 4) | partitions("b", 4),
    }


@given(_SUBSCRIPTIONS, _COUNTS)
def test_every_partition_is_assigned_even_without_time_to_balance(
    subscriptions: list[frozenset[str]], counts: dict[str, int]
) -> None:
    """The number of comparisons is bounded, because the event loop waits for the assignment."""
    members = subscribers(subscriptions)
    by_id = {topic_id(name): count for name, count in counts.items()}
    with patch("agent.groups.consumer.assignors._MAX_COMPARISONS", 1):
        shares = assign_uniform(members, by_id)
    subscribed = frozenset().union(*subscriptions)
    assigned = [part for share in shares.values() for part in share]
    assert sorted(assigned) == sorted(
        part for name in subscribed for part in partitions(name, *range(counts[name]))
    )
