"""Topics with storage.mode=local, tested by real clients."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import UserDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

import httpx
import orjson
import psycopg
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from structlog.testing import capture_logs
from typing_extensions import override

from agent.cluster.errors import NotLeaderError
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.local_tier_settings import LocalTierSettings
from catalog.model import PartitionId
from catalog.topics.local_leaders import UNASSIGNED, LocalLeader
from local_tier.files.checkpoint_files import OffsetCheckpointFile
from local_tier.files.file_names import LOG_START_OFFSET_CHECKPOINT
from local_tier.files.file_system import RealFileSystem
from object_format.record_batch.records import NO_PRODUCER, encode_batch
from object_store.accounting import Purpose
from siltstone.cli.main import cli
from siltstone.kafka_client.local_offsets import fetch_local_offsets
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, consume, produce
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.agent.kafka.wire import Wire
from tests.end_to_end.processes import as_url
from tests.local_tier.crash.disks import Disks
from tests.local_tier.hanging_disk import HangingDisk
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from catalog.open import Catalog
    from tests.agent.faulty_store import FaultyStore

pytestmark = pytest.mark.integration


def _values(address: str, count: int, *, partition: int = 0, offset: int = -2) -> list[bytes | str | None]:
    return [
        message.value() for message in consume(address, "rock", count, partition=partition, offset=offset)
    ]


@pytest.mark.parametrize("flush_messages", ["1", "9223372036854775807"])
def test_records_are_written_and_read_without_the_object_store(
    start_broker: Callable[..., BrokerThread], store: FaultyStore, tmp_path: Path, flush_messages: str
) -> None:
    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 2, storage_mode="local", flush_messages=flush_messages)
    for partition in (0, 1):
        produce(broker.address, "rock", [(None, b"%d" % n) for n in range(50)], partition=partition)
    for partition in (0, 1):
        assert _values(broker.address, 50, partition=partition) == [b"%d" % n for n in range(50)]
    counts = store.counts.snapshot()
    probes = counts.of(purpose=Purpose.CHECK).requests  # an idle agent probes the store
    assert counts.of().requests == probes


def test_records_survive_a_restart(start_broker: Callable[..., BrokerThread], tmp_path: Path) -> None:
    disk = (tmp_path / "disk",)
    broker = start_broker(local_directories=disk)
    broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"a"), (None, b"b")], enable_idempotence=True)
    node = broker.agent.data.local_logs.node_id
    broker.stop()
    again = start_broker(local_directories=disk)
    assert again.agent.data.local_logs.node_id == node
    produce(again.address, "rock", [(None, b"c")])
    assert _values(again.address, 3) == [b"a", b"b", b"c"]


def test_each_partition_is_served_by_the_agent_that_has_it(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path
) -> None:
    brokers = [start_broker(local_directories=(tmp_path / name,)) for name in ("one", "two")]
    admin = AdminClient({"bootstrap.servers": brokers[0].address})
    until(lambda: len(admin.list_topics(timeout=TIMEOUT_SECONDS).brokers) == 2)
    topic = brokers[0].create_topic("rock", 8, storage_mode="local")
    for partition in range(8):
        produce(brokers[0].address, "rock", [(None, b"%d" % partition)], partition=partition)
    for partition in range(8):
        assert _values(brokers[1].address, 1, partition=partition) == [b"%d" % partition]
    leaders = {leader.node_id for leader in catalog.local_leaders.of_topic(topic.topic_id).values()}
    assert leaders == {broker.agent.data.local_logs.node_id for broker in brokers}


def test_the_leader_of_each_partition_reports_the_lag_of_groups(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    groups = replace(QUICK_GROUPS, consumer_lag_interval_ms=50)
    brokers = [start_broker(local_directories=(tmp_path / name,), groups=groups) for name in ("one", "two")]
    admin = AdminClient({"bootstrap.servers": brokers[0].address})
    until(lambda: len(admin.list_topics(timeout=TIMEOUT_SECONDS).brokers) == 2)
    brokers[0].create_topic("rock", 8, storage_mode="local")
    consumer = Consumer({"bootstrap.servers": brokers[0].address, "group.id": "g"})
    for partition in range(8):
        produce(brokers[0].address, "rock", [(None, b"x")] * 3, partition=partition)
        consumer.commit(offsets=[TopicPartition("rock", partition, 1)], asynchronous=False)
    consumer.close()

    def reported() -> list[list[str]]:
        """Return the lines of each agent."""
        texts = [httpx.get(f"http://{each.http_address}/metrics", trust_env=False).text for each in brokers]
        return [
            [line for line in text.splitlines() if line.startswith("kafka_consumergroup_lag{")]
            for text in texts
        ]

    until(lambda: sum(map(len, reported())) == 8)
    of_one, of_two = reported()
    assert of_one
    assert of_two
    assert sorted(of_one + of_two) == [
        f'kafka_consumergroup_lag{{consumergroup="g",partition="{number}",topic="rock"}} 2.0'
        for number in range(8)
    ]


class _CountedLeaders(UserDict[int, LocalLeader]):
    """The leaders of a topic, and how many of them were visited."""

    visited = 0

    @override
    def __iter__(self) -> Iterator[int]:
        for each in super().__iter__():
            self.visited += 1
            yield each


def test_a_read_does_not_visit_the_leaders_of_all_other_partitions(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """A fetch of thousands of partitions would keep the event loop busy for seconds."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 8, storage_mode="local")
    local = broker.agent.data.local_logs.reader.local_topics
    assert local is not None
    for _ in range(2):  # the first look creates the log
        for partition in range(8):
            assert broker.run(local.state(topic, partition)).high_watermark == 0
    _, found = local._leaders._cache[topic.topic_id]
    leaders = _CountedLeaders(found)
    leaders.visited = 0
    local._leaders._cache[topic.topic_id] = float("inf"), leaders
    for partition in range(8):
        assert broker.run(local.state(topic, partition)).high_watermark == 0
    assert leaders.visited == 0


