"""The version of all topics is another one after each change, so no process has to list them to see that."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catalog.topics.repository import NewTopic, Topics
from tests.catalog.lifecycle.test_incarnation import replace_server
from tests.catalog.scene import Scene, run_of
from tests.catalog.topics.test_deleted import purge

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import Topic
    from catalog.topics.changes import TopicVersion

_RENAME = b"UPDATE topics SET name = name || '-new' WHERE topic_id = %s"
_STEPS = ["change", "change", "commit", "rollback", "undo", "savepoint"]
_VERSION = b"SELECT change_id FROM topic_changes"
_BEGIN_INCARNATION = b"""
    UPDATE catalog_incarnation AS i
    SET epoch = i.epoch + 1, incarnation_id = gen_random_uuid(), server = c.found_server
    FROM current_incarnation AS c
"""


class Follower:
    """A process that lists the topics when their version is another one."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._version: TopicVersion | None = None
        self.topics: list[Topic] = []

    def follow(self) -> bool:
        """Look once; return whether the topics were listed."""
        found = self._scene.catalog.topics.changed_since(self._version)
        if found is not None:
            self._version, self.topics = found
        assert self.topics == self._scene.catalog.topics.list()
        return found is not None


def test_topics_are_listed_after_each_change_and_never_without_one(scene: Scene) -> None:
    topics, follower = scene.catalog.topics, Follower(scene)
    assert follower.follow()
    assert not follower.follow()
    topic = scene.topic("t", partitions=1)
    changes: list[Callable[[], object]] = [
        lambda: topics.create("u", 1),
        lambda: topics.create_many([NewTopic(name=f"v-{number}", partition_count=1) for number in range(50)]),
        lambda: topics.add_partitions("t", 3),
        lambda: topics.alter_config("t", {"retention.ms": "1000"}),
        lambda: topics.delete("t"),
        lambda: topics.deleted.undelete("t", new_name="w"),
        lambda: topics.delete("u"),
    ]
    assert follower.follow()
    for change in changes:
        change()
        assert follower.follow()
        assert not follower.follow()
    scene.commit(topic, run_of(1))
    assert isinstance(topics.create_many([NewTopic(name="w", partition_count=1)])[0], Exception)
    assert not follower.follow()
    purge(scene.catalog)
    follower.follow()
    purge(scene.catalog)  # has nothing to do
    assert not follower.follow()


@pytest.mark.parametrize("begins_by_earlier_release", [False, True])
def test_a_topic_that_a_failover_has_lost_is_not_listed_after_it(
    scene: Scene, catalog_url: str, monkeypatch: pytest.MonkeyPatch, *, begins_by_earlier_release: bool
) -> None:
    """A process may read the version, then the topic, and then the same version on the new primary.

    During an upgrade, a process of the previous release may begin the incarnation.
    """
    topics = scene.catalog.topics
    scene.topic("kept")
    list_now = Topics.list

    def list_later(self: Topics) -> list[Topic]:
        topics.create("lost", 1)
        return list_now(self)

    with psycopg.connect(catalog_url, autocommit=True, options="-c search_path=siltstone") as connection:
        version = connection.execute(_VERSION).fetchone()
        with monkeypatch.context() as patch:
            patch.setattr(Topics, "list", list_later)
            found = topics.changed_since(None)
        assert found is not None
        assert [topic.name for topic in found.topics] == ["kept", "lost"]
        connection.execute(b"SET session_replication_role = replica")
        connection.execute(
            b"DELETE FROM partitions WHERE topic_id = (SELECT topic_id FROM topics WHERE name = 'lost')"
        )
        connection.execute(b"DELETE FROM topics WHERE name = 'lost'")
        connection.execute(b"UPDATE topic_changes SET change_id = %s", version)
        connection.execute(b"RESET session_replication_role")
        if begins_by_earlier_release:
            connection.execute(_BEGIN_INCARNATION)
        else:
            replace_server(connection)
    Scene.set_up(scene.catalog, scene.ids)
    again = topics.changed_since(found.version)
    assert again is not None
    assert [topic.name for topic in again.topics] == ["kept"]


def test_a_look_at_unchanged_topics_reads_one_row(scene: Scene, catalog_url: str) -> None:
    """However many topics there are, and however they were created and changed."""
    topics = scene.catalog.topics
    topics.create_many([NewTopic(name=f"t-{number}", partition_count=1) for number in range(300)])
    with ThreadPoolExecutor(8) as pool:
        for number in range(40):
            pool.submit(topics.alter_config, f"t-{number}", {"retention.ms": "1"})
    topics.create("last", 1)
    with psycopg.connect(catalog_url) as connection:
        assert len(connection.execute(_VERSION).fetchall()) == 1


class Session:
    """A connection with at most one open transaction."""

    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, options="-c search_path=siltstone -c lock_timeout=2s")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from(_STEPS),
        ),
        max_size=25,
    )
)
def test_no_interleaving_of_transactions_hides_a_change(
    scene: Scene, catalog_url: str, steps: list[tuple[int, str]]
) -> None:
    """No transaction waits for one that changes another topic. Its own commit is what others see."""
    names = [topic.name for topic in scene.catalog.topics.list()]
    own = [scene.topic(f"t-{number}-{len(names)}").topic_id for number in range(3)]
    follower = Follower(scene)
    connections = [Session(catalog_url).connection for _ in range(3)]
    try:
        for number, step in steps:
            connection = connections[number]
            if step == "change":
                connection.execute(_RENAME, (own[number],))
            elif step == "undo":
                connection.execute(b"SAVEPOINT undone")
                connection.execute(_RENAME, (own[number],))
                connection.execute(b"ROLLBACK TO SAVEPOINT undone")
            elif step == "savepoint":
                connection.execute(b"SAVEPOINT kept")
            elif step == "commit":
                connection.commit()
            else:
                connection.rollback()
            follower.follow()  # compares the topics with those in the catalog
    finally:
        for connection in connections:
            connection.close()
