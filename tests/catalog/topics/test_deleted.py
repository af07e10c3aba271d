"""Deleted topics come back as they were until garbage collection begins to remove them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING
from uuid import UUID

import psycopg
import pytest

from catalog.database.sql_files import load_queries
from catalog.errors import InvalidTopicError, TopicExistsError, TopicNotFoundError
from catalog.groups.offsets import CommittedOffset
from catalog.lifecycle.deletions import TopicAbsence
from catalog.model import PartitionId, RunRefusal
from catalog.topics.local_leaders import LocalLeader
from core.clock import ManualClock
from tests.catalog.scene import advance_log_start, run_of

if TYPE_CHECKING:
    from catalog.model import Topic
    from catalog.open import Catalog
    from core.clock import Clock
    from tests.catalog.scene import Scene

HOUR_MS = 3_600_000


def purge(catalog: Catalog, delay_ms: int = 0) -> None:
    while catalog.garbage.remove_deleted(delay_ms=delay_ms):
        pass


def test_an_undeleted_topic_is_as_it_was(scene: Scene) -> None:
    """Records, bounds, totals, settings, producers and committed offsets; compaction continues."""
    catalog = scene.catalog
    topic = scene.topic("t", partitions=3, retention_ms="-1")
    scene.commit(topic, run_of(5, producer=(7, 0, 0)))
    scene.commit(topic, run_of(3), partition=2)
    advance_log_start(catalog.retention, topic.topic_id, 0, 2)
    epoch = catalog.incarnations.declare_restore("a test").epoch
    catalog.lost_commits.report([scene.session_id], [], epoch)
    scene.session_id = scene.ids.new_uuid()
    scene.catalog.sessions.register(scene.session_id, "in the next epoch")
    scene.commit(topic, run_of(1), partition=1)
    key = PartitionId(topic.topic_id, 1)
    claim_id = scene.ids.new_uuid()
    catalog.groups.claim("g", claim_id, create=True)
    offset = CommittedOffset(topic_id=topic.topic_id, partition=0, offset=3)
    catalog.group_offsets.commit("g", claim_id, None, [offset])
    before = (
        catalog.topics.get("t"),
        catalog.planning.partition_sizes([topic.topic_id]),
        scene.extents(topic),
        catalog.group_offsets.fetch_all(["g"]),
        catalog.planning.backlog(),
        catalog.leader_epochs.of_partitions([key])[key]._entries,
    )

    catalog.topics.delete("t")
    assert catalog.topics.list() == []
    assert scene.commit(topic, run_of(1)).runs[0].refusal is RunRefusal.UNKNOWN_TOPIC_OR_PARTITION
    assert catalog.group_offsets.fetch_all(["g"]) == {"g": []}
    assert catalog.group_offsets.expire(["g"], 0) == []
    assert catalog.planning.backlog().ingestion_files == 0
    catalog.expiry.expire_producers(-HOUR_MS)
    (deleted,) = catalog.topics.deleted.list()
    assert (deleted.topic, deleted.is_purged) == (topic, False)

    assert catalog.topics.deleted.undelete("t") == topic
    after = (
        catalog.topics.get("t"),
        catalog.planning.partition_sizes([topic.topic_id]),
        scene.extents(topic),
        catalog.group_offsets.fetch_all(["g"]),
        catalog.planning.backlog(),
        catalog.leader_epochs.of_partitions([key])[key]._entries,
    )
    assert after == before
    assert catalog.topics.deleted.list() == []
    (again,) = scene.commit(topic, run_of(2, producer=(7, 0, 5))).runs
    assert again.refusal is None
    job = scene.claimed(scene.extents(topic, 2))
    catalog.jobs.complete(scene.result(job))
    catalog.topics.delete("t")
    assert catalog.topics.deleted.undelete("t") == topic


def test_data_is_kept_until_the_delay_ends(scene: Scene, clock: Clock) -> None:
    assert isinstance(clock, ManualClock)
    catalog = scene.catalog
    topic = scene.topic("t", retention_ms="1")
    scene.commit(topic, run_of(5))
    catalog.topics.delete("t")
    clock.advance(HOUR_MS / 1000 - 1)
    purge(catalog, HOUR_MS)
    assert catalog.garbage.dead_files(2**62, 10) == []
    catalog.topics.deleted.undelete("t")
    assert len(scene.extents(topic)) == 1
    catalog.topics.delete("t")
    clock.advance(HOUR_MS / 1000)
    purge(catalog, HOUR_MS)
    assert len(catalog.garbage.dead_files(2**62, 10)) == 1
    with pytest.raises(TopicNotFoundError, match="no deleted topic 't'"):
        catalog.topics.deleted.undelete("t")


def test_a_failover_begins_the_delay_again(scene: Scene, clock: Clock) -> None:
    """It may have lost the undeletion, which the operator then has time to repeat."""
    assert isinstance(clock, ManualClock)
    catalog = scene.catalog
    topic = scene.topic("t")
    scene.commit(topic, run_of(5))
    catalog.topics.delete("t")
    catalog.sessions.end(scene.session_id)
    clock.advance(HOUR_MS / 1000 - 1)
    catalog.incarnations.declare_restore("a test")
    clock.advance(HOUR_MS / 1000 - 1)
    purge(catalog, HOUR_MS)
    assert catalog.topics.deleted.undelete("t") == topic
    catalog.topics.delete("t")
    clock.advance(HOUR_MS / 1000)
    purge(catalog, HOUR_MS)
    assert catalog.topics.deleted.list() == []


def test_a_clock_that_was_ahead_at_a_failover_prolongs_the_delay_once_at_most(
    scene: Scene, clock: Clock
) -> None:
    """Maintenance notices that the epoch has begun in the future."""
    assert isinstance(clock, ManualClock)
    catalog = scene.catalog
    scene.commit(scene.topic("t"), run_of(5))
    catalog.topics.delete("t")
    catalog.sessions.end(scene.session_id)
    clock._start_ms += 1000 * HOUR_MS
    catalog.incarnations.declare_restore("a test")
    clock._start_ms -= 1000 * HOUR_MS
    for seconds in (0, 2 * HOUR_MS / 1000 - 1):
        clock.advance(seconds)
        purge(catalog, HOUR_MS)
        assert [each.is_purged for each in catalog.topics.deleted.list()] == [False]
    clock.advance(1)
    purge(catalog, HOUR_MS)
    assert catalog.topics.deleted.list() == []


def test_a_clock_that_steps_back_for_a_moment_does_not_shorten_the_delay(scene: Scene, clock: Clock) -> None:
    """Maintenance looks at it at that moment. The epoch then seems to begin in the future."""
    assert isinstance(clock, ManualClock)
    catalog = scene.catalog
    topic = scene.topic("t")
    scene.commit(topic, run_of(5))
    catalog.topics.delete("t")
    catalog.sessions.end(scene.session_id)
    clock.advance(HOUR_MS / 1000)
    catalog.incarnations.declare_restore("a test")
    clock._start_ms -= HOUR_MS
    purge(catalog, HOUR_MS)
    clock._start_ms += HOUR_MS
    clock.advance(HOUR_MS / 1000 - 1)
    purge(catalog, HOUR_MS)
    assert catalog.topics.deleted.undelete("t") == topic


def test_no_removal_begins_before_agents_have_reported_what_a_failover_lost(scene: Scene) -> None:
    """They may have acknowledged records to an undeleted topic. A removal that has begun is continued."""
    catalog = scene.catalog
    begun, topic = scene.topic("begun"), scene.topic("t")
    for each in (begun, topic):
        scene.commit(each, run_of(5))
    catalog.topics.delete("begun")
    assert catalog.garbage.remove_deleted(limit=1)
    catalog.topics.delete("t")
    epoch = catalog.incarnations.declare_restore("a test").epoch
    purge(catalog)
    assert [(each.topic.name, each.is_purged) for each in catalog.topics.deleted.list()] == [("t", False)]
    catalog.lost_commits.report([scene.session_id], [], epoch)
    catalog.lost_commits.settle([scene.session_id], epoch)
    purge(catalog)
    assert catalog.topics.deleted.list() == []


def test_a_topic_whose_removal_has_begun_cannot_be_undeleted(scene: Scene) -> None:
    topic = scene.topic_with_extents(3)
    scene.catalog.topics.delete(topic.name)
    assert scene.catalog.garbage.remove_deleted(limit=1)
    with pytest.raises(TopicNotFoundError, match="has begun to remove"):
        scene.catalog.topics.deleted.undelete(topic.name)
    (deleted,) = scene.catalog.topics.deleted.list()
    assert deleted.is_purged


def test_a_topic_deleted_by_an_earlier_version_cannot_be_undeleted(scene: Scene, catalog_url: str) -> None:
    """That version kept no rows of its partitions."""
    topic = scene.topic_with_extents(1)
    scene.catalog.topics.delete(topic.name)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("DELETE FROM siltstone.deleted_partitions")
    with pytest.raises(TopicNotFoundError, match="has begun to remove"):
        scene.catalog.topics.deleted.undelete(topic.name)
    assert scene.catalog.topics.list() == []


def test_a_name_that_is_used_again_needs_another_one(scene: Scene) -> None:
    catalog = scene.catalog
    old = scene.topic("t.a")
    scene.commit(old, run_of(5))
    catalog.topics.delete("t.a")
    new = scene.topic("t_a")
    with pytest.raises(TopicExistsError, match="--as NEWNAME"):
        catalog.topics.deleted.undelete("t.a")
    found = catalog.topics.deleted.undelete("t.a", new_name="restored")
    assert (found.topic_id, found.name) == (old.topic_id, "restored")
    assert len(scene.extents(old)) == 1
    assert {topic.topic_id for topic in catalog.topics.list()} == {old.topic_id, new.topic_id}


def test_one_of_several_deleted_topics_of_a_name_is_chosen_by_its_id(scene: Scene) -> None:
    catalog = scene.catalog
    first = scene.topic("t")
    catalog.topics.delete("t")
    second = scene.topic("t")
    catalog.topics.delete("t")
    with pytest.raises(InvalidTopicError, match=f"by its identifier: .*{first.topic_id}"):
        catalog.topics.deleted.undelete("t")
    assert catalog.topics.deleted.undelete("t", topic_id=second.topic_id) == second
    with pytest.raises(TopicNotFoundError, match="list --deleted"):
        catalog.topics.deleted.undelete("t", topic_id=UUID(int=7))


@pytest.mark.parametrize("new_name", [None, "restored"])
def test_a_repeated_undeletion_by_id_returns_the_topic(scene: Scene, new_name: str | None) -> None:
    """The caller did not get the first response. A topic of another name is not taken for the result."""
    undelete = scene.catalog.topics.deleted.undelete
    topic = scene.topic("t")
    scene.catalog.topics.delete("t")
    first = undelete("t", topic_id=topic.topic_id, new_name=new_name)
    assert undelete("t", topic_id=topic.topic_id, new_name=new_name) == first
    with pytest.raises(TopicNotFoundError):
        undelete("t", topic_id=topic.topic_id, new_name="other")
    scene.catalog.topics.delete(first.name)
    assert undelete(first.name, topic_id=topic.topic_id) == first


@pytest.mark.parametrize("name_of_first", [None, "other"])
def test_an_attempt_that_follows_a_successful_one_succeeds(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name_of_first: str | None
) -> None:
    """The database repeats a transaction whose response was lost. Another name is no success."""
    deleted = scene.catalog.topics.deleted
    topic = scene.topic("t")
    scene.catalog.topics.delete("t")
    before = deleted.list()
    found = deleted.undelete("t", new_name=name_of_first)
    monkeypatch.setattr(deleted, "list", lambda: before)
    if name_of_first is None:
        assert deleted.undelete("t") == found == topic
    else:
        with pytest.raises(TopicNotFoundError, match="meanwhile"):
            deleted.undelete("t")


def local_topic(scene: Scene, name: str = "local", partitions: int = 1) -> tuple[Topic, UUID]:
    """Return a local topic, led by node 1, and the directory of the logs."""
    topic = scene.catalog.topics.create(name, partitions, {"storage.mode": "local"})
    directory_id = scene.ids.new_uuid()
    all_partitions = [PartitionId(topic.topic_id, number) for number in range(partitions)]
    scene.catalog.local_leaders.claim(dict.fromkeys(all_partitions, 1))
    scene.catalog.local_leaders.begin_epochs(1)
    scene.catalog.local_leaders.assign(1, dict.fromkeys(all_partitions, directory_id))
    return topic, directory_id


def test_an_undeleted_local_topic_has_its_leaders_in_a_new_epoch(scene: Scene) -> None:
    """The node still has the logs. A partition that never had a leader gets one when it is used."""
    catalog = scene.catalog
    topic, directory_id = local_topic(scene)
    catalog.topics.add_partitions("local", 2)
    catalog.topics.delete("local")
    assert catalog.topics.deleted.undelete("local", new_name="other").topic_id == topic.topic_id
    leader = LocalLeader(node_id=1, leader_epoch=2, directory_id=directory_id)
    assert catalog.local_leaders.of_topic(topic.topic_id) == {0: leader}
    assert catalog.topics.get("other").partition_count == 2


def test_a_local_topic_deleted_by_an_earlier_version_cannot_be_undeleted(
    scene: Scene, catalog_url: str
) -> None:
    """It recorded no leaders, and its agents deleted the logs."""
    local_topic(scene)
    scene.catalog.topics.delete("local")
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.deleted_partitions SET state = state - 'local_leader'")
    with pytest.raises(InvalidTopicError, match="an earlier release"):
        scene.catalog.topics.deleted.undelete("local")
    assert scene.catalog.topics.list() == []


def test_agents_learn_for_a_week_that_a_local_topic_is_purged(scene: Scene, clock: Clock) -> None:
    """Its row stays that long, so that an agent that was away deletes the logs."""
    assert isinstance(clock, ManualClock)
    catalog = scene.catalog
    topic, _ = local_topic(scene)
    others = [local_topic(scene, f"other{number}")[0] for number in range(2)]
    for each in (topic, *others):
        catalog.topics.delete(each.name)
    confirm = catalog.deletions.confirm_gone_topics
    clock.advance(HOUR_MS / 1000 - 1)
    purge(catalog, HOUR_MS)
    assert catalog.deletions.find_purged_topics([topic.topic_id]) == []
    assert confirm([topic.topic_id]) == {topic.topic_id: TopicAbsence.DELETED}
    clock.advance(1)
    purge(catalog, HOUR_MS)
    assert catalog.deletions.find_purged_topics([topic.topic_id]) == [topic.topic_id]
    assert confirm([topic.topic_id]) == {topic.topic_id: TopicAbsence.PURGED}
    with pytest.raises(TopicNotFoundError, match="has begun to remove"):
        catalog.topics.deleted.undelete("local")
    newer, _ = local_topic(scene)
    catalog.topics.delete("local")
    assert catalog.topics.deleted.undelete("local").topic_id == newer.topic_id
    clock.advance(7 * 24 * HOUR_MS / 1000 - 1)
    purge(catalog, HOUR_MS)
    assert len(catalog.topics.deleted.list()) == 3
    clock.advance(1)
    purge(catalog, HOUR_MS)
    assert catalog.topics.deleted.list() == []
    assert confirm([topic.topic_id]) == {topic.topic_id: TopicAbsence.UNKNOWN}


def test_the_next_topic_to_remove_is_found_among_many_that_stay(scene: Scene, catalog_url: str) -> None:
    """Thousands of local topics may be deleted within the week in which their rows stay."""
    queries = load_queries("garbage")
    params = {"before_ms": 10_000, "local_before_ms": -1}
    with psycopg.connect(catalog_url) as connection:
        connection.execute("SET search_path = siltstone")
        connection.execute(
            """
            INSERT INTO topics (topic_id, name, partition_count, config, created_ms, deleted_ms, purged_ms)
            SELECT gen_random_uuid(), 'gone-' || number, 1, '{"storage.mode": "local"}', 0, number, number
            FROM generate_series(1, 5000) AS number
            """
        )
        connection.execute("ANALYZE topics")
        read = "SELECT seq_tup_read + idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'topics'"
        (before,) = connection.execute(read).fetchone() or (0,)
        for name in ("pick_deleted_topic", "pick_purged_local_topic"):
            assert connection.execute(queries[name].sql, params).fetchall() == []
        (after,) = connection.execute(read).fetchone() or (0,)
        assert after - before <= 2
        found = connection.execute(queries["pick_purged_local_topic"].sql, {"local_before_ms": 1}).fetchall()
        assert len(found) == 1
        connection.rollback()
    scene.topic("t")
    scene.catalog.topics.delete("t")
    assert scene.catalog.garbage.remove_deleted(delay_ms=0)


def test_undeleting_and_removing_at_once_is_decided_once(scene: Scene) -> None:
    """Either the topic is back with everything, or it is gone."""
    catalog = scene.catalog
    with ThreadPoolExecutor(2) as threads:
        for number in range(10):
            topic = scene.topic(f"t{number}")
            for _ in range(3):
                scene.commit(topic, run_of(1))
            catalog.topics.delete(topic.name)
            removal = threads.submit(purge, catalog)
            undeletion = threads.submit(catalog.topics.deleted.undelete, topic.name)
            removal.result()
            back = undeletion.exception() is None
            assert back or isinstance(undeletion.exception(), TopicNotFoundError)
            assert len(scene.extents(topic)) == (3 if back else 0)
            assert (topic in catalog.topics.list()) == back


def test_files_of_a_deleted_topic_do_not_hold_up_planning(scene: Scene) -> None:
    """They are the oldest ones, and have unclaimed extents as long as the topic can be undeleted."""
    deleted, kept = scene.topic_with_extents(3), scene.topic("kept")
    scene.catalog.topics.delete(deleted.name)
    scene.commit(kept, run_of(5))
    files = scene.catalog.planning.ingestion_files(limit=2).files
    assert len(files) == 1
    (extent,) = scene.extents(kept)
    assert files[0].file_id == extent.file_id
    assert scene.catalog.topics.states([PartitionId(deleted.topic_id, 0)]) == []


def test_a_removal_deletes_a_bounded_number_of_rows_at_a_time(scene: Scene, catalog_url: str) -> None:
    """A topic with very many committed offsets would exceed the time limit of a statement for ever."""
    catalog = scene.catalog
    topic = scene.topic("t", partitions=5)
    claim_id = scene.ids.new_uuid()
    catalog.groups.claim("g", claim_id, create=True)
    offsets = [CommittedOffset(topic_id=topic.topic_id, partition=each, offset=3) for each in range(5)]
    catalog.group_offsets.commit("g", claim_id, None, offsets)
    catalog.topics.delete("t")
    tables = ("committed_offsets", "deleted_partitions", "topics")
    counts = []
    with psycopg.connect(catalog_url, autocommit=True) as connection:
        while catalog.garbage.remove_deleted(limit=2):
            queries = (f"SELECT count(*) FROM siltstone.{table}".encode() for table in tables)
            counts.append(tuple(connection.execute(query).fetchone() for query in queries))
    assert [tuple(each[0] for each in row if each) for row in counts] == [
        (3, 3, 1),
        (1, 1, 1),
        (0, 0, 1),
        (0, 0, 0),
    ]
