"""Local topics that are deleted and undeleted while clients use them, with real agents."""

from __future__ import annotations

import shutil
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from confluent_kafka import Producer

from catalog.model import PartitionId
from local_tier.errors import LogDirectoryOfflineError
from local_tier.files.file_system import RealFileSystem
from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, consume, produce
from tests.agent.kafka.waiting import until
from tests.agent.local_topics.moves.test_moves import alter
from tests.agent.local_topics.transactions.test_transaction_races import Table
from tests.agent.local_topics.transactions.test_transactions import read, run, transactional, write
from tests.local_tier.crash.disks import Disks
from tests.local_tier.hanging_disk import HangingDisk
from tests.local_tier.steps import SteppedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from agent.local_topics.disks.storage import LocalStorage
    from agent.local_topics.local_topics import LocalTopics
    from catalog.open import Catalog
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration
FOREVER = float("inf")


def storage_of(broker: BrokerThread) -> LocalStorage:
    storage = broker.agent.data.local_logs.storage
    assert storage is not None
    return storage


def topics_of(broker: BrokerThread) -> LocalTopics:
    local = broker.agent.data.local_logs.reader.local_topics
    assert local is not None
    return local


@pytest.fixture
def syncs_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only the test compare the logs with the topics of the catalog."""
    monkeypatch.setattr("agent.local_topics.disks.storage.TOPIC_SYNC_MS", 1 << 40)


def names(*directories: Path) -> list[str]:
    """Return the partition directories, without the random part of their names."""
    found = (path.name for each in directories for path in each.glob("*-*") if path.is_dir())
    return sorted(f"{name[:6]}*-{name.rpartition('-')[2]}" if "." in name else name for name in found)


@pytest.mark.parametrize("restarts", [False, True])
def test_clients_continue_after_an_undeletion(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path, *, restarts: bool
) -> None:
    """The first request opens the log again. A producer goes on with its sequence."""
    disk = tmp_path / "disk"
    broker = start_broker(local_directories=(disk,))
    topic = broker.create_topic("rock", 1, storage_mode="local")
    producer = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
    producer.produce("rock", b"a", partition=0)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    before = catalog.local_leaders.of_topic(topic.topic_id)[0]
    catalog.topics.delete("rock")
    storage_of(broker).sync_topics()
    assert names(disk) == ["rock-0*-stray"]
    if restarts:
        broker.stop()
    catalog.topics.deleted.undelete("rock")
    if restarts:
        broker = start_broker(local_directories=(disk,))
        assert names(disk) == ["rock-0"]
        produce(broker.address, "rock", [(None, b"b")], enable_idempotence=True)
    else:
        producer.produce("rock", b"b", partition=0)
        assert producer.flush(TIMEOUT_SECONDS) == 0
    assert [each.value() for each in consume(broker.address, "rock", 2)] == [b"a", b"b"]
    after = catalog.local_leaders.of_topic(topic.topic_id)[0]
    assert (after.node_id, after.directory_id) == (before.node_id, before.directory_id)
    assert after.leader_epoch > before.leader_epoch


def test_an_agent_knows_the_topic_of_a_log_that_a_request_has_opened_again(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path, syncs_by_hand: None
) -> None:
    """A failover may lose the topic before the next sweep."""
    del syncs_by_hand
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"a")])
    known = storage_of(broker).known_topics
    assert known.ids() == {topic.topic_id}
    catalog.topics.delete("rock")
    storage_of(broker).sync_topics()
    assert known.ids() == set()
    catalog.topics.deleted.undelete("rock")
    produce(broker.address, "rock", [(None, b"b")])
    assert known.ids() == {topic.topic_id}


def test_a_request_does_not_wait_for_the_next_sweep_if_the_topic_has_another_name(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path, syncs_by_hand: None
) -> None:
    """The topic is back so soon that its log is still open under the old name."""
    del syncs_by_hand
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 2, storage_mode="local")
    for partition in (0, 1):
        produce(broker.address, "rock", [(None, b"a")], partition=partition)
    catalog.topics.delete("rock")
    undeleted = catalog.topics.deleted.undelete("rock", new_name="basalt")
    with pytest.raises(LogDirectoryOfflineError):
        broker.run(topics_of(broker).state(undeleted, 0))
    until(lambda: names(tmp_path / "disk") == ["basalt-0", "basalt-1"])
    produce(broker.address, "basalt", [(None, b"b")])
    assert [each.value() for each in consume(broker.address, "basalt", 2)] == [b"a", b"b"]
    with pytest.raises(LogDirectoryOfflineError):  # a request that knows the old name renames nothing
        broker.run(topics_of(broker).state(topic, 0))
    assert names(tmp_path / "disk") == ["basalt-0", "basalt-1"]


def test_no_request_opens_the_log_of_a_deleted_topic(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path
) -> None:
    """A request may know the topic and its leader from before the deletion."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"a")])
    local = topics_of(broker)
    leaders = broker.run(local._leaders.of(topic, ()))
    catalog.topics.delete("rock")
    storage_of(broker).sync_topics()
    local._leaders._cache[topic.topic_id] = FOREVER, dict(leaders)
    with pytest.raises(Exception, match="no live agent"):
        broker.run(local.state(topic, 0))
    assert names(tmp_path / "disk") == ["rock-0*-stray"]


