"""Topics whose creation was lost are created again under their names, or under free ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
import pytest

from catalog.config.values import TopicConfig
from catalog.errors import (
    CatalogReplacedError,
    CatalogUnavailableError,
    InvalidTopicError,
    TopicExistsError,
)
from catalog.model import Topic
from catalog.topics import lost
from catalog.topics.lost import Restored
from catalog.topics.names import MAX_NAME_LENGTH
from catalog.topics.repository import Topics
from core.clock import ManualClock, SystemClock
from tests.catalog.scene import advance_log_start, run_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from catalog.open import Catalog
    from catalog.topics.lost import RestoredTopic
    from tests.catalog.scene import Scene


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def lost_topic(number: int, name: str = "t", *, partitions: int = 1, created_ms: int = 0) -> Topic:
    return Topic(
        topic_id=UUID(int=number << 90),
        name=name,
        partition_count=partitions,
        config=TopicConfig(),
        created_ms=created_ms,
    )


def restore(catalog: Catalog, *topics: Topic) -> list[RestoredTopic]:
    return catalog.topics.lost.restore(topics, catalog.incarnations.ensure().epoch)


def names(catalog: Catalog) -> dict[str, UUID]:
    return {topic.name: topic.topic_id for topic in catalog.topics.list()}


def test_the_newest_topic_of_a_name_gets_it(catalog: Catalog) -> None:
    """Names that differ only by '.' and '_' collide. The ids of the others tell them apart."""
    topics = [lost_topic(number, name) for number, name in enumerate(("t.a", "t_a", "t.a"), 1)]
    results = restore(catalog, *topics)
    assert [(each.topic, each.outcome, each.namesake) for each in results] == [
        (topics[2], Restored.CREATED, None),
        (topics[1], Restored.RENAMED, topics[2]),
        (topics[0], Restored.RENAMED, topics[2]),
    ]
    assert names(catalog) == {
        "t.a": topics[2].topic_id,
        "t.a-00000000": topics[0].topic_id,
        f"t_a-{topics[1].topic_id.hex}": topics[1].topic_id,
    }
    assert catalog.topics.get("t.a").created_ms == 0
    assert restore(catalog, *topics) == [each for each in results if each.outcome is Restored.RENAMED]


def test_the_time_of_creation_decides_before_the_order_of_commits(catalog: Catalog) -> None:
    restore(catalog, lost_topic(1, created_ms=5), lost_topic(2, created_ms=4))
    assert names(catalog)["t"] == lost_topic(1).topic_id


def test_a_name_of_the_greatest_length_is_cut(catalog: Catalog) -> None:
    name = "n" * MAX_NAME_LENGTH
    restore(catalog, *(lost_topic(number, name) for number in (1, 2, 3)))
    others = set(names(catalog)) - {name}
    assert {len(each) for each in others} == {MAX_NAME_LENGTH}
    assert len(others) == 2


def test_a_free_name_is_found_whatever_names_are_taken(catalog: Catalog) -> None:
    """A client may have created topics by these names."""
    topic = lost_topic(1)
    full = topic.topic_id.hex
    for name in ("t", f"t-{full[:8]}", f"t-{full}"):
        catalog.topics.create(name, 1, {})
    (restored,) = restore(catalog, topic)
    assert restored.name == f"t-{full}-2"
    assert names(catalog)[restored.name] == topic.topic_id


def test_a_topic_that_an_operator_creates_again_at_the_same_time_is_created_once(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No name is free for an identifier that exists."""
    topic, insert = lost_topic(1), lost._insert
    monkeypatch.setattr(lost, "count", lambda: range(9))  # the names would be tried without end

    def create_first(*args: Any) -> set[UUID]:  # noqa: ANN401
        monkeypatch.setattr(lost, "_insert", insert)
        catalog.topics.create("t", 1, {}, topic_id=topic.topic_id)
        return insert(*args)

    monkeypatch.setattr(lost, "_insert", create_first)
    with pytest.raises(CatalogUnavailableError, match="created meanwhile"):
        restore(catalog, topic)
    assert restore(catalog, topic) == []
    assert names(catalog) == {"t": topic.topic_id}


def test_a_topic_that_was_restored_first_gives_its_name_to_a_newer_one(
    scene: Scene, clock: ManualClock
) -> None:
    """Its records of this epoch stay with it."""
    catalog = scene.catalog
    older, newer = lost_topic(1, created_ms=1), lost_topic(2, created_ms=2)
    clock.advance(60)
    catalog.incarnations.declare_restore("a test")
    scene.session_id = scene.ids.new_uuid()
    catalog.sessions.register(scene.session_id, "in this epoch")
    restore(catalog, older)
    scene.commit(older, run_of(3))
    assert [(each.topic, each.outcome, each.name) for each in restore(catalog, newer)] == [
        (newer, Restored.CREATED, "t"),
        (older, Restored.RENAMED, "t-00000000"),
    ]
    assert names(catalog) == {"t": newer.topic_id, "t-00000000": older.topic_id}
    assert [state.high_watermark for state in catalog.topics.partitions(older.topic_id)] == [3]


