"""What assignors promise, whatever the members and topics."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agent.groups.consumer.assignors import ASSIGNORS, Subscriber, assign_range, assign_uniform
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT
from tests.agent.groups.consumer_stage import parts, topic_id

_NAMES = ("a", "b", "c", "d")
_COUNTS = st.fixed_dictionaries({name: st.integers(0, 7) for name in _NAMES})
_SUBSCRIPTIONS = st.lists(st.frozensets(st.sampled_from(_NAMES)), min_size=1, max_size=6)


def subscribers(subscriptions: list[frozenset[str]]) -> list[Subscriber]:
    return [
        Subscriber(
            member_id=f"m{at}",
            instance_id=None,
            topics=frozenset(map(topic_id, names)),
            assigned=EMPTY_ASSIGNMENT,
        )
        for at, names in enumerate(subscriptions)
    ]


@given(_SUBSCRIPTIONS, _COUNTS, st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_goes_to_one_of_its_subscribers(
    subscriptions: list[frozenset[str]], counts: dict[str, int], assignor: str
) -> None:
    members = subscribers(subscriptions)
    by_id = {topic_id(name): count for name, count in counts.items()}
    shares = ASSIGNORS[assignor](members, by_id)
    owners = Counter(part for share in shares.values() for part in share)
    wanted = frozenset().union(*subscriptions)
    assert set(owners) == {part for name in wanted for part in parts(name, *range(counts[name]))}
    assert set(owners.values()) <= {1}
    for member in members:
        assert {part.topic_id for part in shares[member.member_id]} <= member.topics


@given(st.integers(1, 7), _COUNTS, st.frozensets(st.sampled_from(_NAMES), min_size=1))
def test_uniform_gives_equal_subscribers_as_much_and_moves_no_more_than_it_must(
    size: int, counts: dict[str, int], topics: frozenset[str]
) -> None:
    """Whoever comes or goes changes shares by one at most, and only what is needed for that moves."""
    by_id = {topic_id(name): count for name, count in counts.items()}
    members = subscribers([topics] * size)
    shares = assign_uniform(members, by_id)
    sizes = [len(share) for share in shares.values()]
    assert max(sizes) - min(sizes) <= 1
    more = [replace(each, assigned=shares[each.member_id]) for each in subscribers([topics] * size)]
    newcomer = replace(more[0], member_id="new", assigned=EMPTY_ASSIGNMENT)
    again = assign_uniform([*more, newcomer], by_id)
    for member in more:
        assert again[member.member_id] <= shares[member.member_id]
    fewer = assign_uniform(more[1:], by_id) if size > 1 else {}
    for member_id, share in fewer.items():
        assert share >= shares[member_id]


@given(_SUBSCRIPTIONS, _COUNTS)
def test_uniform_leaves_nobody_with_two_less_than_someone_who_could_give(
    subscriptions: list[frozenset[str]], counts: dict[str, int]
) -> None:
    members = subscribers(subscriptions)
    shares = assign_uniform(members, {topic_id(name): count for name, count in counts.items()})
    for rich in members:
        for poor in members:
            could_move = any(part.topic_id in poor.topics for part in shares[rich.member_id])
            if could_move:
                assert len(shares[rich.member_id]) <= len(shares[poor.member_id]) + 1


def test_range_gives_runs_side_by_side_in_the_order_of_instances() -> None:
    members = subscribers([frozenset({"a", "b"})] * 3)
    members[2] = replace(members[2], instance_id="z")
    shares = assign_range(members, {topic_id("a"): 5, topic_id("b"): 5})
    assert shares == {
        "m2": parts("a", 0, 1) | parts("b", 0, 1),
        "m0": parts("a", 2, 3) | parts("b", 2, 3),
        "m1": parts("a", 4) | parts("b", 4),
    }