def test_transactions_end_as_they_were_decided_before_the_deletion(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path, syncs_by_hand: None
) -> None:
    """A committed one whose marker was pending is committed, and one that was open is aborted.

    The leader checks the transactions in the log while it does not know of the deletion yet.
    """
    del syncs_by_hand
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 1, storage_mode="local")
    run(transactional(broker.address, "first"), [b"a"], ["rock"], commits=True)
    committed, open_one = transactional(broker.address, "second"), transactional(broker.address, "third")
    markers = broker.agent.data.local_logs.markers
    assert markers is not None
    table = markers._table
    markers._table = Table(catalog, finds_markers=False)
    for producer, value in ((committed, b"b"), (open_one, b"x")):
        producer.begin_transaction()
        write(producer, [value], ["rock"])
    committed.commit_transaction(TIMEOUT_SECONDS)
    known_leaders, known_topics = topics_of(broker)._leaders._cache, markers._directory._by_id
    leaders = broker.run(topics_of(broker)._leaders.of(topic, ()))
    catalog.topics.delete("rock")
    known_leaders[topic.topic_id], known_topics[topic.topic_id] = (FOREVER, dict(leaders)), (FOREVER, topic)
    broker.run(markers._check_open())
    assert markers.aborted_unknown == 0
    del known_leaders[topic.topic_id], known_topics[topic.topic_id]
    storage_of(broker).sync_topics()
    markers._table = table
    catalog.topics.deleted.undelete("rock")
    produce(broker.address, "rock", [(None, b"c")])
    assert read(broker.address, "rock", 3) == [b"a", b"b", b"c"]
    until(lambda: not markers._verifier.open_transactions())
    run(transactional(broker.address, "third"), [b"d"], ["rock"], commits=True)
    assert read(broker.address, "rock", 4)[3:] == [b"d"]


def test_the_deletion_ends_a_move_and_the_log_comes_back(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path
) -> None:
    """The catalog may have recorded the target just before: the log is opened where it is."""
    disks = (tmp_path / "one", tmp_path / "two")
    broker = start_broker(local_directories=disks)
    topic = broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"a")])
    manager = storage_of(broker).manager
    (log,) = manager.logs()
    source = log.directory.parent
    (target,) = {*disks} - {source}
    partition = PartitionId(topic.topic_id, 0)
    ids = [manager.directory_id(each) for each in (source, target)]
    node_id = broker.agent.data.local_logs.node_id
    manager.moves.create_future_log(log.topic_partition, target)
    assert ids[0] is not None
    assert ids[1] is not None
    catalog.local_leaders.assign(node_id, {partition: ids[1]}, source=ids[0])
    catalog.topics.delete("rock")
    storage_of(broker).sync_topics()
    assert names(*disks) == ["rock-0*-delete", "rock-0*-stray"]
    catalog.topics.deleted.undelete("rock")
    produce(broker.address, "rock", [(None, b"b")])
    assert [each.value() for each in consume(broker.address, "rock", 2)] == [b"a", b"b"]
    recorded = partial(catalog.local_leaders.of_topic, topic.topic_id)
    assert recorded()[0].directory_id == ids[0]
    alter(broker, target)
    until(lambda: recorded()[0].directory_id == ids[1])
    assert [each.value() for each in consume(broker.address, "rock", 2)] == [b"a", b"b"]


