"""Local logs on the agent's disks, kept in step with the topics of a real catalog."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import psycopg
import pytest
from structlog.testing import capture_logs

from agent.local_topics.disks.log_config import log_config_of
from agent.local_topics.disks.storage import LocalStorage, StorageIdentity
from catalog.model import PartitionId
from core.clock import SystemClock
from core.ids import SystemIds
from local_tier.topic_partition import TopicPartition
from tests.local_tier.batches import batch, offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path
    from uuid import UUID

    from agent.local_topics.disks.storage import TopicTable
    from catalog.model import Topic
    from catalog.open import Catalog

ROCK = TopicPartition("rock", 0)


class Node:
    """The disks of one node, opened by one process after another."""

    def __init__(self, catalog: Catalog, directory: Path) -> None:
        self.catalog = catalog
        self.directory = directory
        self._opened: list[LocalStorage] = []

    def open(self, topics: TopicTable | None = None) -> LocalStorage:
        clock = SystemClock()
        storage = LocalStorage(
            (self.directory,),
            StorageIdentity(cluster_id="here", node_id=1),
            topics=topics or self.catalog.topics,
            deletions=self.catalog.deletions,
            lost=self.catalog.topics.lost,
            leaders=self.catalog.local_leaders,
            clock=clock,
            ids=SystemIds(clock),
            epoch=lambda: self.catalog.incarnations.current().epoch,
        )
        storage.open()
        self._opened.append(storage)
        return storage

    def close(self) -> None:
        while self._opened:
            self._opened.pop().close()

    def names(self) -> list[str]:
        """Return the partition directories, with `*` for the random part of a name."""
        found = sorted(path.name for path in self.directory.iterdir() if path.is_dir())
        return [
            f"{name.split('.')[0]}.*-{name.rpartition('-')[2]}" if "." in name else name for name in found
        ]


@pytest.fixture
def node(catalog: Catalog, tmp_path: Path) -> Iterator[Node]:
    node = Node(catalog, tmp_path / "disk")
    yield node
    node.close()


def create(catalog: Catalog, name: str = "rock", mode: str = "local") -> Topic:
    return catalog.topics.create(name, 1, {"storage.mode": mode})


def write(storage: LocalStorage, topic: Topic, count: int = 3) -> None:
    log = storage.manager.get_or_create(topic.name, topic.topic_id, 0, log_config_of(topic.config))
    log.append_as_leader(batch(0, count), 0)
    log.update_high_watermark(log.log_end_offset)


def forget(catalog_url: str, topic: Topic) -> None:
    """Remove a topic's rows, as a failover that lost the topic's creation does."""
    with psycopg.connect(catalog_url) as connection:
        for table in ("partitions", "topics"):
            connection.execute(f"DELETE FROM siltstone.{table} WHERE topic_id = %s", (topic.topic_id,))


def lead(node: Node, storage: LocalStorage, topic: Topic) -> PartitionId:
    """Record that the node leads the partition of a topic, and where its log is."""
    partition = PartitionId(topic.topic_id, 0)
    node.catalog.local_leaders.claim({partition: 1})
    (directory_id,) = storage.manager.directory_ids
    node.catalog.local_leaders.assign(1, {partition: directory_id})
    return partition


def purge(catalog: Catalog, delay_ms: int = 0) -> None:
    while catalog.garbage.remove_deleted(delay_ms=delay_ms):
        pass


class RacingTopics:
    """The topics of a catalog; `then` runs between a lookup and its use."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.then: Callable[[], None] = lambda: None
        self.found = 0

    def list(self) -> Sequence[Topic]:
        return self._found(self._catalog.topics.list())

    def by_ids(self, topic_ids: Sequence[UUID]) -> Sequence[Topic]:
        return self._found(self._catalog.topics.by_ids(topic_ids))

    def _found(self, topics: Sequence[Topic]) -> Sequence[Topic]:
        self.found += len(topics)
        self.then()
        return topics


