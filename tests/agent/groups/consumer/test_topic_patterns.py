"""Subscriptions by pattern: each name is matched once, many names outside the event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from agent.group_settings import GroupSettings
from agent.groups.consumer import cached_lookups
from agent.groups.consumer import topics as topics_module
from agent.groups.consumer.cached_lookups import TopicCache
from agent.groups.consumer.messages import EMPTY_ASSIGNMENT, ConsumerHeartbeat
from agent.groups.consumer.topics import TopicView
from catalog.config.values import TopicConfig
from catalog.model import Topic
from core.clock import ManualClock
from tests.agent.groups.coordinators import open_coordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import pytest

    from agent.groups.coordinator import GroupCoordinator
    from catalog.open import Catalog
    from core.ids import Ids

_PATTERNS = ("gran.*", ".*ite", "slate|basalt", "none")
_NAMES = ("granite", "granola", "slate", "basalt", "marble", "andesite")
_MANY = [f"stone-{number}" for number in range(600)]


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
            view.matching(pattern)
        view = view.updated(make_topics(names))
        fresh = TopicView({}).updated(make_topics(names))
        assert {each: view.matching(each) for each in _PATTERNS} == fresh.compute_matches(_PATTERNS)


def test_pattern_is_matched_with_new_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same topics give the same view. If no changed name matches, the match is the same set."""
    view = TopicView({}).updated(make_topics(_NAMES))
    before = view.matching("gran.*")
    recorder = MatchRecorder(monkeypatch)
    assert view.updated(make_topics(_NAMES)) is view
    after = view.updated(make_topics([*_NAMES[:-1], "schist"]))
    assert recorder.seen == [("gran.*", frozenset({"schist"}))]
    assert after.matching("gran.*") is before


def test_number_of_cached_patterns_is_bounded() -> None:
    """The oldest matches are evicted, and computed again on demand."""
    view = TopicView({}).updated(make_topics(_NAMES))
    patterns = [f"granite|{number}" for number in range(topics_module._MAX_PATTERNS + 5)]
    for pattern in patterns:
        view.matching(pattern)
    assert view.uncached(patterns) == patterns[:5]
    assert view.matching(patterns[0]) == {"granite"}


def test_concurrent_callers_share_one_match_of_a_pattern(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few names are matched on the event loop, many names in another thread."""

    async def call(work: Callable[[], cached_lookups.T]) -> cached_lookups.T:
        return await asyncio.to_thread(work)

    async def scenario(names: Sequence[str]) -> list[int]:
        topics = make_topics(names)
        cache = TopicCache(lambda: topics, call=call, clock=ManualClock(), refresh_ms=1000)
        view = await cache.get()
        recorder = MatchRecorder(monkeypatch)
        await asyncio.gather(*(cache.match(view, ["stone-1.*"]) for _ in range(5)))
        assert "stone-1" in view.matching("stone-1.*")
        monkeypatch.undo()
        return [each == threading.get_ident() for each in recorder.threads]

    assert asyncio.run(scenario(_MANY)) == [False]
    assert asyncio.run(scenario(_MANY[:10])) == [True]


def test_coordinator_matches_many_names_outside_the_event_loop(
    catalog: Catalog, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That happens for a new pattern, for new topics, and for a group that is loaded."""
    clock, settings = ManualClock(), GroupSettings()
    topics = make_topics(_MANY)

    class FakeTopics:
        def list(self) -> list[Topic]:
            return topics.copy()

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
        async with open_coordinator(catalog, clock, ids, settings, topics=FakeTopics()) as coordinator:
            epoch, count = await heartbeat(coordinator, 0, "stone-1.*")
            assert count == 111
            topics.extend(make_topics(f"stone-1{number}-new" for number in range(600)))
            clock.advance(settings.topics_refresh_ms / 1000)
            epoch, count = await heartbeat(coordinator, epoch)
            assert count == 711
        async with open_coordinator(catalog, clock, ids, settings, topics=FakeTopics()) as coordinator:
            assert await heartbeat(coordinator, epoch) == (epoch, 711)  # it never confirmed them

    recorder = MatchRecorder(monkeypatch)
    asyncio.run(scenario())
    assert len(recorder.threads) == 3
    assert threading.get_ident() not in recorder.threads
