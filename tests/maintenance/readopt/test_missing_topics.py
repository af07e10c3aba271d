"""Lost files whose topics or partitions were lost, too, wait until these are created again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from catalog.commit import readoption
from catalog.errors import MissingTopicsError
from catalog.lifecycle.missing_topics import MissingTopic, find_missing_topics
from catalog.topics import lost
from maintenance.readopt import LostFile, Outcome, ReadoptReport, read_lost_file, readopt, readopt_file
from object_store.binding import verify_binding
from object_store.local.store import LocalStore
from tests.agent.write.test_loss_recovery import World

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.model import Topic
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids


@pytest.fixture
def world(
    catalog: Catalog,
    catalog_url: str,
    clock: Clock,
    ids: Ids,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> World:
    """Return a catalog that has lost commits whose agents died a minute ago."""
    monkeypatch.setattr(lost, "REPORT_PERIOD_MS", 0)
    found = World(catalog, LocalStore(tmp_path, ids), clock, ids, catalog_url)
    verify_binding(found.store, catalog.store_binding, ids)
    return found


def lose_partitions(world: World) -> Topic:
    """Lose two files of partitions 2 and 1, and these partitions."""
    agent = world.agent()
    world.catalog.topics.create("t", 1, {})
    topic = world.catalog.topics.add_partitions("t", 4)
    for partition in (2, 1):
        agent.write(topic, 0, partition)
    world.lose_commits()
    world.execute("DELETE FROM partitions WHERE partition > 0", "UPDATE topics SET partition_count = 1")
    world.begin_epoch()
    return topic


def missing(report: ReadoptReport) -> list[str]:
    return [topic.command for topic in report.missing_topics.values()]


def test_records_of_partitions_that_were_added_in_the_lost_history_are_kept(world: World) -> None:
    """The report names how many partitions all files need. The files wait however often it is applied."""
    lose_partitions(world)
    command = "siltstone topics add-partitions t --partitions 3"
    assert missing(readopt(world.catalog, world.store)) == [command]
    for _ in range(2):
        left = readopt(world.catalog, world.store, apply=True)
        assert (left.counts, left.settled_sessions, left.records) == ({"waiting": 2}, 0, 6)
        assert missing(left) == [command]
    assert world.catalog.lost_commits.is_any_unsettled(), "garbage collection keeps the objects"
    world.catalog.topics.add_partitions("t", 3)
    done = readopt(world.catalog, world.store, apply=True)
    assert (done.counts, done.rejected, done.settled_sessions) == ({"readopted": 2}, 0, 1)
    assert not world.catalog.lost_commits.is_any_unsettled()


def test_a_file_of_an_unknown_session_waits_as_long(world: World) -> None:
    """Its registration was lost. The first run makes the session known, and must not forget the file."""
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.lose_commits_and_topics()
    world.execute("DELETE FROM sessions")
    world.begin_epoch()
    for apply in (False, True, True):
        assert readopt(world.catalog, world.store, apply=apply).counts == {"waiting": 1}
    world.catalog.topics.create("renamed", 1, {}, topic_id=topic.topic_id)
    assert readopt(world.catalog, world.store, apply=True).rejected == 0
    assert world.end(topic) == 3


def test_the_operator_may_discard_records_of_unknown_topics(world: World) -> None:
    lose_partitions(world)
    readopt(world.catalog, world.store, apply=True)
    done = readopt(world.catalog, world.store, apply=True, discard_unknown_topics=True)
    assert (done.counts, done.records, done.rejected) == ({"readopted": 2}, 6, 6)
    assert readopt(world.catalog, world.store).files == []


def test_a_file_that_waits_may_be_discarded_as_not_acknowledged(world: World) -> None:
    lose_partitions(world)
    readopt(world.catalog, world.store, apply=True)
    assert readopt(world.catalog, world.store, acknowledged_only=True).counts == {"discarded": 2}
    assert readopt(world.catalog, world.store).counts == {"waiting": 2}
    done = readopt(world.catalog, world.store, apply=True, acknowledged_only=True)
    assert (done.counts, done.settled_sessions) == ({"discarded": 2}, 1)
    assert not world.catalog.lost_commits.is_any_unsettled()
    assert readopt(world.catalog, world.store).files == []


def test_a_deleted_topic_is_not_missing(world: World) -> None:
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.lose_commits()
    world.begin_epoch()
    world.catalog.topics.delete("t")
    assert missing(readopt(world.catalog, world.store)) == []
    done = readopt(world.catalog, world.store, apply=True)
    assert (done.counts, done.rejected) == ({"readopted": 1}, 3)


def test_a_file_of_a_deleted_topic_waits_while_its_undeletion_may_be_lost(world: World) -> None:
    """Its agent died, so it is not known when the file was committed. The operator decides."""
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.catalog.topics.delete("t")
    world.lose_commits()
    world.begin_epoch()
    command = f"siltstone topics undelete t --id {topic.topic_id}"
    for apply in (False, True):
        report = readopt(world.catalog, world.store, apply=apply)
        assert (report.counts, missing(report)) == ({"waiting": 1}, [command])
    assert world.catalog.garbage.remove_deleted() == 0
    world.catalog.topics.deleted.undelete("t", topic_id=topic.topic_id)
    done = readopt(world.catalog, world.store, apply=True)
    assert (done.counts, done.rejected) == ({"readopted": 1}, 0)
    assert world.log(topic) == [0]


def test_a_file_that_waits_for_a_deleted_topic_does_not_keep_it_for_ever(world: World) -> None:
    """The operator knows that the topic was not undeleted."""
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    world.catalog.topics.delete("t")
    world.lose_commits()
    world.begin_epoch()
    assert readopt(world.catalog, world.store, apply=True).counts == {"waiting": 1}
    done = readopt(world.catalog, world.store, apply=True, discard_unknown_topics=True)
    assert (done.counts, done.rejected, done.settled_sessions) == ({"readopted": 1}, 3, 1)
    while world.catalog.garbage.remove_deleted():
        pass
    assert world.catalog.topics.deleted.list() == []


@pytest.mark.parametrize("is_later", [False, True])
def test_the_epoch_of_a_lost_commit_decides_whether_its_topic_was_undeleted(
    world: World, *, is_later: bool
) -> None:
    """An agent has reported it. It was deleted before, and the undeletion was lost; or later."""
    agent = world.agent()
    topic = world.catalog.topics.create("t", 1, {})
    agent.write(topic, 0)
    (commit,) = agent.acknowledged.recent()
    if not is_later:
        world.catalog.topics.delete("t")
    world.lose_commits()
    world.begin_epoch()
    if is_later:
        world.catalog.topics.delete("t")
        world.begin_epoch()
    epoch = world.catalog.incarnations.current().epoch
    world.catalog.lost_commits.report([], [commit], epoch)
    report = readopt(world.catalog, world.store, apply=True)
    assert report.counts == {"readopted" if is_later else "waiting": 1}


def test_the_error_names_what_to_do(world: World) -> None:
    topic = lose_partitions(world)
    (name,) = (
        each.object_name
        for each in readopt(world.catalog, world.store).files
        if each.missing_topics[0].partition_count == 3
    )
    file = LostFile(file_id=UUID(int=1), session_id=UUID(int=2), object_name=name, acknowledged=True)
    epoch = world.catalog.incarnations.current().epoch
    with pytest.raises(MissingTopicsError, match=r"'t' has fewer than 3 partitions .*add-partitions t"):
        readopt_file(world.catalog, partial(read_lost_file, world.store), file, epoch=epoch)
    world.execute("DELETE FROM partitions", "DELETE FROM topics")
    command = f"siltstone topics create NAME --partitions 3 --id {topic.topic_id}"
    with pytest.raises(MissingTopicsError, match=f"does not know topic {topic.topic_id} .{command}"):
        readopt_file(world.catalog, partial(read_lost_file, world.store), file, epoch=epoch)


def test_records_are_kept_if_the_partition_is_created_during_the_commit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit has looked for the partitions before. It is repeated."""
    lose_partitions(world)

    def create_first(*arguments: Any, **options: Any) -> list[MissingTopic]:  # noqa: ANN401  # of any kind
        if world.catalog.topics.get("t").partition_count == 1:
            world.catalog.topics.add_partitions("t", 3)
        return find_missing_topics(*arguments, **options)

    monkeypatch.setattr(readoption, "find_missing_topics", create_first)
    assert readopt(world.catalog, world.store, apply=True).rejected == 0
    done = readopt(world.catalog, world.store, apply=True)
    assert (done.rejected, done.counts) == (0, {"readopted": 1})


def test_the_report_names_the_topics_of_files_that_it_does_not_list() -> None:
    report = ReadoptReport(applied=False, max_files=0)
    for number, partitions in enumerate((2, 5, 3)):
        topic = MissingTopic(topic_id=UUID(int=3), name=None, partition_count=partitions)
        file = LostFile(
            file_id=UUID(int=number), session_id=UUID(int=2), object_name="a file", acknowledged=None
        )
        report.add(file.with_outcome(Outcome.WAITING, missing_topics=(topic,)))
    assert report.files == []
    assert missing(report) == [f"siltstone topics create NAME --partitions 5 --id {UUID(int=3)}"]