def test_acknowledged_records_are_readable_after_a_crash(
    node: Node, catalog: Catalog, tmp_path: Path
) -> None:
    """The checkpointed high watermark does not limit readers, even before anything is appended."""
    running, topic = node.open(), create(catalog)
    write(running, topic, 3)
    running.manager.periodic_tasks.checkpoint_high_watermarks()
    write(running, topic, 2)
    shutil.copytree(node.directory, tmp_path / "crashed")
    node.close()
    node.directory = tmp_path / "crashed"
    found = node.open().manager.get(ROCK)
    assert found is not None
    assert found.high_watermark == 5
    assert offsets_of(found.read(0, 10_000).data) == [0, 1, 2, 3, 4]


def test_a_log_that_is_created_during_a_sweep_stays(node: Node, catalog: Catalog) -> None:
    """Its topic is newer than the lookup of topics."""
    topics = RacingTopics(catalog)
    storage = node.open(topics)
    write(storage, create(catalog, "sand"))
    topics.then = lambda: write(storage, create(catalog))
    storage.sync_topics()
    log = storage.manager.get(ROCK)
    assert log is not None
    assert offsets_of(log.read(0, 10_000).data) == [0, 1, 2]
    assert node.names() == ["rock-0", "sand-0"]


def test_a_sweep_reads_only_the_topics_of_its_logs(node: Node, catalog: Catalog) -> None:
    """Each agent sweeps every five seconds, and the catalog may have 100,000 topics."""
    topics = RacingTopics(catalog)
    storage, topic = node.open(topics), create(catalog)
    write(storage, topic)
    waiting = create(catalog, "waiting")
    write(storage, waiting)
    lead(node, storage, waiting)
    catalog.topics.delete("waiting")
    storage.sync_topics()
    for number in range(20):
        create(catalog, f"other-{number}", "object")
    catalog.topics.deleted.undelete("waiting")
    topics.found = 0
    storage.sync_topics()
    assert topics.found == 2
    assert node.names() == ["rock-0", "waiting-0"]


@pytest.mark.parametrize("is_running", [True, False])
def test_a_log_is_deleted_only_if_its_topic_was_purged(
    node: Node, catalog: Catalog, catalog_url: str, *, is_running: bool
) -> None:
    """Any other log is kept, whether the agent runs meanwhile or starts later."""
    storage = node.open()
    purged, deleted, lost, kept = (create(catalog, name) for name in ("purged", "deleted", "lost", "kept"))
    for topic in (purged, deleted, lost, kept):
        write(storage, topic)
    if not is_running:
        node.close()
    catalog.topics.delete("purged")
    purge(catalog)
    catalog.topics.delete("deleted")
    forget(catalog_url, lost)
    storage = storage if is_running else node.open()
    storage.sync_topics()
    assert node.names() == ["deleted-0.*-stray", "kept-0", "lost-0.*-stray", "purged-0.*-delete"]
    metrics = storage.manager.metrics()
    assert (metrics.stray_logs, metrics.logs_set_aside, metrics.logs_waiting_for_deletion) == (1, 1, 1)
    (stray,) = node.directory.glob("lost-0.*-stray")
    assert (stray / "00000000000000000000.log").stat().st_size > 0


def test_a_lost_topic_of_an_open_log_is_created_again(node: Node, catalog: Catalog, catalog_url: str) -> None:
    """It gets its settings and partitions, and partitions that were added before are there again, too."""
    storage = node.open()
    lost, larger = (create(catalog, name) for name in ("lost", "larger"))
    more = catalog.topics.add_partitions("larger", 2)
    for topic in (lost, larger):
        write(storage, topic)
    storage.manager.get_or_create("larger", more.topic_id, 1, log_config_of(more.config)).append_as_leader(
        batch(0, 1), 0
    )
    storage.sync_topics()
    forget(catalog_url, lost)
    with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
        connection.execute("DELETE FROM partitions WHERE partition = 1")
        connection.execute("UPDATE topics SET partition_count = 1")
    catalog.incarnations.declare_restore("a test")
    storage.sync_topics()
    assert catalog.topics.list() == [more, lost]
    assert [len(catalog.topics.partitions(topic.topic_id)) for topic in (more, lost)] == [2, 1]
    assert node.names() == ["larger-0", "larger-1", "lost-0"]


