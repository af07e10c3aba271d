"""Moves of local topics' logs between the log directories of one agent."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.local_topics.moves import log_mover
from catalog.model import PartitionId
from core.errors import RetryableError
from local_tier.files.file_system import RealFileSystem
from local_tier.manager.log_copy import LogCopy
from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, consume, produce
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire
from tests.local_tier.crash.disks import Disks
from tests.local_tier.steps import DiskError, NoFaults, SteppedFileSystem, Switch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agent.local_topics.moves.log_mover import LogMover
    from catalog.open import Catalog
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration
_FIRST = 300  # records before the first move


def alter(broker: BrokerThread, path: Path | str, *, topic: str = "rock", partition: int = 0) -> ErrorCode:
    """Send AlterReplicaLogDirs for one partition; return its error code."""
    wanted = Struct(path=str(path), topics=[Struct(name=topic, partitions=[partition])])
    with Wire(broker.host_and_port) as wire:
        (result,) = wire.ask("alter_replica_log_dirs", 2, Struct(dirs=[wanted])).results
    assert result.topic_name == topic
    (found,) = result.partitions
    assert found.partition_index == partition
    return ErrorCode(found.error_code)


def described(broker: BrokerThread) -> dict[str, list[tuple[bool, int]]]:
    """Return for each directory whether the log of the partition there is future, and its lag."""
    with Wire(broker.host_and_port) as wire:
        found = wire.ask("describe_log_dirs", 4, Struct(topics=None)).results
    return {
        each.log_dir: [
            (part.is_future_key, part.offset_lag) for topic in each.topics for part in topic.partitions
        ]
        for each in found
        if each.error_code == ErrorCode.none
    }


def mover_of(broker: BrokerThread) -> LogMover:
    local = broker.agent.data.local_logs._local
    assert local is not None
    return local.mover


def values(broker: BrokerThread, count: int) -> list[bytes | str | None]:
    return [message.value() for message in consume(broker.address, "rock", count)]


def source_and_target(disks: tuple[Path, Path]) -> tuple[Path, Path]:
    source = next(disk for disk in disks if (disk / "rock-0").exists())
    return source, next(disk for disk in disks if disk != source)


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "one", tmp_path / "two"


def test_a_log_moves_while_a_client_writes(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, disks: tuple[Path, Path]
) -> None:
    """Each record is there once and in order, also after a restart. The catalog has the new directory."""
    broker = start_broker(local_directories=disks)
    topic = broker.create_topic("rock", 1, storage_mode="local", segment_bytes=str(2**20))
    produce(broker.address, "rock", [(None, b"%d" % n + b"." * 5_000) for n in range(_FIRST)])
    source, target = source_and_target(disks)
    ended = threading.Event()
    failures: list[object] = []
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0, "enable.idempotence": True})
    sent = _FIRST

    def delivered(error: object, message: object) -> None:
        del message
        if error is not None:
            failures.append(error)

    def write() -> None:
        nonlocal sent
        while not ended.is_set():
            producer.produce("rock", b"%d" % sent + b"." * 5_000, partition=0, on_delivery=delivered)
            sent += 1
            producer.poll(0)
            if len(producer) > 20:
                producer.flush(TIMEOUT_SECONDS)

    writer = threading.Thread(target=write)
    writer.start()
    for path in (target, source):
        assert alter(broker, path) == ErrorCode.none
        until(lambda: mover_of(broker).running == 0)
        assert described(broker)[str(path)] == [(False, 0)]
    ended.set()
    writer.join()
    assert producer.flush(TIMEOUT_SECONDS) == 0
    assert failures == []
    assert mover_of(broker).moved_logs == 2
    assert mover_of(broker).failed_moves == 0
    assert mover_of(broker).moved_bytes >= 2 * _FIRST * 5_000
    expected = [b"%d" % n for n in range(sent)]
    assert [str(value).encode()[2:].split(b".")[0] for value in values(broker, sent)] == expected
    storage = broker.agent.data.local_logs.storage
    assert storage is not None
    directory_id = storage.manager.directory_id(source)
    assert catalog.local_leaders.of_topic(topic.topic_id)[0].directory_id == directory_id
    assert list(target.glob("rock-0")) == []
    broker.stop()

    again = start_broker(local_directories=disks)
    produce(again.address, "rock", [(None, b"%d" % sent)])
    assert [str(value).encode()[2:-1].split(b".")[0] for value in values(again, sent + 1)][-1] == b"%d" % sent
    assert (source / "rock-0").exists()


class HeldCopies:
    """Copies that stop after a number of chunks until they may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, chunks: int = 1) -> None:
        self.waiting = threading.Event()
        self.go_on = threading.Event()
        read, left = LogCopy.read, [chunks]

        def held(copy: LogCopy) -> object:
            if not left[0]:
                self.waiting.set()
                assert self.go_on.wait(TIMEOUT_SECONDS)
            else:
                left[0] -= 1
            return read(copy)

        monkeypatch.setattr(LogCopy, "read", held)