def test_new_logs_read_the_leaders_of_their_topic_once(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each new log read those of all partitions, 10,000 partitions would read 100 million rows."""
    monkeypatch.setattr("agent.local_topics.leaders._CACHE_SECONDS", float("inf"))
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 8, storage_mode="local")
    local = broker.agent.data.local_logs.reader.local_topics
    assert local is not None
    before = broker.catalog_calls()["local_leaders.of_topics"]
    for _ in range(2):
        for partition in range(8):
            assert broker.run(local.state(topic, partition)).high_watermark == 0
    after = broker.catalog_calls()["local_leaders.of_topics"]
    assert after - before == 2, "before and after the agent has claimed the partitions"
    _, known = local._leaders._cache[topic.topic_id]
    assert known == broker.catalog.local_leaders.of_topic(topic.topic_id)


def test_requests_at_the_same_time_share_a_lookup_of_leaders(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """Once a second, each of a thousand clients would otherwise read the leaders of all partitions."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 8, storage_mode="local")
    local = broker.agent.data.local_logs.reader.local_topics
    assert local is not None
    leaders = local._leaders
    broker.run(local.state(topic, 0))

    async def look_up_again() -> None:
        leaders._cache.clear()
        found = await asyncio.gather(*(leaders.of(topic, ()) for _ in range(20)))
        assert all(len(each) == 8 for each in found)

    before = broker.catalog_calls()["local_leaders.of_topics"]
    broker.run(look_up_again())
    assert broker.catalog_calls()["local_leaders.of_topics"] - before == 1


def test_offsets_by_time_and_at_both_ends_are_those_of_the_log(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"a"), (None, b"b"), (None, b"c")])
    first, _, third = consume(broker.address, "rock", 3)
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "unused"})
    partition = TopicPartition("rock", 0)
    assert consumer.get_watermark_offsets(partition, TIMEOUT_SECONDS) == (0, 3)
    stamps = (0, first.timestamp()[1], third.timestamp()[1] + 1)
    found = [
        consumer.offsets_for_times([TopicPartition("rock", 0, stamp)], TIMEOUT_SECONDS)[0].offset
        for stamp in stamps
    ]
    consumer.close()
    assert found == [0, 0, -1]