def lose_creation(node: Node, catalog_url: str, topic: Topic) -> None:
    """Let a failover lose the creation of a topic."""
    forget(catalog_url, topic)
    node.catalog.incarnations.declare_restore("a test")


def test_a_topic_that_a_failover_loses_during_a_sweep_is_created_again(
    node: Node, catalog: Catalog, catalog_url: str
) -> None:
    """The sweep has read the topic in the epoch before, and ends in the new one."""
    topics = RacingTopics(catalog)
    storage, topic = node.open(topics), create(catalog)
    write(storage, topic)

    def fail_over() -> None:
        topics.then = lambda: None
        lose_creation(node, catalog_url, topic)

    topics.then = fail_over
    for _ in range(2):
        storage.sync_topics()
    assert catalog.topics.list() == [topic]
    assert node.names() == ["rock-0"]


def test_a_topic_that_a_failover_loses_during_the_start_is_created_again(
    node: Node, catalog: Catalog, catalog_url: str
) -> None:
    """The start may take long, because it recovers the logs."""
    topic = create(catalog)
    write(node.open(), topic)
    node.close()
    storage = node.open()
    lose_creation(node, catalog_url, topic)
    storage.sync_topics()
    assert catalog.topics.list() == [topic]
    assert node.names() == ["rock-0"]


def test_partitions_that_another_agent_adds_again_during_a_sweep_keep_their_logs(
    node: Node, catalog: Catalog, catalog_url: str
) -> None:
    """Both agents notice that the catalog has lost the partition, and the other one is faster."""
    topics = RacingTopics(catalog)
    storage, topic = node.open(topics), create(catalog)
    more = catalog.topics.add_partitions("rock", 2)
    storage.manager.get_or_create("rock", topic.topic_id, 1, log_config_of(topic.config)).append_as_leader(
        batch(0, 1), 0
    )
    storage.sync_topics()
    with psycopg.connect(catalog_url, options="-c search_path=siltstone") as connection:
        connection.execute("DELETE FROM partitions WHERE partition = 1")
        connection.execute("UPDATE topics SET partition_count = 1")
    epochs = {topic.topic_id: catalog.incarnations.current().epoch}
    catalog.incarnations.declare_restore("a test")

    def restore() -> None:
        topics.then = lambda: None
        catalog.topics.lost.restore_local([more], epochs)

    topics.then = restore
    storage.sync_topics()
    assert catalog.topics.list() == [more]
    assert node.names() == ["rock-1"]


def test_a_node_leads_the_partitions_of_the_topic_that_a_sweep_creates_again(
    node: Node, catalog: Catalog, catalog_url: str
) -> None:
    """Otherwise the next request could assign them to a node without their records."""
    storage, topic = node.open(), create(catalog)
    lead(node, storage, topic)
    write(storage, topic)
    storage.sync_topics()
    lose_creation(node, catalog_url, topic)
    storage.sync_topics()
    (directory_id,) = storage.manager.directory_ids
    leader = catalog.local_leaders.of_topic(topic.topic_id)[0]
    assert (leader.node_id, leader.directory_id) == (1, directory_id)


@pytest.mark.parametrize("restarts", [False, True])
def test_a_node_leads_the_partition_of_its_log_under_the_free_name_of_a_lost_topic(
    node: Node, catalog: Catalog, catalog_url: str, *, restarts: bool
) -> None:
    """Another agent with a log of the topic has created it again, and a newer topic has the name.

    The log waits under the old name before this node leads its partition.
    """
    storage, topic = node.open(), create(catalog)
    lead(node, storage, topic)
    write(storage, topic)
    epochs = {topic.topic_id: catalog.incarnations.current().epoch}
    if restarts:
        node.close()
    lose_creation(node, catalog_url, topic)
    create(catalog)
    ((restored),) = catalog.topics.lost.restore_local([topic], epochs)
    if restarts:
        storage = node.open()
    storage.sync_topics()
    assert catalog.local_leaders.of_topic(topic.topic_id)[0].node_id == 1
    assert node.names() == [f"{restored.name}-0"]
    assert restored.name != "rock"


