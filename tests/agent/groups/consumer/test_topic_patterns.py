"""Patterns of topics: matched with every name once, and with many names away from the event loop."""

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
from tests.agent.groups.coordinators import coordinating

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import pytest

    from agent.groups.coordinator import GroupCoordinator
    from catalog.open import Catalog
    from core.ids import Ids

_PATTERNS = ("gran.*", ".*ite", "slate|basalt", "none")
_NAMES = ("granite", "granola", "slate", "basalt", "marble", "andesite")
_MANY = [f"stone-{number}" for number in range(600)]


def topics_called(names: Iterable[str], partitions: int = 1) -> list[Topic]:
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


class Matching:
    """Which names were matched with which patterns, and where."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[int] = []
        self.seen: list[tuple[str, frozenset[str]]] = []
        match = topics_module._match_names

        def watched(pattern: str, names: Iterable[str]) -> frozenset[str]:
            self.threads.append(threading.get_ident())
            self.seen.append((pattern, frozenset(names)))
            return match(pattern, names)

        monkeypatch.setattr(topics_module, "_match_names", watched)


@given(st.lists(st.sets(st.sampled_from(_NAMES)), min_size=1, max_size=5))
def test_patterns_match_what_there_is_however_topics_come_and_go(steps: list[set[str]]) -> None:
    """A view that follows others says the same as one that was made of its topics."""
    view = TopicView({})
    for number, names in enumerate(steps):
        for pattern in _PATTERNS[: number + 1]:
            view.matching(pattern)
        view = view.updated(topics_called(names))
        fresh = TopicView({}).updated(topics_called(names))
        assert {each: view.matching(each) for each in _PATTERNS} == fresh.compute_matches(_PATTERNS)


def test_a_pattern_is_matched_with_new_names_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Same topics are the same view; where neither new nor lost names match, the same set is kept."""
    view = TopicView({}).updated(topics_called(_NAMES))
    before = view.matching("gran.*")
    matching = Matching(monkeypatch)
    assert view.updated(topics_called(_NAMES)) is view
    after = view.updated(topics_called([*_NAMES[:-1], "schist"]))
    assert matching.seen == [("gran.*", frozenset({"schist"}))]
    assert after.matching("gran.*") is before


def test_patterns_remembered_are_bounded() -> None:
    """Those that came first are forgotten, and found again when they are asked for."""
    view = TopicView({}).updated(topics_called(_NAMES))
    patterns = [f"granite|{number}" for number in range(topics_module._MAX_PATTERNS + 5)]
    for pattern in patterns:
        view.matching(pattern)
    assert view.uncached(patterns) == patterns[:5]
    assert view.matching(patterns[0]) == {"granite"}


def test_members_with_one_pattern_share_its_first_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """With few names it is found at once, with many away from the event loop, for all who ask meanwhile."""

    async def call(work: Callable[[], cached_lookups.T]) -> cached_lookups.T:
        return await asyncio.to_thread(work)

    async def story(names: Sequence[str]) -> list[int]:
        listed = topics_called(names)
        views = TopicCache(lambda: listed, call=call, clock=ManualClock(), refresh_ms=1000)
        view = await views.get()
        matching = Matching(monkeypatch)
        await asyncio.gather(*(views.match(view, ["stone-1.*"]) for _ in range(5)))
        assert "stone-1" in view.matching("stone-1.*")
        monkeypatch.undo()
        return [each == threading.get_ident() for each in matching.threads]

    assert asyncio.run(story(_MANY)) == [False]
    assert asyncio.run(story(_MANY[:10])) == [True]


def test_a_coordinator_matches_many_names_away_from_its_event_loop(
    catalog: Catalog, ids: Ids, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When a member brings a pattern, when topics come, and when a group is taken over."""
    clock, settings = ManualClock(), GroupSettings()
    listed = topics_called(_MANY)

    class Listed:
        def list(self) -> list[Topic]:
            return listed.copy()

    async def beat(coordinator: GroupCoordinator, epoch: int, pattern: str | None = None) -> tuple[int, int]:
        """The member's epoch, and how many partitions it is assigned, as far as it is told."""
        request = ConsumerHeartbeat(
            member_id="m",
            member_epoch=epoch,
            rebalance_timeout_ms=60_000 if epoch == 0 else -1,
            regex=pattern,
            owned=EMPTY_ASSIGNMENT if epoch == 0 else None,
        )
        answer = await coordinator.consumers.heartbeat("g", request)
        return answer.member_epoch, len(answer.assignment or ())

    async def story() -> None:
        async with coordinating(catalog, clock, ids, settings, topics=Listed()) as coordinator:
            epoch, count = await beat(coordinator, 0, "stone-1.*")
            assert count == 111
            listed.extend(topics_called(f"stone-1{number}-new" for number in range(600)))
            clock.advance(settings.topics_refresh_ms / 1000)
            epoch, count = await beat(coordinator, epoch)
            assert count == 711
        async with coordinating(catalog, clock, ids, settings, topics=Listed()) as coordinator:
            assert await beat(coordinator, epoch) == (epoch, 0)

    matching = Matching(monkeypatch)
    asyncio.run(story())
    assert len(matching.threads) == 3
    assert threading.get_ident() not in matching.threads