@pytest.mark.parametrize("reason", ["records", "records behind expired ones", "local", "created since"])
def test_a_topic_that_was_not_lost_keeps_its_name(scene: Scene, clock: ManualClock, reason: str) -> None:
    """A topic is lost only if all of its offsets are of this epoch, and it is older than that."""
    catalog = scene.catalog
    config = {"storage.mode": "local"} if reason == "local" else {}
    if reason != "created since":
        catalog.topics.create("t", 1, config)
    if reason.startswith("records"):
        scene.commit(catalog.topics.get("t"), run_of(3))
    clock.advance(60)
    catalog.incarnations.declare_restore("a test")
    scene.session_id = scene.ids.new_uuid()
    catalog.sessions.register(scene.session_id, "in this epoch")
    clock.advance(61)
    if reason == "created since":
        catalog.topics.create("t", 1, {})
    topic = catalog.topics.get("t")
    if reason == "records behind expired ones":
        advance_log_start(catalog.retention, topic.topic_id, 0, 3)
        scene.commit(topic, run_of(3))
    newer = lost_topic(2, created_ms=catalog.clock.now_ms() + 1)
    (restored,) = restore(catalog, newer)
    assert (restored.outcome, restored.namesake) == (Restored.RENAMED, topic)
    assert names(catalog) == {"t": topic.topic_id, restored.name: newer.topic_id}


def test_topics_are_restored_only_in_the_history_with_which_they_were_compared(catalog: Catalog) -> None:
    epoch = catalog.incarnations.ensure().epoch
    catalog.incarnations.declare_restore("a test")
    with pytest.raises(CatalogReplacedError, match="has begun since epoch"):
        catalog.topics.lost.restore([lost_topic(1)], epoch)
    assert names(catalog) == {}


@pytest.mark.parametrize(
    ("partitions", "calls"), [([9, 9, 1], 2), ([30, 1], 2), ([1, 1, 1], 1), ([1] * 7, 2), ([], 0)]
)
def test_a_transaction_restores_a_bounded_number_of_partitions(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch, partitions: Sequence[int], calls: int
) -> None:
    monkeypatch.setattr(lost, "_MAX_PARTITIONS", 18)
    monkeypatch.setattr(lost, "_MAX_TOPICS", 4)
    topics = [lost_topic(1 + number, f"t{number}", partitions=each) for number, each in enumerate(partitions)]
    restore(catalog, *topics)
    counts = catalog.operation_counts()
    assert (counts["topics.restore"].calls if calls else 0) == calls
    assert [topic.partition_count for topic in catalog.topics.list()] == list(partitions)


def test_a_topic_that_is_deleted_meanwhile_gets_no_partitions(catalog: Catalog, catalog_url: str) -> None:
    """Commits to a deleted topic would be accepted otherwise, and its records be garbage."""
    topic = catalog.topics.create("t", 1, {})
    epoch = catalog.incarnations.ensure().epoch
    with (
        psycopg.connect(catalog_url, options="-c search_path=siltstone") as deleter,
        ThreadPoolExecutor(1) as pool,
    ):
        deleter.execute("UPDATE topics SET deleted_ms = 1")
        deleter.execute("DELETE FROM partitions")
        restoring = pool.submit(catalog.topics.lost.restore, [topic], epoch)
        with psycopg.connect(catalog_url, autocommit=True) as observer:
            query = b"SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
            while not restoring.done() and not observer.execute(query).fetchall():
                SystemClock().sleep(0.02)
        deleter.commit()
        restored = restoring.result()
        assert deleter.execute("SELECT 1 FROM partitions").fetchall() == []
        assert [each.outcome for each in restored] == [Restored.DELETED]


def test_a_topic_whose_undeletion_was_lost_is_undeleted(scene: Scene) -> None:
    """A lost commit in the epoch of the deletion, or in a later one, comes after an undeletion."""
    catalog = scene.catalog
    topic = scene.topic("t", partitions=2)
    scene.commit(topic, run_of(3))
    catalog.topics.delete("t")
    first = catalog.incarnations.current().epoch
    epoch = catalog.incarnations.declare_restore("a test").epoch
    more = replace(topic, partition_count=3)

    def undelete(committed_epochs: dict[UUID, int]) -> list[tuple[Restored, str]]:
        done = catalog.topics.lost.restore([more], epoch, committed_epochs)
        return [(each.outcome, each.name) for each in done]

    assert undelete({}) == [(Restored.DELETED, "t")]
    assert undelete({topic.topic_id: first}) == [(Restored.UNDELETED, "t")]
    assert undelete({topic.topic_id: first}) == []
    assert catalog.topics.get("t").partition_count == 3
    states = catalog.topics.partitions(topic.topic_id)
    assert [state.high_watermark for state in states] == [3, 0, 0]


