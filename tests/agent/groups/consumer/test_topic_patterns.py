"""Subscriptions by pattern: each name is matched once, many names outside the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING
from uuid import UUID

import re2
from hypothesis import given
from hypothesis import strategies as st

from agent.group_settings import GroupSettings
from agent.groups.consumer import cached_lookups
from agent.groups.consumer import topics as topics_module
from agent.groups.consumer.cached_lookups import TopicCache
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.consumer.topics import Selection, TopicView
from agent.security.acl_rules import AccessRules, AclIndex
from agent.security.rights import DESCRIBE_TOPIC
from catalog.config.values import TopicConfig
from catalog.model import Topic
from catalog.security.acl_bindings import AclBinding, Operation, PatternType, Permission, ResourceType
from catalog.topics.repository import TopicList
from core.clock import ManualClock
from tests.agent.groups.coordinators import open_coordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import pytest

    from agent.groups.coordinator import GroupCoordinator
    from catalog.open import Catalog
    from catalog.topics.changes import TopicVersion
    from core.ids import Ids

_PATTERNS = ("gran.*", ".*ite", "slate|basalt", "none")
_NAMES = ("granite", "granola", "slate", "basalt", "marble", "andesite")
_MANY = [f"stone-{number}" for number in range(600)]
_CLIENTS = (("User:alice", "10.0.0.1"), ("User:bob", "10.0.0.1"), ("User:bob", "10.0.0.2"))


def make_rules(*describers: tuple[str, str, str]) -> AccessRules:
    """Return rules that let principals from hosts describe the topics with a prefix."""
    prefixed, topic = PatternType.PREFIXED, ResourceType.TOPIC
    bindings = [
        AclBinding(topic, prefixed, prefix, principal, host, Operation.DESCRIBE, Permission.ALLOW)
        for principal, host, prefix in describers
    ]
    return AccessRules(frozenset({"User:admin"}), allow_everyone=False, index=AclIndex(None, bindings))


def select(*patterns: str) -> list[Selection]:
    return [Selection(each, None) for each in patterns]


def make_topics(names: Iterable[str], partitions: int = 1) -> list[Topic]:
    return [
        Topic(
            topic_id=UUID(bytes=name.encode()[:16].rjust(16, b"\1")),
            name=name,
            partition_count=partitions,
            config=TopicConfig.of({}),
            created_ms=0,
        )
        for name in names
    ]


class MatchRecorder:
    """Recorder of the names matched with each pattern, and of the threads."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.seen: list[tuple[str, frozenset[str]]] = []
        match = topics_module._match_names

        def record(pattern: str, names: Collection[str]) -> frozenset[str]:
            self.threads.append(threading.get_ident())
            self.seen.append((pattern, frozenset(names)))
            return match(pattern, names)

        monkeypatch.setattr(topics_module, "_match_names", record)


@given(st.lists(st.sets(st.sampled_from(_NAMES)), min_size=1, max_size=5))
def test_updated_view_has_the_matches_of_a_new_view(steps: list[set[str]]) -> None:
    view = TopicView({})
    for number, names in enumerate(steps):
        for pattern in _PATTERNS[: number + 1]:
            view.matching(Selection(pattern, None))
        view = view.updated(make_topics(names))
        fresh = TopicView({}).updated(make_topics(names))
        expected = fresh.compute_matches(select(*_PATTERNS)).by_selection
        assert {each: view.matching(each) for each in select(*_PATTERNS)} == expected


_RULES = st.sampled_from(
    [
        make_rules(("User:alice", "*", "gran"), ("User:bob", "10.0.0.1", "s")),
        make_rules(("User:*", "*", "g"), ("User:bob", "10.0.0.2", "b")),
        make_rules(),
        None,
    ]
)


@given(st.lists(st.tuples(st.sets(st.sampled_from(_NAMES)), _RULES), min_size=1, max_size=6))
def test_pattern_matches_what_its_client_may_describe(
    steps: list[tuple[set[str], AccessRules | None]],
) -> None:
    """Whatever topics and rules were before."""
    view = TopicView({})
    for names, rules in steps:
        view = view.updated(make_topics(names), rules)
        for principal, host in _CLIENTS:
            for pattern in _PATTERNS:
                allowed = {
                    each
                    for each in names
                    if re2.fullmatch(pattern, each)
                    and (rules is None or rules.allows(principal, host, DESCRIBE_TOPIC, each))
                }
                assert view.matching(view.select(pattern, principal, host)) == allowed