def test_a_partition_whose_log_is_gone_is_offline_after_an_undeletion(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path
) -> None:
    """An agent of an earlier release has deleted it. The other partitions are back."""
    disk = tmp_path / "disk"
    broker = start_broker(local_directories=(disk,))
    topic = broker.create_topic("rock", 2, storage_mode="local")
    for partition in (0, 1):
        produce(broker.address, "rock", [(None, b"a")], partition=partition)
    catalog.topics.delete("rock")
    storage_of(broker).sync_topics()
    (gone,) = disk.glob("rock-0.*-stray")
    shutil.rmtree(gone)
    catalog.topics.deleted.undelete("rock")
    assert [each.value() for each in consume(broker.address, "rock", 1, partition=1)] == [b"a"]
    with pytest.raises(LogDirectoryOfflineError):
        broker.run(topics_of(broker).state(topic, 0))
    assert names(disk) == ["rock-1"]


def test_a_log_that_must_not_be_opened_costs_no_look_up(
    start_broker: Callable[..., BrokerThread],
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    syncs_by_hand: None,
) -> None:
    """The recorded directory is away, and clients repeat their requests until it is back."""
    del syncs_by_hand
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"a")])
    catalog.topics.delete("rock")
    storage_of(broker).sync_topics()
    catalog.topics.deleted.undelete("rock")
    (leader,) = catalog.local_leaders.of_topic(topic.topic_id).values()
    assert leader.directory_id is not None
    away = {PartitionId(topic.topic_id, 0): UUID(int=7)}
    catalog.local_leaders.assign(leader.node_id, away, source=leader.directory_id)
    local = topics_of(broker)
    local._leaders._cache.clear()
    monkeypatch.setattr(local._leaders, "refresh", None)
    with pytest.raises(LogDirectoryOfflineError, match="not open"):
        broker.run(local.state(topic, 0))
    assert names(tmp_path / "disk") == ["rock-0*-stray"]


def test_a_disk_that_hangs_holds_up_only_its_own_logs(
    start_broker: Callable[..., BrokerThread],
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    syncs_by_hand: None,
) -> None:
    """A request for a log that cannot be opened again in time fails, so it does not hold up the others."""
    del syncs_by_hand
    disks = (tmp_path / "one", tmp_path / "two")
    disk, real = HangingDisk(), RealFileSystem()
    files = Disks({disks[0]: SteppedFileSystem(real, disk), disks[1]: real})
    monkeypatch.setattr("agent.local_topics.disks.storage.RealFileSystem", lambda: files)
    broker = start_broker(local_directories=disks)
    topic = broker.create_topic("rock", 2, storage_mode="local")
    for partition in (0, 1):
        produce(broker.address, "rock", [(None, b"a")], partition=partition)
    (hung,) = [each for each in (0, 1) if (disks[0] / f"rock-{each}").exists()]
    catalog.topics.delete("rock")
    storage_of(broker).sync_topics()
    catalog.topics.deleted.undelete("rock")
    local = topics_of(broker)
    disk.hang()
    try:
        for _ in range(2):
            with pytest.raises(LogDirectoryOfflineError):
                broker.run(local.state(topic, hung))
        assert broker.run(local.state(topic, 1 - hung)).log_end_offset == 1
    finally:
        disk.work()
    until((disks[0] / f"rock-{hung}").exists)
    assert [each.value() for each in consume(broker.address, "rock", 1, partition=hung)] == [b"a"]


def test_transactions_of_a_log_that_is_opened_again_while_the_agent_starts_are_watched(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """The catalog has listed the partitions of the agent before the undeletion."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 1, storage_mode="local")
    producer = transactional(broker.address)
    producer.begin_transaction()
    write(producer, [b"a"], ["rock"])
    markers = broker.agent.data.local_logs.markers
    assert markers is not None
    partition = PartitionId(topic.topic_id, 0)
    reopened = partial(markers.reopened, partition)

    class BeforeTheUndeletion:
        def directories_of(self, node_id: int) -> Mapping[PartitionId, UUID | None]:
            del node_id
            broker.agent._loop.call_soon_threadsafe(reopened)
            return {}

    async def start() -> None:
        markers._led, markers._knows_led = BeforeTheUndeletion(), False
        markers._verifier._entries.clear()
        await markers._find_open()

    broker.run(start())
    until(lambda: [key[0] for key in markers._verifier.open_transactions()] == [partition])