def filled_broker(start_broker: Callable[..., BrokerThread], disks: tuple[Path, Path]) -> BrokerThread:
    """Return an agent with a log of three chunks of a copy."""
    broker = start_broker(local_directories=disks)
    broker.create_topic("rock", 1, storage_mode="local")
    for number in range(3):
        produce(broker.address, "rock", [(None, b"%d" % number * 700_000)])
    return broker


def test_a_move_is_shown_and_cancelled(
    start_broker: Callable[..., BrokerThread], disks: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A move to the directory where the log is cancels the move, and so does the deletion of the topic."""
    broker = filled_broker(start_broker, disks)
    source, target = source_and_target(disks)
    held = HeldCopies(monkeypatch)
    assert alter(broker, target) == ErrorCode.none
    assert held.waiting.wait(TIMEOUT_SECONDS)
    assert alter(broker, target) == ErrorCode.none, "the move runs already"
    assert described(broker) == {
        "/object-store": [],
        str(source): [(False, 0)],
        str(target): [(True, 2)],
    }
    threading.Timer(0.1, held.go_on.set).start()
    assert alter(broker, source) == ErrorCode.none
    assert mover_of(broker).running == 0
    assert described(broker)[str(target)] == []
    assert len(values(broker, 3)) == 3

    held = HeldCopies(monkeypatch)
    assert alter(broker, target) == ErrorCode.none
    assert held.waiting.wait(TIMEOUT_SECONDS)
    broker.catalog.topics.delete("rock")
    storage = broker.agent.data.local_logs.storage
    assert storage is not None
    storage.sync_topics()
    held.go_on.set()
    until(lambda: mover_of(broker).running == 0)
    assert [disk for disk in disks if [*disk.glob("rock-0")] or [*disk.glob("*-future")]] == []
    assert (mover_of(broker).moved_logs, mover_of(broker).failed_moves) == (0, 0)


def test_a_move_that_waits_for_another_one_is_cancelled_at_once(
    start_broker: Callable[..., BrokerThread], disks: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it was to begin again: the request for a move that is being cancelled begins a new one."""
    broker = filled_broker(start_broker, disks)
    source, target = source_and_target(disks)
    broker.create_topic("sand", 1, storage_mode="local")
    produce(broker.address, "sand", [(None, b"0")])
    assert alter(broker, source, topic="sand") == ErrorCode.none
    until(lambda: mover_of(broker).running == 0)
    held = HeldCopies(monkeypatch)
    monkeypatch.setattr(log_mover, "_CANCEL_SECONDS", 2.0)
    try:
        assert alter(broker, target) == ErrorCode.none
        assert held.waiting.wait(TIMEOUT_SECONDS)
        assert alter(broker, target, topic="sand") == ErrorCode.none
        until(lambda: mover_of(broker).running == 2)
        assert alter(broker, source, topic="sand") == ErrorCode.none
        assert mover_of(broker).running == 1
    finally:
        held.go_on.set()
    until(lambda: mover_of(broker).running == 0)
    assert (target / "rock-0").exists()
    assert (source / "sand-0").exists()
    assert mover_of(broker).failed_moves == 0


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_log_is_served_after_the_catalog_has_lost_its_move(
    start_broker: Callable[..., BrokerThread], disks: tuple[Path, Path], catalog: Catalog, is_stopped: bool
) -> None:
    """As in a failover. The log is recorded again, because it is the only one."""
    broker = filled_broker(start_broker, disks)
    source, target = source_and_target(disks)
    storage = broker.agent.data.local_logs.storage
    assert storage is not None
    source_id, target_id = (storage.manager.directory_id(path) for path in (source, target))
    assert source_id is not None
    assert target_id is not None
    assert alter(broker, target) == ErrorCode.none
    until(lambda: mover_of(broker).moved_logs == 1)
    if is_stopped:
        broker.stop()
    (topic,) = catalog.topics.list()
    partition = PartitionId(topic.topic_id, 0)
    node_id = catalog.local_leaders.of_topic(topic.topic_id)[0].node_id
    catalog.local_leaders.assign(node_id, {partition: source_id}, source=target_id)
    if is_stopped:
        broker = start_broker(local_directories=disks)
    else:
        mover_of(broker)._leaders._cache.clear()
    produce(broker.address, "rock", [(None, b"3")])
    assert len(values(broker, 4)) == 4
    assert catalog.local_leaders.of_topic(topic.topic_id)[0].directory_id == target_id
    assert list(target.glob("*-stray")) == []


def test_moves_that_cannot_begin_have_kafkas_error_codes(
    start_broker: Callable[..., BrokerThread], disks: tuple[Path, Path], tmp_path: Path
) -> None:
    broker = start_broker(local_directories=disks)
    broker.create_topic("rock", 1, storage_mode="local")
    broker.create_topic("sand", 1)
    broker.create_topic("r" * 240, 1, storage_mode="local")
    for path, topic, partition, code in (
        (tmp_path / "three", "rock", 0, ErrorCode.log_dir_not_found),
        (disks[0], "marble", 0, ErrorCode.unknown_topic_or_partition),
        (disks[0], "rock", 1, ErrorCode.unknown_topic_or_partition),
        (disks[0], "sand", 0, ErrorCode.replica_not_available),
        ("/object-store", "sand", 0, ErrorCode.none),
        ("/object-store", "rock", 0, ErrorCode.log_dir_not_found),
        (disks[0], "r" * 240, 0, ErrorCode.invalid_topic_exception),
        (disks[0], "rock", 0, ErrorCode.none),
        (disks[1], "rock", 0, ErrorCode.none),
    ):
        assert alter(broker, path, topic=topic, partition=partition) == code, (path, topic)
    until(lambda: mover_of(broker).running == 0)
    assert (disks[1] / "rock-0").exists()
    storage = broker.agent.data.local_logs.storage
    assert storage is not None
    storage.manager._failures.report(disks[0], OSError("as the test asked for"))
    for path in disks:
        expected = ErrorCode.kafka_storage_error if path == disks[0] else ErrorCode.none
        assert alter(broker, path) == expected


def faulty_disks(monkeypatch: pytest.MonkeyPatch, disks: tuple[Path, Path]) -> Switch:
    """Let the disks of agents that start from now on fail as the returned switch says."""
    switch, real = Switch(NoFaults()), RealFileSystem()
    files = Disks({disk: SteppedFileSystem(real, switch) for disk in disks})
    monkeypatch.setattr("agent.local_topics.disks.storage.RealFileSystem", lambda: files)
    return switch


@pytest.mark.parametrize("fault", ["write .log", "rename <log>-future"])
def test_a_failed_target_leaves_the_log_where_it_is(
    start_broker: Callable[..., BrokerThread],
    disks: tuple[Path, Path],
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    """Also if it fails after the catalog has recorded it."""
    switch = faulty_disks(monkeypatch, disks)
    broker = filled_broker(start_broker, disks)
    source, target = source_and_target(disks)
    storage = broker.agent.data.local_logs.storage
    assert storage is not None
    source_id = storage.manager.directory_id(source)
    switch.faults = DiskError(fault, once=True)
    assert alter(broker, target) == ErrorCode.none
    until(lambda: mover_of(broker).running == 0)
    assert (mover_of(broker).moved_logs, mover_of(broker).failed_moves) == (0, 1)
    assert storage.manager.offline_directories == [target]
    produce(broker.address, "rock", [(None, b"3")])
    assert len(values(broker, 4)) == 4
    (topic,) = catalog.topics.list()
    assert catalog.local_leaders.of_topic(topic.topic_id)[0].directory_id == source_id


def test_the_copy_of_a_log_whose_disk_fails_is_kept_until_the_disk_is_back(
    start_broker: Callable[..., BrokerThread], disks: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be all that is left. It is not the log, because it is not complete."""
    switch = faulty_disks(monkeypatch, disks)
    broker = filled_broker(start_broker, disks)
    source, target = source_and_target(disks)
    switch.faults = DiskError("read .log", nth=2, once=True)
    assert alter(broker, target) == ErrorCode.none
    until(lambda: mover_of(broker).running == 0)
    assert mover_of(broker).failed_moves == 1
    assert [path.name[-7:] for path in target.glob("rock-0*")] == ["-future"]
    assert alter(broker, target) == ErrorCode.kafka_storage_error
    broker.stop()
    again = start_broker(local_directories=disks)
    assert len(values(again, 3)) == 3
    assert described(again)[str(source)] == [(False, 0)]
    assert [path.name[-7:] for path in target.glob("rock-0*")] == ["-delete"]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_outcome_of_the_record_is_asked_for_until_it_is_known(
    start_broker: Callable[..., BrokerThread],
    disks: tuple[Path, Path],
    catalog: Catalog,
    monkeypatch: pytest.MonkeyPatch,
    is_restarted: bool,
) -> None:
    """Writers wait meanwhile, and readers do not. A restart before that finds the copy that was recorded."""
    broker = filled_broker(start_broker, disks)
    source, target = source_and_target(disks)
    assign, is_lost, was_tried = catalog.local_leaders.assign, threading.Event(), threading.Event()
    is_lost.set()

    def lossy(*arguments: object, **options: object) -> object:
        found = assign(*arguments, **options)  # type: ignore[arg-type]  # passed on
        if is_lost.is_set():
            was_tried.set()
            raise RetryableError("the response was lost")
        return found

    monkeypatch.setattr(catalog.local_leaders, "assign", lossy)
    assert alter(broker, target) == ErrorCode.none
    assert was_tried.wait(TIMEOUT_SECONDS)
    assert len(values(broker, 3)) == 3
    if is_restarted:
        broker.stop()
        is_lost.clear()
        broker = start_broker(local_directories=disks)
        produce(broker.address, "rock", [(None, b"w")])
        assert [path.name[-6:] for path in source.glob("rock-0*")] == ["-stray"]
    else:
        writer = threading.Thread(target=produce, args=(broker.address, "rock", [(None, b"w")]))
        writer.start()
        assert (source / "rock-0").exists()
        is_lost.clear()
        writer.join()
        until(lambda: mover_of(broker).moved_logs == 1)
    assert (target / "rock-0").exists()
    assert len(values(broker, 4)) == 4


def test_moves_obey_the_rate_that_clients_set(
    start_broker: Callable[..., BrokerThread], disks: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change counts for a move that runs."""
    monkeypatch.setattr("agent.local_topics.moves.move_throttle._REFRESH_SECONDS", 0.05)
    monkeypatch.setattr(log_mover, "_REST_BYTES", 0)
    broker = filled_broker(start_broker, disks)
    _, target = source_and_target(disks)
    name = "replica.alter.log.dirs.io.max.bytes.per.second"
    broker.catalog.broker_configs.alter("", lambda _: {name: "1"})
    assert alter(broker, target) == ErrorCode.none
    until(lambda: mover_of(broker).moved_bytes > 0)
    assert described(broker)[str(target)] == [(True, 2)]
    broker.catalog.broker_configs.alter("", lambda _: {name: None})
    until(lambda: mover_of(broker).moved_logs == 1)