def test_clients_that_no_acl_tells_apart_share_their_matches() -> None:
    view = TopicView({}).updated(make_topics(_NAMES), make_rules(("User:bob", "10.0.0.1", "s")))
    others = {view.select(".*", f"User:{number}", f"10.1.0.{number}") for number in range(100)}
    assert len(others) == 1
    assert view.select(".*", "User:bob", "10.0.0.1") not in others
    assert view.matching(view.select(".*", "User:admin", "::1")) == set(_NAMES)


def test_pattern_is_matched_with_new_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same topics give the same view. If no changed name matches, the match is the same set."""
    view = TopicView({}).updated(make_topics(_NAMES))
    (granite,) = select("gran.*")
    before = view.matching(granite)
    recorder = MatchRecorder(monkeypatch)
    assert view.updated(make_topics(_NAMES)) is view
    after = view.updated(make_topics([*_NAMES[:-1], "schist"]))
    assert recorder.seen == [("gran.*", frozenset({"schist"}))]
    assert after.matching(granite) is before


def test_number_of_cached_patterns_is_bounded() -> None:
    """The oldest matches are evicted, and computed again on demand."""
    view = TopicView({}).updated(make_topics(_NAMES))
    selections = select(*(f"granite|{number}" for number in range(topics_module._MAX_PATTERNS + 5)))
    for each in selections:
        view.matching(each)
    assert view.uncached(selections) == selections[:5]
    assert view.matching(selections[0]) == {"granite"}


class FakeTopics:
    """A catalog whose topics may change at any time, so that each look lists them."""

    def __init__(self, topics: list[Topic]) -> None:
        self._topics = topics

    def changed_since(self, _known: TopicVersion | None) -> TopicList:
        return TopicList(frozenset(), self._topics.copy())


def test_concurrent_callers_share_one_match_of_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few names are matched on the event loop, many names in another thread."""

    async def call(work: Callable[[], cached_lookups.T]) -> cached_lookups.T:
        return await asyncio.to_thread(work)

    async def scenario(names: Sequence[str]) -> list[int]:
        topics = make_topics(names)
        cache = TopicCache(FakeTopics(topics), call=call, clock=ManualClock(), refresh_ms=1000)
        view = await cache.get()
        recorder = MatchRecorder(monkeypatch)
        stones = select("stone-1.*")
        await asyncio.gather(*(cache.match(view, stones) for _ in range(5)))
        assert "stone-1" in view.matching(stones[0])
        monkeypatch.undo()
        return [each == threading.get_ident() for each in recorder.threads]

    assert asyncio.run(scenario(_MANY)) == [False]
    assert asyncio.run(scenario(_MANY[:10])) == [True]


def test_coordinator_matches_many_names_outside_the_event_loop(
    catalog: Catalog, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That happens for a new pattern, for new topics, for other ACLs, and for a group that is loaded."""
    clock, settings = ManualClock(), GroupSettings()
    topics = make_topics(_MANY)
    rules = [make_rules(("User:*", "*", "stone"))]

    async def heartbeat(
        coordinator: GroupCoordinator, epoch: int, pattern: str | None = None
    ) -> tuple[int, int]:
        """Return the member epoch and the number of partitions in the response."""
        request = ConsumerHeartbeat(
            member_id="m",
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if epoch == 0 else -1,
            regex=pattern,
            owned=EMPTY_ASSIGNMENT if epoch == 0 else None,
        )
        response = await coordinator.consumers.heartbeat("g", request)
        return response.member_epoch, len(response.assignment or ())

    async def scenario() -> None:
        async with open_coordinator(
            catalog, clock, ids, settings, topics=FakeTopics(topics), rules=lambda: rules[-1]
        ) as coordinator:
            epoch, count = await heartbeat(coordinator, 0, "stone-1.*")
            assert count == 111
            topics.extend(make_topics(f"stone-1{number}-new" for number in range(600)))
            clock.advance(settings.topics_refresh_ms / 1000)
            epoch, count = await heartbeat(coordinator, epoch)
            assert count == 711
            rules.append(make_rules(("User:*", "*", "stone-1")))
            clock.advance(settings.topics_refresh_ms / 1000)
            assert await heartbeat(coordinator, epoch) == (epoch, 711)  # it never confirmed them
        async with open_coordinator(
            catalog, clock, ids, settings, topics=FakeTopics(topics), rules=lambda: rules[-1]
        ) as coordinator:
            assert await heartbeat(coordinator, epoch) == (epoch, 711)

    recorder = MatchRecorder(monkeypatch)
    asyncio.run(scenario())
    assert len(recorder.threads) == 4
    assert threading.get_ident() not in recorder.threads
