"""The directory of topics lists all of them again only after a change."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any

from agent.cluster import topic_directory
from agent.cluster.topic_directory import TopicDirectory
from agent.runtime.work_pool import WorkPool
from catalog.database.pool import Database

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from catalog.open import Catalog
    from core.clock import Clock


def test_all_topics_are_listed_once_for_each_change(
    catalog: Catalog, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request sees the changes before it, and one without a change reads one row."""
    monkeypatch.setattr(topic_directory, "_MAX_LISTED_TOPICS", 10)
    reads, read = Counter[str](), Database.read

    def count(database: Database, purpose: str, *args: Any) -> Any:  # noqa: ANN401
        reads[purpose] += 1
        return read(database, purpose, *args)

    topics = catalog.topics
    changes: list[Callable[[], object]] = [
        lambda: topics.create("u", 1),
        lambda: topics.alter_config("t", {"retention.ms": "1000"}),
        lambda: topics.delete("t"),
        lambda: [topics.create(f"t-{number}", 1) for number in range(9)],
    ]

    async def scenario() -> None:
        pool = WorkPool("catalog", threads=1, max_waiting=10)
        directory = TopicDirectory(topics, pool=pool, clock=clock, cache_ms=60_000)
        assert await directory.all() == []
        topics.create("t", 1)
        for change in changes:
            change()
            expected = topics.list()
            with monkeypatch.context() as counted:
                counted.setattr(Database, "read", count)
                for _ in range(3):
                    assert await directory.all() == expected
        assert (reads["topics.changes"], reads["topics.list"]) == (12, 4)
        topics.create("one-too-many", 1)
        with monkeypatch.context() as counted:
            counted.setattr(Database, "read", count)
            for _ in range(3):
                assert len(await directory.all()) == 11
        assert reads["topics.list"] == 7, "so many are not cached"
        pool.close()

    asyncio.run(scenario())