def test_records_are_deleted_by_request(start_broker: Callable[..., BrokerThread], tmp_path: Path) -> None:
    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"%d" % n) for n in range(5)])
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.delete_records([TopicPartition("rock", 0, 3)]).values():
        assert future.result(TIMEOUT_SECONDS).low_watermark == 3
    assert _values(broker.address, 2) == [b"3", b"4"]
    starts = OffsetCheckpointFile(RealFileSystem(), tmp_path / "disk" / LOG_START_OFFSET_CHECKPOINT).read()
    assert starts == {("rock", 0): 3}, "the deletion must survive a crash"


def test_one_request_deletes_the_records_of_many_partitions_with_one_write(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has the log starts of all logs. A wrong request for a partition does not fail the others."""
    faults = NoFaults()
    files = SteppedFileSystem(RealFileSystem(), faults)
    monkeypatch.setattr("agent.local_topics.disks.storage.RealFileSystem", lambda: files)
    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 20, storage_mode="local")
    for partition in range(20):
        produce(broker.address, "rock", [(None, b"a"), (None, b"b")], partition=partition)
    wrong = {7: 9, 8: -2}
    wanted = [Struct(partition_index=each, offset=wrong.get(each, 1)) for each in range(20)]
    step = f"write {LOG_START_OFFSET_CHECKPOINT}.tmp"
    faults.steps.clear()
    with Wire(broker.host_and_port) as wire:
        topics = [Struct(name="rock", partitions=wanted)]
        (found,) = wire.ask("delete_records", 2, Struct(topics=topics, timeout=9_000)).topics
    assert faults.steps[step] == 1
    errors = {each.partition_index: each.error_code for each in found.partitions if each.error_code}
    assert errors == dict.fromkeys(wrong, ErrorCode.offset_out_of_range)
    assert [each.low_watermark for each in found.partitions] == [-1 if n in wrong else 1 for n in range(20)]
    starts = OffsetCheckpointFile(RealFileSystem(), tmp_path / "disk" / LOG_START_OFFSET_CHECKPOINT).read()
    assert starts == {("rock", each): 1 for each in range(20) if each not in wrong}
    faults = DiskError(f"write {LOG_START_OFFSET_CHECKPOINT}")
    files.faults = faults
    with Wire(broker.host_and_port) as wire:
        topics = [Struct(name="rock", partitions=[Struct(partition_index=0, offset=2)])]
        (found,) = wire.ask("delete_records", 2, Struct(topics=topics, timeout=9_000)).topics
    assert [each.error_code for each in found.partitions] == [ErrorCode.kafka_storage_error]


def test_describe_shows_the_offsets_of_the_leaders(
    start_broker: Callable[..., BrokerThread],
    catalog_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a live leader the offsets are unknown."""
    monkeypatch.setattr("siltstone.cli.options.configure_logs", lambda _: None)

    def described(*options: str) -> str:
        where = ("--data-dir", str(tmp_path / "data"), "--catalog", as_url(catalog_url))
        result = CliRunner().invoke(cli, ["topics", "describe", "rock", *options, *where])
        assert result.exit_code == 0, result.output
        return result.stdout

    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"%d" % n) for n in range(5)])
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.delete_records([TopicPartition("rock", 0, 2)]).values():
        future.result(TIMEOUT_SECONDS)
    node = broker.agent.data.local_logs.node_id
    expected = {
        "partition": 0,
        "leader": node,
        "log_start_offset": 2,
        "high_watermark": 5,
        "log_end_offset": 5,
    }
    assert orjson.loads(described("--json"))["partition_states"] == [expected]
    broker.stop()
    [state] = orjson.loads(described("--json"))["partition_states"]
    assert (state["leader"], state["log_start_offset"], state["log_end_offset"]) == (node, None, None)
    assert "only the leader of the partition knows it" in described()


