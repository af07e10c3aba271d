"""A real Kafka broker and our engine use one log directory alternately, after kill -9 of each."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from core.clock import SystemClock
from core.ids import SystemIds
from local_tier.config import LogConfig
from local_tier.files.file_system import RealFileSystem
from local_tier.files.metadata_files import read_meta_properties
from local_tier.manager.config import LogManagerConfig
from local_tier.manager.directory_services import DirectorySchedulers
from local_tier.manager.log_directories import DirectoryOwner
from local_tier.manager.log_manager import LogManager
from local_tier.topic_partition import TopicPartition as LogName
from object_format.record_batch.records import decode_batches, encode_batch
from tests.fixtures.kafka_broker import kafka_broker
from tests.local_tier.crash.crash_check import contents
from tests.local_tier.interchange.pair import files_of
from tests.local_tier.manager.managers import PeriodicManualScheduler, crash

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from uuid import UUID

    from local_tier.log.unified_log import UnifiedLog

pytestmark = pytest.mark.integration

_SECONDS = 120
QUIET = {"log_level": 0}
CONFIG = LogConfig(segment_bytes=2**20, retention_ms=-1, message_timestamp_after_max_ms=2**63 - 1)


@contextmanager
def broker(directory: Path, *, topics: dict[str, dict[str, str]]) -> Iterator[str]:
    """Run a broker on a log directory, yield its address, and kill it with SIGKILL."""
    settings = {
        "log.cleaner.backoff.ms": 50,
        "log.initial.task.delay.ms": 60_000,
        "offsets.topic.num.partitions": 1,
        "group.initial.rebalance.delay.ms": 0,
    }
    with kafka_broker(directory, settings=settings) as started:
        new = [NewTopic(name, 1, 1, config=config) for name, config in topics.items()]
        admin = AdminClient({**QUIET, "bootstrap.servers": started.address})
        for future in (admin.create_topics(new) if new else {}).values():
            future.result(_SECONDS)
        yield started.address


def values(address: str, topic: str, count: int) -> list[bytes]:
    """Read the values of a topic from its start, with a real client."""
    consumer = Consumer({**QUIET, "bootstrap.servers": address, "group.id": "g"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[bytes] = []
    while len(found) < count:
        for message in consumer.consume(count, _SECONDS):
            assert message.error() is None
            value = message.value()
            assert isinstance(value, bytes)
            found.append(value)
    consumer.close()
    return found


def open_manager(directory: Path) -> LogManager:
    """Open the directory as an agent does, as the node that it belongs to."""
    properties = read_meta_properties(RealFileSystem(), directory)
    assert properties is not None
    clock = SystemClock()
    scheduler = PeriodicManualScheduler(clock)  # type: ignore[arg-type]  # its tasks never become due
    manager = LogManager(
        LogManagerConfig(
            directories=(directory,),
            owner=DirectoryOwner(cluster_id=properties.cluster_id, node_id=properties.node_id),
        ),
        file_system=RealFileSystem(),
        clock=clock,
        ids=SystemIds(clock),
        schedulers={directory: DirectorySchedulers(tasks=scheduler, failures=scheduler)},
    )

    def config_of(log: LogName, topic_id: UUID | None, directory_id: UUID, *, is_future: bool) -> LogConfig:
        assert not is_future
        assert topic_id is not None
        assert directory_id == properties.directory_id
        return replace(CONFIG, compact=log.topic in {"keyed", "__consumer_offsets"})

    manager.start(config_of, clean=False)
    return manager


def log_of(manager: LogManager, topic: str) -> UnifiedLog:
    log = manager.get(LogName(topic, 0))
    assert log is not None
    log.update_high_watermark(log.log_end_offset)
    return log


def test_a_broker_and_our_engine_continue_each_others_logs(tmp_path: Path) -> None:
    """Neither loses a record of the other, and the log of the quorum stays untouched."""
    directory = tmp_path / "kafka"
    compaction = {
        "cleanup.policy": "compact",
        "segment.ms": "1",
        "min.cleanable.dirty.ratio": "0.001",
    }
    with broker(directory, topics={"plain": {}, "keyed": compaction}) as address:
        producer = Producer({**QUIET, "bootstrap.servers": address, "enable.idempotence": True})
        for number in range(300):
            producer.produce("plain", value=b"%d" % number, partition=0)
            if number % 10 == 0:
                producer.produce("keyed", key=b"%d" % (number % 30), value=b"%d" % number, partition=0)
                producer.flush()
        assert producer.flush(_SECONDS) == 0
        assert len(values(address, "plain", 300)) == 300

    quorum = files_of(directory / "__cluster_metadata-0")
    manager = open_manager(directory)
    plain, keyed = log_of(manager, "plain"), log_of(manager, "keyed")
    assert plain.log_end_offset == 300
    assert [record.decode() for record in _values_of(plain)] == [str(number) for number in range(300)]
    assert {key: value for _, (key, value) in contents(keyed)} == {"0": "270", "10": "280", "20": "290"}
    assert manager.metrics().stray_logs == manager.metrics().offline_logs == 0
    epoch = plain.leader_epochs[-1].epoch
    for number in range(300, 400):
        plain.append_as_leader(bytearray(encode_batch([1_000], [None], [b"%d" % number])), epoch)
    plain.update_high_watermark(400)
    manager.periodic_tasks.checkpoint_high_watermarks()
    crash(manager)
    assert files_of(directory / "__cluster_metadata-0") == quorum

    with broker(directory, topics={}) as address:
        assert values(address, "plain", 400) == [b"%d" % number for number in range(400)]
        again = Producer({**QUIET, "bootstrap.servers": address})
        again.produce("plain", value=b"400", partition=0)
        assert again.flush(_SECONDS) == 0
        assert values(address, "plain", 401)[-1] == b"400"


def _values_of(log: UnifiedLog) -> list[bytes]:
    found: list[bytes] = []
    for segment in log.segments:
        data = segment.log.read(0, segment.size)
        for columns in decode_batches(data.data):
            found += [record.value for record in columns.records() if record.value is not None]
    return found
