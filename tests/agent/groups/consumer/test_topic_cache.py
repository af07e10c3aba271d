"""Consumer groups list the topics only when these have changed."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from agent.groups.consumer.cached_lookups import TopicCache
from catalog.database.pool import Database
from core.clock import ManualClock
from core.errors import RetryableError
from tests.agent.groups.consumer.test_topic_patterns import make_rules
from tests.agent.groups.test_slow_catalog import run_now

if TYPE_CHECKING:
    import pytest

    from agent.security.acl_rules import AccessRules
    from catalog.open import Catalog


def test_unchanged_topics_are_not_listed(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The view is the same object until the topics or the rules are others; a failure hides no change."""
    clock, reads, failing = ManualClock(), Counter[str](), set[str]()
    read = Database.read

    def count(database: Database, purpose: str, *args: Any) -> Any:  # noqa: ANN401
        reads[purpose] += 1
        if purpose in failing:
            raise RetryableError("the catalog does not respond", remedy="wait")
        return read(database, purpose, *args)

    monkeypatch.setattr(Database, "read", count)
    rules: list[AccessRules | None] = [None]

    async def scenario() -> None:
        cache = TopicCache(
            catalog.topics, call=run_now, clock=clock, refresh_ms=1000, rules=lambda: rules[-1]
        )
        catalog.topics.create("granite", 1)
        view = await cache.get()
        for _ in range(10):
            clock.advance(1)
            assert await cache.get() is view
        assert (reads["topics.list"], reads["topics.changes"]) == (1, 11)
        rules.append(make_rules(("User:*", "*", "stone")))
        clock.advance(1)
        assert (await cache.get()).rules is rules[-1]
        assert (await cache.get()).by_name == view.by_name
        assert reads["topics.list"] == 1
        catalog.topics.create("basalt", 1)
        failing.add("topics.list")
        clock.advance(1)
        assert (await cache.get()).by_name == view.by_name
        failing.clear()
        clock.advance(1)
        assert (await cache.get()).by_name.keys() == {"basalt", "granite"}
        catalog.topics.delete("granite")
        clock.advance(1)
        assert (await cache.get()).by_name.keys() == {"basalt"}

    asyncio.run(scenario())