def test_a_log_that_another_node_leads_waits(node: Node, catalog: Catalog, catalog_url: str) -> None:
    """It is reported once."""
    storage, topic = node.open(), create(catalog)
    lead(node, storage, topic)
    write(storage, topic)
    catalog.topics.delete("rock")
    storage.sync_topics()
    catalog.topics.deleted.undelete("rock")
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.local_leaders SET node_id = 2")
    with capture_logs() as logs:
        for _ in range(2):
            storage.sync_topics()
    assert [each["leader"] for each in logs if "another agent leads" in each["event"]] == [2]
    assert node.names() == ["rock-0.*-stray"]


def test_a_topic_that_vanishes_without_a_failover_stays_away(
    node: Node, catalog: Catalog, catalog_url: str
) -> None:
    """An earlier release removes the row of a deleted topic. Its log is kept."""
    storage, topic = node.open(), create(catalog)
    write(storage, topic)
    storage.sync_topics()
    forget(catalog_url, topic)
    storage.sync_topics()
    assert catalog.topics.list() == []
    assert node.names() == ["rock-0.*-stray"]


def test_the_topic_of_an_empty_log_is_not_created_again(
    node: Node, catalog: Catalog, catalog_url: str
) -> None:
    """As for object topics: no record was acknowledged."""
    storage, topic = node.open(), create(catalog)
    storage.manager.get_or_create(topic.name, topic.topic_id, 0, log_config_of(topic.config))
    storage.sync_topics()
    forget(catalog_url, topic)
    catalog.incarnations.declare_restore("a test")
    storage.sync_topics()
    assert catalog.topics.list() == []


def test_a_copy_of_the_tail_is_deleted_when_its_topic_has_another_name(node: Node, catalog: Catalog) -> None:
    """The object store has its records, so a stray would only take space."""
    storage, topic = node.open(), create(catalog, "sand", "object")
    write(storage, topic)
    catalog.topics.delete("sand")
    catalog.topics.deleted.undelete("sand", new_name="gravel")
    storage.sync_topics()
    assert node.names() == ["sand-0.*-delete"]


def test_a_newer_log_of_the_same_name_stays(node: Node, catalog: Catalog) -> None:
    """A sweep removes the log that it has listed, not the log that has its name."""
    topics = RacingTopics(catalog)
    storage, first = node.open(topics), create(catalog)
    write(storage, first)
    catalog.topics.delete("rock")

    def replace() -> None:
        topics.then = lambda: None
        storage.sync_topics()
        write(storage, create(catalog), 5)

    topics.then = replace
    storage.sync_topics()
    log = storage.manager.get(ROCK)
    assert log is not None
    assert log.log_end_offset == 5
    assert node.names() == ["rock-0", "rock-0.*-stray"]


def test_a_stale_list_of_topics_sets_nothing_aside(node: Node, catalog: Catalog) -> None:
    """A server that has been replaced may not know the topic yet; only a transaction that writes decides."""

    class Stale:
        def list(self) -> Sequence[Topic]:
            return []

        def by_ids(self, topic_ids: Sequence[UUID]) -> Sequence[Topic]:
            del topic_ids
            return []

    storage = node.open(Stale())
    write(storage, create(catalog))
    storage.sync_topics()
    assert node.names() == ["rock-0"]