def test_a_local_topic_is_created_again_only_if_a_later_epoch_may_have_lost_it(catalog: Catalog) -> None:
    """A deleted topic stays deleted, and one that has all of its partitions stays as it is."""
    deleted, existing = (catalog.topics.create(name, 2, {"storage.mode": "local"}) for name in ("d", "e"))
    catalog.topics.delete("d")
    absent = replace(existing, topic_id=UUID(int=7), name="absent")
    smaller = replace(existing, partition_count=1)
    first = catalog.incarnations.current().epoch
    topics = [deleted, smaller, absent]

    def outcomes() -> list[tuple[str, Restored]]:
        done = catalog.topics.lost.restore_local(
            topics, dict.fromkeys((each.topic_id for each in topics), first)
        )
        return [(each.name, each.outcome) for each in done]

    assert outcomes() == []
    catalog.incarnations.declare_restore("a test")
    assert outcomes() == [("absent", Restored.CREATED)]
    assert outcomes() == []
    assert catalog.topics.list() == [absent, existing]


def test_a_topic_that_was_deleted_in_the_history_that_survived_stays_deleted(scene: Scene) -> None:
    """A commit of the history before that a failover has lost does not bring it back."""
    catalog = scene.catalog
    topic = scene.topic("t")
    first = catalog.incarnations.current().epoch
    epoch = catalog.incarnations.declare_restore("a test").epoch
    catalog.topics.delete("t")
    (done,) = catalog.topics.lost.restore([topic], epoch, {topic.topic_id: first})
    assert done.outcome is Restored.DELETED
    assert catalog.topics.list() == []


def test_a_topic_whose_undeletion_was_lost_leaves_its_name_to_another_one(scene: Scene) -> None:
    catalog = scene.catalog
    topic = scene.topic("t.t")
    catalog.topics.delete("t.t")
    other = scene.topic("t_t")
    epoch = catalog.incarnations.declare_restore("a test").epoch
    (done,) = catalog.topics.lost.restore([topic], epoch, {topic.topic_id: 0})
    assert (done.outcome, done.namesake) == (Restored.RENAMED, other)
    assert names(catalog) == {"t_t": other.topic_id, done.name: topic.topic_id}


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_topic_that_cannot_be_undeleted_does_not_hold_up_its_agent(
    scene: Scene, catalog_url: str, *, is_kept: bool
) -> None:
    """Its removal has begun, or an earlier release deleted it, which kept no rows of its partitions."""
    catalog = scene.catalog
    topic = scene.topic("t")
    catalog.topics.delete("t")
    with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
        connection.execute("UPDATE topics SET purged_ms = 1" if is_kept else "DELETE FROM deleted_partitions")
    epoch = catalog.incarnations.declare_restore("a test").epoch
    (done,) = catalog.topics.lost.restore([topic], epoch, {topic.topic_id: 0})
    assert done.outcome is Restored.DELETED


def test_names_are_protected_as_long_as_gaps(scene: Scene, clock: ManualClock) -> None:
    """An undeleted topic takes a name, too. The operator reads how long this lasts."""
    catalog = scene.catalog
    topic = catalog.topics.create("t", 1, {})
    catalog.topics.delete("t")
    catalog.incarnations.declare_restore("a test")
    clock.advance(59)
    calls: list[Callable[[], Topic]] = [
        lambda: catalog.topics.create("u", 1, {}),
        lambda: catalog.topics.deleted.undelete("t"),
        lambda: catalog.topics.deleted.undelete("t", new_name="u"),
    ]
    for take in calls:
        with pytest.raises(CatalogUnavailableError, match="agents have not reported") as refused:
            take()
        assert refused.value.remedy == "try again in 10 s; this lasts at most 60 s from the failover"
    clock.advance(1)
    assert catalog.topics.deleted.undelete("t", new_name="u").topic_id == topic.topic_id


def test_kafka_reserves_two_identifiers(catalog: Catalog) -> None:
    for number in (0, 1):
        with pytest.raises(InvalidTopicError, match="which Kafka reserves"):
            catalog.topics.create("t", 1, {}, topic_id=UUID(int=number))
    catalog.topics.create("t", 1, {}, topic_id=UUID(int=2))


def test_an_identifier_that_is_taken_meanwhile_is_named(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent creates the lost topic again while the operator does."""
    topic = replace(lost_topic(1), name="restored")
    restore(catalog, topic)
    looks = iter([False, True])
    monkeypatch.setattr(Topics, "_is_known", lambda *_: next(looks))
    with pytest.raises(TopicExistsError, match=f"the identifier {topic.topic_id} exists"):
        catalog.topics.create("t", 1, {}, topic_id=topic.topic_id)