def test_log_directories_show_each_partition_once(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """The tail cache is not a replica. Tools that sum up sizes would count it twice."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 1, storage_mode="local")
    broker.create_topic("sand", 1)
    for topic in ("rock", "sand"):
        produce(broker.address, topic, [(None, b"a")])
    broker.run(broker.agent.data.local_logs.tail_cache.idle())
    with Wire(broker.host_and_port) as wire:
        directories = wire.ask("describe_log_dirs", 4, Struct(topics=None)).results
    shown = {each.log_dir: [topic.name for topic in each.topics] for each in directories}
    assert shown == {"/object-store": ["sand"], str(tmp_path / "disk"): ["rock"]}
    store, disk = sorted(directories, key=lambda each: each.log_dir != "/object-store")
    assert (store.total_bytes, store.usable_bytes) == (-1, -1)
    assert disk.total_bytes > disk.usable_bytes > 0


def test_a_failed_directory_is_reported(start_broker: Callable[..., BrokerThread], tmp_path: Path) -> None:
    """The agent starts without it, with the node id of its other directory, whichever is listed first."""
    failed, good = tmp_path / "first", tmp_path / "second"
    before = start_broker(local_directories=(failed, good))
    before.stop()
    shutil.rmtree(failed)
    failed.write_bytes(b"not a directory")
    broker = start_broker(local_directories=(failed, good))
    assert broker.agent.data.local_logs.node_id == before.agent.data.local_logs.node_id
    with Wire(broker.host_and_port) as wire:
        found = wire.ask("describe_log_dirs", 4, Struct(topics=None)).results
    codes = {each.log_dir: each.error_code for each in found}
    offline = ErrorCode.kafka_storage_error
    assert codes == {"/object-store": ErrorCode.none, str(good): ErrorCode.none, str(failed): offline}


def test_each_leader_is_asked_once_for_the_bounds_of_all_its_partitions(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path
) -> None:
    """Several leaders that do not respond therefore take no longer than one."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 8, storage_mode="local")
    for partition in range(0, 8, 2):
        produce(broker.address, "rock", [(None, b"a")], partition=partition)
    asked = broker.agent.metrics.kafka_requests

    def requests() -> float:
        samples = [sample for metric in asked.collect() for sample in metric.samples]
        return sum(each.value for each in samples if each.labels["api"] == "list_offsets")

    before = requests()
    assert [each.log_end_offset for each in fetch_local_offsets(catalog, topic)] == [1, 0] * 4
    assert requests() - before == 2, "one for log start offsets, one for log end offsets"


def test_an_agent_without_disks_reports_no_leader(start_broker: Callable[..., BrokerThread]) -> None:
    broker = start_broker()
    broker.create_topic("rock", 1, storage_mode="local")
    admin = AdminClient({"bootstrap.servers": broker.address})
    partition = admin.list_topics("rock", TIMEOUT_SECONDS).topics["rock"].partitions[0]
    assert partition.leader == -1
    assert partition.error is not None
    assert partition.error.name() == "LEADER_NOT_AVAILABLE"


def test_a_partition_has_no_leader_while_its_agent_is_stopped(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    running = start_broker()
    stopped = start_broker(local_directories=(tmp_path / "disk",))
    stopped.create_topic("rock", 1, storage_mode="local")
    produce(stopped.address, "rock", [(None, b"a")])
    stopped.stop()
    admin = AdminClient({"bootstrap.servers": running.address})
    until(lambda: admin.list_topics("rock", TIMEOUT_SECONDS).topics["rock"].partitions[0].leader == -1)
    start_broker(local_directories=(tmp_path / "disk",))
    assert _values(running.address, 1) == [b"a"]


def test_a_forged_delete_horizon_reaches_no_log(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """Neither in the object store nor on a local disk, whether or not the producer is idempotent."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 1, storage_mode="local", cleanup_policy="compact")
    broker.create_topic("cloud", 1, cleanup_policy="compact")
    for producer in (NO_PRODUCER, (7, 0, 0)):
        forged = bytes(encode_batch([1], [b"k"], [None], delete_horizon_ms=1, producer=producer))
        parts = [Struct(index=0, records=forged)]
        topics = [Struct(name=name, partition_data=parts) for name in ("rock", "cloud")]
        with Wire(broker.host_and_port) as wire:
            response = wire.ask("produce", 9, Struct(acks=-1, timeout=9_000, topic_data=topics))
        codes = [part.error_code for topic in response.responses for part in topic.partition_responses]
        assert codes == [ErrorCode.invalid_record] * 2


def test_a_rejected_record_has_kafkas_error_code(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 1, storage_mode="local", cleanup_policy="compact")
    errors: list[str] = []
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 1})
    producer.produce(
        "rock", value=b"no key", on_delivery=lambda error, _: errors.append(str(error and error.name()))
    )
    producer.produce("rock", value=b"v", key=b"k", partition=0)
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert errors == ["INVALID_RECORD"]


def send(broker: BrokerThread, partition: int) -> tuple[int, int]:
    """Produce one record to a partition; return the error code and the base offset."""
    part = Struct(index=partition, records=bytes(encode_batch([1], [b"k"], [b"v"])))
    topics = [Struct(name="rock", partition_data=[part])]
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("produce", 9, Struct(acks=-1, timeout=9_000, topic_data=topics))
    found = response.responses[0].partition_responses[0]
    return found.error_code, found.base_offset


def fetch_code(broker: BrokerThread, partition: int) -> int:
    """Read the end of a partition; return the error code."""
    wanted = Struct(partition_index=partition, timestamp=-1)
    topics = [Struct(name="rock", partitions=[wanted])]
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("list_offsets", 4, Struct(replica_id=-1, isolation_level=0, topics=topics))
    return int(response.topics[0].partitions[0].error_code)


def partitions_in(disk: Path) -> set[int]:
    """Return the partitions of the topic with a log in a directory."""
    return {int(path.name.removeprefix("rock-")) for path in disk.glob("rock-*")}


@pytest.mark.parametrize("fault", ["unmounted", "failed", "emptied"])
def test_a_partition_is_offline_until_its_disk_is_back(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, fault: str
) -> None:
    """It does not start again at offset 0 on another disk, nor on the same one."""
    disks = (tmp_path / "one", tmp_path / "two")
    broker = start_broker(local_directories=disks)
    broker.create_topic("rock", 4, storage_mode="local")
    for partition in range(4):
        assert send(broker, partition) == (ErrorCode.none, 0)
    here, away = (partitions_in(disk) for disk in disks)
    assert here
    assert away
    broker.stop()
    shutil.copytree(disks[1], tmp_path / "kept")
    shutil.rmtree(disks[1])
    if fault == "failed":
        disks[1].write_bytes(b"not a directory")
    else:
        disks[1].mkdir()
    if fault == "emptied":
        shutil.copy(tmp_path / "kept" / "meta.properties", disks[1])
    for _ in range(2):  # the second start finds the identity that the first has written
        broker = start_broker(local_directories=disks)
        for partition in here:
            assert send(broker, partition)[0] == ErrorCode.none
        for partition in away:
            assert send(broker, partition) == (ErrorCode.kafka_storage_error, -1)
            assert fetch_code(broker, partition) == ErrorCode.kafka_storage_error
        assert all(partitions_in(disk) <= here for disk in disks)
        broker.stop()
    if fault == "failed":
        disks[1].unlink()
    else:
        shutil.rmtree(disks[1])
    (tmp_path / "kept").rename(disks[1])
    broker = start_broker(local_directories=disks)
    for partition in away:
        assert send(broker, partition) == (ErrorCode.none, 1)


def test_a_partition_stays_offline_after_its_disk_failed(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """The agent runs on, and new partitions go to the other disk."""
    disks = (tmp_path / "one", tmp_path / "two")
    broker = start_broker(local_directories=disks)
    broker.create_topic("rock", 2, storage_mode="local", flush_messages="1")
    assert [send(broker, partition) for partition in (0, 1)] == [(ErrorCode.none, 0)] * 2
    (lost,) = partitions_in(disks[0])
    storage = broker.agent.data.local_logs.storage
    assert storage is not None
    storage.manager._failures.report(disks[0], OSError("as the test asked for"))
    until(lambda: send(broker, lost) == (ErrorCode.kafka_storage_error, -1))
    assert send(broker, 1 - lost) == (ErrorCode.none, 1)
    assert partitions_in(disks[1]) == {1 - lost}


def test_partitions_of_an_earlier_release_get_their_directory_at_the_start(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, catalog_url: str, tmp_path: Path
) -> None:
    """That release did not record directories. One partition has a log, another never got one."""
    disks = (tmp_path / "one", tmp_path / "two")
    broker = start_broker(local_directories=disks)
    topic = broker.create_topic("rock", 2, storage_mode="local")
    assert send(broker, 0) == (ErrorCode.none, 0)
    broker.stop()
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.local_leaders SET directory_id = NULL")
    broker = start_broker(local_directories=disks)
    recorded = catalog.local_leaders.of_topic(topic.topic_id)
    assert recorded[0].directory_id not in {None, UNASSIGNED}
    assert recorded[1].directory_id == UNASSIGNED
    assert [send(broker, partition) for partition in (0, 1)] == [(ErrorCode.none, 1), (ErrorCode.none, 0)]
    broker.stop()
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.local_leaders SET directory_id = NULL")
    for disk in disks:
        if not partitions_in(disk) & {1}:
            continue
        shutil.move(disk, tmp_path / "kept")
    broker = start_broker(local_directories=disks)
    assert send(broker, 1) == (ErrorCode.kafka_storage_error, -1), "its log may be on the disk that is away"


@pytest.mark.parametrize("is_claimed", [False, True])
def test_a_partition_whose_leader_a_restore_has_lost_stays_with_its_log(
    start_broker: Callable[..., BrokerThread],
    catalog: Catalog,
    catalog_url: str,
    tmp_path: Path,
    *,
    is_claimed: bool,
) -> None:
    """Another agent may have claimed the partition meanwhile, for a client, and have no log of it."""
    disks = tmp_path / "one", tmp_path / "two"
    holder = start_broker(local_directories=disks[:1])
    topic = holder.create_topic("rock", 1, storage_mode="local")
    produce(holder.address, "rock", [(None, b"a")])
    before = catalog.local_leaders.of_topic(topic.topic_id)[0]
    holder.stop()
    with psycopg.connect(catalog_url) as connection:
        connection.execute("DELETE FROM siltstone.local_leaders")
    other = start_broker(local_directories=disks[1:])
    if is_claimed:
        catalog.local_leaders.claim({PartitionId(topic.topic_id, 0): other.agent.data.local_logs.node_id})
    holder = start_broker(local_directories=disks[:1])
    after = catalog.local_leaders.of_topic(topic.topic_id)[0]
    assert (after.node_id, after.directory_id) == (before.node_id, before.directory_id)
    assert after.leader_epoch > before.leader_epoch
    produce(other.address, "rock", [(None, b"b")])
    assert _values(other.address, 2) == [b"a", b"b"]


def test_an_agent_that_lives_leads_its_logs_again_when_an_epoch_begins(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, catalog_url: str, tmp_path: Path
) -> None:
    """No request is necessary, which could assign the partition to another agent."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 1, storage_mode="local")
    produce(broker.address, "rock", [(None, b"a")])
    before = catalog.local_leaders.of_topic(topic.topic_id)[0]
    with psycopg.connect(catalog_url) as connection:
        connection.execute("DELETE FROM siltstone.local_leaders")
    epoch = catalog.incarnations.declare_restore("a test").epoch
    expected = replace(before, leader_epoch=epoch)
    until(lambda: catalog.local_leaders.of_topic(topic.topic_id).get(0) == expected)


def test_an_agent_forgets_what_it_leads_when_an_epoch_begins(
    start_broker: Callable[..., BrokerThread],
    catalog_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another agent may lead a partition without records soon, whose assignment the failover has lost."""
    monkeypatch.setattr("agent.local_topics.leaders._CACHE_SECONDS", float("inf"))
    broker = start_broker(local_directories=(tmp_path / "disk",))
    topic = broker.create_topic("rock", 1, storage_mode="local")
    local = broker.agent.data.local_logs.reader.local_topics
    assert local is not None
    broker.run(local.state(topic, 0))
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.local_leaders SET node_id = node_id + 1")
    broker.run(local.state(topic, 0))

    async def begin_epoch() -> None:
        epoch = broker.agent.resources.epoch
        epoch.observe(epoch.current + 1)

    broker.run(begin_epoch())
    with pytest.raises(NotLeaderError):
        broker.run(local.state(topic, 0))


def test_a_copy_of_the_tail_on_two_disks_does_not_stop_the_agent(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """The disk with the first copy was away for a while."""
    disks = (tmp_path / "one", tmp_path / "two")
    broker = start_broker(local_directories=disks)
    broker.create_topic("sand", 1)
    produce(broker.address, "sand", [(None, b"a")])
    broker.run(broker.agent.data.local_logs.tail_cache.idle())
    broker.stop()
    holder, other = sorted(disks, key=lambda disk: not (disk / "sand-0").exists())
    shutil.copytree(holder / "sand-0", other / "sand-0")
    broker = start_broker(local_directories=disks)
    assert [(disk / "sand-0").exists() for disk in disks].count(True) == 1
    assert len([*tmp_path.glob("*/sand-0.*-delete")]) == 1


def test_a_disk_that_hangs_holds_up_only_its_own_partitions(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More requests wait for it than it has threads."""
    disks = (tmp_path / "one", tmp_path / "two")
    disk, real = HangingDisk(), RealFileSystem()
    files = Disks({disks[0]: SteppedFileSystem(real, disk), disks[1]: real})
    monkeypatch.setattr("agent.local_topics.disks.storage.RealFileSystem", lambda: files)
    broker = start_broker(local_directories=disks)
    broker.create_topic("rock", 2 * (broker.settings.disk_threads + 1), storage_mode="local")
    for partition in range(2 * (broker.settings.disk_threads + 1)):
        assert send(broker, partition) == (ErrorCode.none, 0)
    hung, others = (partitions_in(each) for each in disks)
    assert len(hung) > broker.settings.disk_threads
    disk.hang()
    with ThreadPoolExecutor(len(hung)) as pool:
        waiting = [pool.submit(send, broker, partition) for partition in hung]
        until(lambda: disk.waiting >= broker.settings.disk_threads)
        for partition in others:
            assert send(broker, partition) == (ErrorCode.none, 1)
            assert _values(broker.address, 2, partition=partition) == [b"v", b"v"]
        assert not any(each.done() for each in waiting)
        disk.work()
        assert [each.result() for each in waiting] == [(ErrorCode.none, 1)] * len(hung)


def _fetch(broker: BrokerThread, offsets: dict[int, int], *, max_wait: int) -> dict[int, tuple[int, int]]:
    """Fetch partitions from these offsets; return the error code and the size of the records of each."""
    parts = [
        Struct(partition=partition, fetch_offset=offset, partition_max_bytes=1 << 20)
        for partition, offset in offsets.items()
    ]
    request = Struct(
        max_wait=max_wait, min_bytes=1, topics=[Struct(topic="rock", partitions=parts)], isolation_level=0
    )
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("fetch", 11, request)
    return {
        each.partition_index: (each.error_code, len(each.records or b""))
        for topic in response.responses
        for each in topic.partitions
    }


def test_a_fetch_does_not_wait_for_a_disk_that_hangs(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its partitions have no records until it responds; those of other disks and of objects have theirs."""
    disks = (tmp_path / "one", tmp_path / "two")
    disk, real = HangingDisk("read"), RealFileSystem()
    files = Disks({disks[0]: SteppedFileSystem(real, disk), disks[1]: real})
    monkeypatch.setattr("agent.local_topics.disks.storage.RealFileSystem", lambda: files)
    broker = start_broker(local_directories=disks, poll_interval_ms=100_000)
    broker.create_topic("rock", 4, storage_mode="local")
    for partition in range(4):
        assert send(broker, partition) == (ErrorCode.none, 0)
    hung, others = (partitions_in(each) for each in disks)
    assert len(hung) == len(others) == 2
    starts = dict.fromkeys([*hung, *others], 0)
    size = _fetch(broker, starts, max_wait=60_000)[0][1]
    assert size > 0
    expected = dict.fromkeys(hung, (ErrorCode.none, 0)) | dict.fromkeys(others, (ErrorCode.none, size))
    disk.hang()
    try:
        for _ in range(2):
            assert _fetch(broker, starts, max_wait=1_000) == expected
        assert disk.waiting == 1
        ends = starts | dict.fromkeys(others, 1)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(_fetch, broker, ends, max_wait=100_000)
            for partition in others:
                assert send(broker, partition) == (ErrorCode.none, 1)
            found = waiting.result()
            assert [found[partition] for partition in hung] == [(ErrorCode.none, 0)] * 2
            assert sum(size for _, size in found.values()) > 0
            refused = dict.fromkeys([*hung][1:], 0)  # without the one whose read hangs
            last = pool.submit(_fetch, broker, refused, max_wait=100_000)
            url = f"http://{broker.http_address}/v1/topics/rock/partitions/{min(hung)}/records"
            response = httpx.get(url, timeout=240, trust_env=False)
            assert response.status_code == HTTPStatus.SERVICE_UNAVAILABLE
            disk.work()
            assert last.result() == dict.fromkeys(refused, (ErrorCode.none, size))
    finally:
        disk.work()


def test_a_fetch_waits_for_a_disk_that_has_much_to_do(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """More calls than it has threads are always under way, and each takes longer than the fetch may wait."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 2, storage_mode="local")
    for partition in (0, 1):
        assert send(broker, partition) == (ErrorCode.none, 0)
    starts = {0: 0, 1: 0}
    expected = _fetch(broker, starts, max_wait=60_000)
    disk = broker.agent.data.local_logs._disks.at(tmp_path / "disk")
    busy = True

    async def work() -> None:
        while busy:
            await disk.run(partial(time.sleep, 0.3))

    async def overload() -> None:
        await asyncio.gather(*(work() for _ in range(broker.settings.disk_threads + 1)))

    with ThreadPoolExecutor(1) as pool:
        load = pool.submit(broker.run, overload())
        try:
            until(lambda: disk.pending > broker.settings.disk_threads)
            for _ in range(10):
                assert _fetch(broker, starts, max_wait=500) == expected
        finally:
            busy = False
        load.result()


def test_the_progress_of_a_recovery_is_visible(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics say how many logs and segments the start still has to read."""
    directory = tmp_path / "disk"
    broker = start_broker(local_directories=(directory,))
    broker.create_topic("rock", 3, storage_mode="local")
    for partition in range(3):
        assert send(broker, partition) == (ErrorCode.none, 0)
    broker.stop()
    (directory / ".kafka_cleanshutdown").unlink()
    disk = HangingDisk("truncate .index")
    files = SteppedFileSystem(RealFileSystem(), disk)
    monkeypatch.setattr("agent.local_topics.disks.storage.RealFileSystem", lambda: files)
    again = BrokerThread(
        broker.catalog, broker.store, broker.clock, broker.ids, {"local_directories": (directory,)}
    )
    disk.hang()
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(again.start)
        until(lambda: disk.waiting > 0)
        collector = again.agent.data.local_logs.log_collector()

        def progress() -> list[float]:
            families = {each.name: each for each in collector.collect()}
            names = ("logs_to_recover", "segments_to_recover")
            return [families[f"siltstone_local_{name}"].samples[0].value for name in names]

        assert progress()[0] == 3
        until(lambda: progress()[1] > 0)
        disk.work()
        starting.result()
        assert progress() == [0, 0]
        again.stop()


@pytest.mark.parametrize(("pattern", "mode"), [("rock.*", "local"), ("rock", "object"), (None, "object")])
def test_the_name_of_a_topic_makes_it_local(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, pattern: str | None, mode: str
) -> None:
    """For clients that know only Kafka's settings. An explicit storage mode counts."""
    tier = LocalTierSettings(local_topics=pattern)
    broker = start_broker(local_tier=tier, auto_create_topics=True)
    admin = AdminClient({"bootstrap.servers": broker.address})
    wanted = [NewTopic("rock-1", 1), NewTopic("rock-2", 1, config={"storage.mode": "object"})]
    for future in admin.create_topics(wanted).values():
        future.result(TIMEOUT_SECONDS)
    admin.list_topics("rock-3", TIMEOUT_SECONDS)
    until(lambda: bool(catalog.topics.by_names(["rock-3"])))
    found = [catalog.topics.get(name).config.storage_mode for name in ("rock-1", "rock-2", "rock-3")]
    assert found == [mode, "object", mode]


def test_a_stopping_agent_does_not_take_its_closed_logs_for_lost_disks(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker(local_directories=(tmp_path / "one",), probe_interval_ms=20)
    announcer = broker.agent.data.announcer
    stop = announcer.stop

    async def stop_late() -> None:
        await asyncio.sleep(0.3)  # many intervals of the probe, after the local logs are closed
        await stop()

    monkeypatch.setattr(announcer, "stop", stop_late)
    with capture_logs() as events:
        broker.stop()
    assert [event for event in events if "disks" in event["event"]] == []