@pytest.mark.parametrize("name", ["rock", "basalt"])
@pytest.mark.parametrize("restarts", ["never", "before the undeletion", "after it", "before the deletion"])
def test_the_log_of_an_undeleted_topic_is_as_it_was(
    node: Node, catalog: Catalog, restarts: str, name: str
) -> None:
    """Records, log start, producers and epochs; also if the agent was away, or the topic has a new name."""
    storage, topic, now_ms = node.open(), create(catalog), SystemClock().now_ms()
    log = storage.manager.get_or_create("rock", topic.topic_id, 0, log_config_of(topic.config))
    lead(node, storage, topic)
    for sequence in (0, 3):
        log.append_as_leader(batch(0, 3, timestamp=now_ms, producer=(7, 1, sequence)), 4)
        log.update_high_watermark(log.log_end_offset)
    storage.manager.delete_records(ROCK, 2)
    if restarts == "before the deletion":
        node.close()
    catalog.topics.delete("rock")
    if restarts != "before the deletion":
        storage.sync_topics()
        assert node.names() == ["rock-0.*-stray"]
        assert storage.manager.logs() == []
    if restarts == "before the undeletion":
        node.close()
        storage = node.open()
        assert (storage.manager.metrics().stray_logs, storage.manager.metrics().logs_set_aside) == (0, 1)
    elif restarts == "after it":
        node.close()
    catalog.topics.deleted.undelete("rock", new_name=name)
    if restarts in {"after it", "before the deletion"}:
        storage = node.open()
    storage.sync_topics()
    assert node.names() == [f"{name}-0"]
    found = storage.manager.get(TopicPartition(name, 0))
    assert found is not None
    assert (found.log_start_offset, found.high_watermark, found.log_end_offset) == (2, 6, 6)
    assert offsets_of(found.read(2, 10_000).data)[-1] == 5
    assert [each.epoch for each in found.leader_epochs] == [4]
    again = found.append_as_leader(batch(0, 3, timestamp=now_ms, producer=(7, 1, 3)), 5)
    assert (again.is_duplicate, again.first_offset) == (True, 3)
    node.close()
    (found,) = node.open().manager.logs()
    assert found.log_start_offset == 2, "the checkpoint has it, not only the mark of a log that waits"
    assert not [*found.directory.glob("set-aside*")]


def test_a_log_waits_until_the_catalog_confirms_that_its_topic_cannot_be_undeleted(
    node: Node, catalog: Catalog
) -> None:
    """Not the clock of the agent decides, also after a restart."""
    storage, topic = node.open(), create(catalog)
    write(storage, topic)
    lead(node, storage, topic)
    catalog.topics.delete("rock")
    purge(catalog, delay_ms=3_600_000)
    for _ in range(2):
        storage.sync_topics()
        assert node.names() == ["rock-0.*-stray"]
        node.close()
        storage = node.open()
    purge(catalog)
    storage.sync_topics()
    assert node.names() == ["rock-0.*-delete"]
    assert storage.manager.metrics().logs_set_aside == 0


def lose_undeletion(
    node: Node, catalog_url: str, storage: LocalStorage, topic: Topic, leader_epoch: int
) -> None:
    """Let a failover lose the undeletion of a topic that was deleted in a leader epoch."""
    node.catalog.topics.delete(topic.name)
    with psycopg.connect(catalog_url) as connection:
        connection.execute(
            "UPDATE siltstone.deleted_partitions SET state = jsonb_set(state, '{local_leader,1}', %s)",
            (str(leader_epoch),),
        )
    node.catalog.incarnations.declare_restore("a test")
    storage.sync_topics()


@pytest.mark.parametrize("restarts", [False, True])
def test_a_topic_whose_undeletion_was_lost_comes_back_if_its_log_was_written_since(
    node: Node, catalog: Catalog, catalog_url: str, *, restarts: bool
) -> None:
    """It goes on in a leader epoch that the lost history has not used."""
    storage, topic = node.open(), create(catalog)
    partition = lead(node, storage, topic)
    write(storage, topic)
    before = catalog.local_leaders.of_topic(topic.topic_id)[0].leader_epoch
    catalog.topics.delete("rock")
    storage.sync_topics()
    catalog.topics.deleted.undelete("rock")
    storage.sync_topics()
    lost_epochs = catalog.local_leaders.begin_epochs(1)
    (log,) = storage.manager.logs()
    log.append_as_leader(batch(0, 2), lost_epochs[partition])
    log.update_high_watermark(log.log_end_offset)
    if restarts:
        node.close()
        catalog.topics.delete("rock")
        storage = node.open()
        catalog.topics.deleted.undelete("rock")
    with capture_logs() as logs:
        lose_undeletion(node, catalog_url, storage, topic, before)
    assert [each["topic"] for each in logs if "undeleted again" in each["event"]] == ["rock"]
    storage.sync_topics()
    (log,) = storage.manager.logs()
    assert (log.topic_partition, log.log_end_offset, log.high_watermark) == (ROCK, 5, 5)
    assert catalog.local_leaders.of_topic(topic.topic_id)[0].leader_epoch > lost_epochs[partition]


def test_a_log_that_was_not_written_since_a_lost_undeletion_waits(
    node: Node, catalog: Catalog, catalog_url: str
) -> None:
    """The agent ends in the state of the catalog, and the operator can undelete the topic again."""
    storage, topic = node.open(), create(catalog)
    lead(node, storage, topic)
    write(storage, topic)
    before = catalog.local_leaders.of_topic(topic.topic_id)[0].leader_epoch
    catalog.topics.delete("rock")
    storage.sync_topics()
    catalog.topics.deleted.undelete("rock")
    storage.sync_topics()
    lose_undeletion(node, catalog_url, storage, topic, before)
    purge(catalog, delay_ms=3_600_000)
    storage.sync_topics()
    assert node.names() == ["rock-0.*-stray"]
    assert catalog.topics.deleted.undelete("rock") == topic
    storage.sync_topics()
    (log,) = storage.manager.logs()
    assert log.log_end_offset == 3


def test_a_topic_that_is_deleted_after_a_failover_stays_deleted(node: Node, catalog: Catalog) -> None:
    """The log was written in the history before, in which its topic existed, too."""
    storage, topic = node.open(), create(catalog)
    partition = lead(node, storage, topic)
    log = storage.manager.get_or_create("rock", topic.topic_id, 0, log_config_of(topic.config))
    log.append_as_leader(batch(0, 2), catalog.local_leaders.begin_epochs(1)[partition])
    catalog.incarnations.declare_restore("a test")
    catalog.topics.delete("rock")
    for _ in range(2):
        storage.sync_topics()
        catalog.incarnations.declare_restore("another test")
    assert node.names() == ["rock-0.*-stray"]
    assert catalog.topics.list() == []


def test_a_new_topic_of_the_name_has_a_log_of_its_own(node: Node, catalog: Catalog) -> None:
    """The old one comes back under another name, or after the new one was deleted."""
    storage, first = node.open(), create(catalog)
    write(storage, first, 3)
    lead(node, storage, first)
    catalog.topics.delete("rock")
    storage.sync_topics()
    second = create(catalog)
    write(storage, second, 5)
    lead(node, storage, second)
    storage.sync_topics()
    assert node.names() == ["rock-0", "rock-0.*-stray"]
    catalog.topics.delete("rock")
    catalog.topics.deleted.undelete("rock", topic_id=first.topic_id)
    storage.sync_topics()
    log = storage.manager.get(ROCK)
    assert log is not None
    assert (log.topic_id, log.log_end_offset) == (first.topic_id, 3)
    catalog.topics.deleted.undelete("rock", new_name="basalt")
    storage.sync_topics()
    log = storage.manager.get(TopicPartition("basalt", 0))
    assert log is not None
    assert (log.topic_id, log.log_end_offset) == (second.topic_id, 5)


def test_a_log_that_an_operator_has_removed_is_not_missed(node: Node, catalog: Catalog) -> None:
    """The disk is not taken for a failed one, whether the topic is purged or comes back."""
    storage = node.open()
    for name in ("rock", "sand"):
        topic = create(catalog, name)
        write(storage, topic)
        lead(node, storage, topic)
        catalog.topics.delete(name)
    storage.sync_topics()
    for path in node.directory.glob("*-stray"):
        shutil.rmtree(path)
    catalog.topics.deleted.undelete("sand")
    purge(catalog)
    storage.sync_topics()
    assert node.names() == []
    assert storage.manager.metrics().logs_set_aside == 0
    assert storage.manager.offline_directories == []
