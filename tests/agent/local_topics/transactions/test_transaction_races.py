"""Races between the end of a transaction and the leader of its local partition, with scripted requests."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import psycopg
import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.local_topics.transactions import marker_writer
from agent.runtime.byte_budget import ByteBudget
from agent.runtime.errors import BusyError
from agent.write.failed_producers import FOLLOWS_FAILED_DETAIL
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from catalog.transactions.local_partitions import FirstBatch
from catalog.transactions.rules import ProducerIdentity
from core.errors import RetryableError
from local_tier.files.file_system import RealFileSystem
from local_tier.log.unified_log import UnifiedLog
from object_format.record_batch.headers import iter_headers
from tests.agent.kafka.apis.test_transactions import (
    add,
    end,
    fetch,
    init,
    offsets,
    produce,
)
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire
from tests.local_tier.crash.disks import Disks
from tests.local_tier.hanging_disk import HangingDisk
from tests.local_tier.steps import SteppedFileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from agent.local_topics.transactions.marker_writer import MarkerWriter
    from catalog.open import Catalog
    from catalog.transactions.local_partitions import PendingMarker, Verification
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration
_TOPIC = "granite"
_READ_UNCOMMITTED, _READ_COMMITTED = 0, 1
_FIRST_OF_VERSION_2, _END_2 = 12, 5


@dataclass
class Table:
    """The catalog's table, with a pause after a verification, and faults of markers."""

    catalog: Catalog
    finds_markers: bool = True
    completes: bool = True
    verifies: bool = True
    looks: int = 0
    verified: threading.Event = field(default_factory=threading.Event)
    may_append: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.may_append.set()

    def verify(self, transactional_id: str, producer: ProducerIdentity, batch: FirstBatch, /) -> Verification:
        if not self.verifies:
            raise CatalogUnavailableError("no catalog", remedy="wait", retry_after_seconds=1.0)
        found = self.catalog.local_transactions.verify(transactional_id, producer, batch)
        self.verified.set()
        assert self.may_append.wait(60)
        return found

    def pending(self, node_id: int, *, after: int = 0) -> Sequence[PendingMarker]:
        self.looks += 1
        found = self.catalog.local_transactions.pending(node_id, after=after)
        return found if self.finds_markers else []  # also of a look that began before the fault

    def complete(self, markers: Sequence[PendingMarker], /) -> None:
        if not self.completes:
            raise CatalogUnavailableError("no catalog", remedy="wait", retry_after_seconds=1.0)
        self.catalog.local_transactions.complete(markers)


@dataclass
class Scene:
    """An agent that leads partition 0 of a local topic."""

    start: Callable[[], BrokerThread]
    catalog: Catalog
    broker: BrokerThread
    table: Table

    def restart(self) -> None:
        """Stop the agent and start it again on the same disk, without faults."""
        self.broker.stop()
        self.broker = self.start()

    @property
    def markers(self) -> MarkerWriter:
        """The writer of markers of the agent."""
        markers = self.broker.agent.data.local_logs.markers
        assert markers is not None
        return markers

    def use(self, table: Table) -> None:
        """Let the agent use a table with faults."""
        self.markers._table = table
        self.markers._verifier._table = table

    def check_again(self) -> None:
        """Let the agent check its open transactions, as after a failover."""
        self.broker.agent._loop.call_soon_threadsafe(self.markers.check_again)

    def pending(self) -> list[PendingMarker]:
        return self.catalog.local_transactions.pending(self.broker.agent.data.local_logs.node_id)

    def wire(self) -> Wire:
        return Wire(self.broker.host_and_port)


@pytest.fixture
def scene(start_broker: Callable[..., BrokerThread], catalog: Catalog, tmp_path: Path) -> Iterator[Scene]:
    def start() -> BrokerThread:
        return start_broker(local_directories=(tmp_path / "disk",))

    broker = start()
    broker.create_topic(_TOPIC, 2, storage_mode="local")
    scene = Scene(start, catalog, broker, Table(catalog))
    scene.use(scene.table)
    yield scene
    scene.table.may_append.set()


def controls(wire: Wire) -> list[int]:
    """Return the offsets of the control batches, which may be in several segments."""
    found, position = [], 0
    while records := fetch(wire, position, isolation=_READ_UNCOMMITTED).records:
        for _, header in iter_headers(records):
            position = header.next_offset
            if header.is_control:
                found.append(header.base_offset)
    return found


def test_a_batch_that_was_verified_before_the_end_is_not_appended_after_the_marker(scene: Scene) -> None:
    with scene.wire() as wire, scene.wire() as other:
        producer = init(wire)
        add(wire, producer, 0)
        scene.table.may_append.clear()
        results: list[Struct] = []
        late = threading.Thread(target=lambda: results.append(produce(other, producer, 0, b"late")))
        late.start()
        assert scene.table.verified.wait(60)
        assert end(wire, producer, commits=False).error_code == ErrorCode.none
        until(lambda: not scene.pending())
        scene.table.may_append.set()
        late.join()
        (result,) = results
        assert result.error_code == ErrorCode.invalid_txn_state
        assert offsets(wire, _READ_UNCOMMITTED) == 0


def test_a_batch_that_was_verified_before_the_end_is_in_the_transaction_if_the_marker_is_late(
    scene: Scene,
) -> None:
    with scene.wire() as wire, scene.wire() as other:
        producer = init(wire)
        add(wire, producer, 0)
        scene.table.may_append.clear()
        scene.table.finds_markers = False
        results: list[Struct] = []
        late = threading.Thread(target=lambda: results.append(produce(other, producer, 0, b"late")))
        late.start()
        assert scene.table.verified.wait(60)
        end(wire, producer, commits=False)
        scene.table.may_append.set()
        late.join()
        assert results[0].error_code == ErrorCode.none
        assert offsets(wire, _READ_COMMITTED) == 0
        scene.table.finds_markers = True
        until(lambda: offsets(wire, _READ_COMMITTED) == 2)
        (aborted,) = fetch(wire, 0).aborted_transactions
        assert (aborted.producer_id, aborted.first_offset) == (producer.producer_id, 0)


def test_a_crash_between_the_append_of_a_marker_and_its_completion_does_not_repeat_it(scene: Scene) -> None:
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        scene.table.completes = False
        end(wire, producer, commits=True)
        until(lambda: offsets(wire, _READ_COMMITTED) == 2)
        assert [each.commits for each in scene.pending()] == [True]
        assert add(wire, producer, 0) == [ErrorCode.concurrent_transactions]
    scene.restart()
    until(lambda: not scene.pending())
    with scene.wire() as wire:
        assert controls(wire) == [1]
        assert add(wire, producer, 0) == [ErrorCode.none]
        assert produce(wire, producer, 1, b"b").error_code == ErrorCode.none


def test_a_transaction_that_ended_while_its_leader_was_away_is_completed_at_the_start(scene: Scene) -> None:
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        scene.table.finds_markers = False
        end(wire, producer, commits=True)
        assert offsets(wire, _READ_COMMITTED) == 0
        assert fetch(wire, 0).records == b""
    assert len(scene.pending()) == 1
    scene.restart()
    with scene.wire() as wire:
        until(lambda: offsets(wire, _READ_COMMITTED) == 2)
    until(lambda: not scene.pending())


def test_a_producer_of_version_2_waits_for_the_marker_of_its_last_transaction(scene: Scene) -> None:
    with scene.wire() as wire:
        producer = init(wire)
        assert produce(wire, producer, 0, b"a", version=_FIRST_OF_VERSION_2).error_code == ErrorCode.none
        scene.table.finds_markers = False
        producer = end(wire, producer, commits=True, version=_END_2)
        refused = produce(wire, producer, 0, b"b", version=_FIRST_OF_VERSION_2)
        assert refused.error_code == ErrorCode.request_timed_out  # the producer retries
        scene.table.finds_markers = True
        assert produce(wire, producer, 0, b"b", version=_FIRST_OF_VERSION_2).error_code == ErrorCode.none
        end(wire, producer, commits=False, version=_END_2)
        until(lambda: offsets(wire, _READ_COMMITTED) == 4)
        assert controls(wire) == [1, 3]


def test_a_zombie_writes_nothing_after_its_transaction_was_aborted(scene: Scene) -> None:
    with scene.wire() as wire:
        zombie = init(wire)
        add(wire, zombie, 0)
        produce(wire, zombie, 0, b"a")
        current = init(wire)
        until(lambda: offsets(wire, _READ_COMMITTED) == 2)
        for sequence in (0, 1):
            refused = produce(wire, zombie, sequence, b"z")
            assert refused.error_code == ErrorCode.invalid_producer_epoch
        until(lambda: not scene.pending())
        assert add(wire, current, 0) == [ErrorCode.none]
        assert produce(wire, current, 0, b"b").base_offset == 2
        assert end(wire, zombie, commits=True).error_code == ErrorCode.producer_fenced
        end(wire, current, commits=True)
        until(lambda: offsets(wire, _READ_COMMITTED) == 4)


def test_a_stranger_with_the_id_of_a_producer_writes_nothing(scene: Scene) -> None:
    with scene.wire() as wire:
        victim, stranger = init(wire), init(wire, name="stranger")
        add(wire, victim, 0)
        produce(wire, victim, 0, b"a")
        assert stranger.producer_id != victim.producer_id
        forged = Struct(producer_id=stranger.producer_id, producer_epoch=0)  # names the victim's id
        refused = produce(wire, forged, 0, b"x")
        assert refused.error_code == ErrorCode.invalid_producer_id_mapping
        assert offsets(wire, _READ_UNCOMMITTED) == 1


def test_a_partition_must_be_added_before_the_first_batch(scene: Scene) -> None:
    with scene.wire() as wire:
        producer = init(wire)
        assert produce(wire, producer, 0, b"a").error_code == ErrorCode.invalid_txn_state
        add(wire, producer, 1)
        assert produce(wire, producer, 0, b"a").error_code == ErrorCode.invalid_txn_state
        assert produce(wire, producer, 0, b"a", index=1).error_code == ErrorCode.none
        assert offsets(wire, _READ_UNCOMMITTED) == 0


@pytest.mark.parametrize("has_zombie", [False, True])
def test_a_transaction_that_the_catalog_has_lost_is_aborted_in_the_log(
    scene: Scene, catalog_url: str, *, has_zombie: bool
) -> None:
    """Also if a batch of another client with the producer's id was refused meanwhile."""
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"lost")
        if has_zombie:
            refused = produce(wire, producer, 1, b"zombie", name="another")
            assert refused.error_code == ErrorCode.invalid_producer_id_mapping
        with psycopg.connect(catalog_url) as connection:
            connection.execute("DELETE FROM siltstone.local_transaction_partitions")
        markers = scene.broker.agent.data.local_logs.markers
        assert markers is not None
        scene.broker.agent._loop.call_soon_threadsafe(markers.check_again)
        until(lambda: offsets(wire, _READ_COMMITTED) == 2)
        assert markers.aborted_unknown == 1
        refused = produce(wire, producer, 1, b"more")
        assert refused.error_code == ErrorCode.invalid_txn_state


def test_a_lost_transaction_is_aborted_before_the_next_one_of_its_producer(
    scene: Scene, catalog_url: str
) -> None:
    """Otherwise the log would take both for one transaction."""
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"lost")
        with psycopg.connect(catalog_url) as connection:
            connection.execute("DELETE FROM siltstone.local_transaction_partitions")
        successor = init(wire)
        assert produce(wire, successor, 0, b"b", version=_FIRST_OF_VERSION_2).base_offset == 2
        end(wire, successor, commits=True)
        until(lambda: offsets(wire, _READ_COMMITTED) == 4)
        (aborted,) = fetch(wire, 0).aborted_transactions
        assert aborted.first_offset == 0


def test_a_waiting_reader_wakes_up_when_the_transaction_ends(scene: Scene) -> None:
    with scene.wire() as wire, scene.wire() as reader:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        results: list[Struct] = []
        waiting = threading.Thread(target=lambda: results.append(fetch(reader, 0, max_wait=30_000)))
        waiting.start()
        end(wire, producer, commits=True)
        waiting.join()
        (result,) = results
        assert next(iter_headers(result.records))[1].base_offset == 0
        assert (result.last_stable_offset, result.high_watermark) == (2, 2)


def test_administrators_and_http_clients_see_transactions_of_local_topics(scene: Scene) -> None:
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        topic = Struct(name=_TOPIC, partition_indexes=[0])
        (described,) = wire.ask("describe_producers", 0, Struct(topics=[topic])).topics[0].partitions
        (active,) = described.active_producers
        assert (active.producer_id, active.current_txn_start_offset) == (producer.producer_id, 0)
        ids = Struct(transactional_ids=["t"])
        (state,) = wire.ask("describe_transactions", 0, ids).transaction_states
        assert (state.transaction_state, state.topics[0].partitions) == ("Ongoing", [0])

        def read(isolation: str) -> list[str]:
            url = f"http://{scene.broker.http_address}/v1/topics/{_TOPIC}/partitions/0/records"
            values: list[str] = []
            offset, end_offset = 0, offsets(wire, _READ_COMMITTED if "un" not in isolation else 0)
            while offset < end_offset:
                parameters: dict[str, str | int] = {"isolation": isolation, "offset": offset}
                body = httpx.get(url, params=parameters, timeout=60).raise_for_status().json()
                values += [each["value"] for each in body["records"]]
                offset = body["next_offset"]
            return values

        assert (read("read_uncommitted"), read("read_committed")) == (["a"], [])
        end(wire, producer, commits=False)
        until(lambda: not scene.pending())
        assert add(wire, producer, 0) == [ErrorCode.none]
        produce(wire, producer, 1, b"b")
        end(wire, producer, commits=True)
        until(lambda: offsets(wire, _READ_COMMITTED) == 4)
        assert read("read_committed") == ["b"]


def test_an_administrator_aborts_an_open_transaction(scene: Scene) -> None:
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        marker = Struct(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[Struct(name=_TOPIC, partition_indexes=[0])],
            coordinator_epoch=0,
        )
        (result,) = wire.ask("write_txn_markers", 1, Struct(markers=[marker])).markers
        assert result.topics[0].partitions[0].error_code == ErrorCode.none
        until(lambda: offsets(wire, _READ_COMMITTED) == 2)


def test_a_deleted_topic_takes_its_markers_along(scene: Scene) -> None:
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        scene.table.finds_markers = False
        end(wire, producer, commits=True)
        assert len(scene.pending()) == 1
        scene.catalog.topics.delete(_TOPIC)
        assert scene.pending() == []
        scene.table.finds_markers = True
        topic = scene.broker.create_topic("basalt", 1, storage_mode="local")
        assert add(wire, producer, 0, topic=topic.name) == [ErrorCode.none]


def test_the_end_on_another_agent_wakes_the_leader(
    scene: Scene, start_broker: Callable[..., BrokerThread]
) -> None:
    other = start_broker()
    with scene.wire() as wire, Wire(other.host_and_port) as coordinator:
        producer = init(coordinator)
        add(coordinator, producer, 0)
        produce(wire, producer, 0, b"a")
        end(coordinator, producer, commits=True)
        until(lambda: offsets(wire, _READ_COMMITTED) == 2)
    until(lambda: not scene.pending())


def test_a_marker_that_a_failover_brings_back_leaves_the_next_transaction_watched(
    scene: Scene, catalog_url: str
) -> None:
    """The failover has lost the next transaction, too, so only the leader can end it."""
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        end(wire, producer, commits=True)
        until(lambda: not scene.pending())
        assert add(wire, producer, 0) == [ErrorCode.none]
        produce(wire, producer, 1, b"b")
        with psycopg.connect(catalog_url) as connection:
            connection.execute(
                "UPDATE siltstone.local_transaction_partitions SET first_sequence = 0, commits = true,"
                " marker_epoch = producer_epoch, coordinator_epoch = 1, ended_ms = 1"
            )
        markers = scene.broker.agent.data.local_logs.markers
        assert markers is not None
        scene.broker.agent._loop.call_soon_threadsafe(markers.check_again)
        until(lambda: offsets(wire, _READ_COMMITTED) == 4)
        (aborted,) = fetch(wire, 2).aborted_transactions
        assert (aborted.producer_id, aborted.first_offset) == (producer.producer_id, 2)


def test_a_marker_is_completed_without_an_announcement_and_without_an_open_transaction(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch was verified and rejected, and the coordinator died before it announced the end."""
    monkeypatch.setattr(marker_writer, "_CHECK_SECONDS", 0.0)
    scene.broker.agent.data.local_logs.notify_markers()
    with scene.wire() as wire:
        found = init(wire)
        add(wire, found, 0)
        produce(wire, found, 0, b"a")
        end(wire, found, commits=True)
        until(lambda: not scene.pending())
        assert add(wire, found, 0) == [ErrorCode.none]
        producer = ProducerIdentity(found.producer_id, found.producer_epoch)
        partition = PartitionId(scene.catalog.topics.get(_TOPIC).topic_id, 0)
        scene.catalog.local_transactions.verify("t", producer, FirstBatch(partition, 1, adds_partition=False))
        scene.table.finds_markers = False
        scene.catalog.transactions.end("t", producer, commits=False)
        assert len(scene.pending()) == 1
        scene.table.finds_markers = True
        until(lambda: not scene.pending())
        assert add(wire, found, 0) == [ErrorCode.none]


def test_a_pass_that_a_producer_has_caused_is_repeated_after_a_failure(scene: Scene) -> None:
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        scene.table.finds_markers = False
        end(wire, producer, commits=True)
        markers, loop = scene.broker.agent.data.local_logs.markers, scene.broker.agent._loop
        assert markers is not None
        scene.table.completes, scene.table.finds_markers = False, True
        with pytest.raises(CatalogUnavailableError):
            asyncio.run_coroutine_threadsafe(markers.write_pending(), loop).result(60)
        scene.table.completes = True
        until(lambda: not scene.pending())


def test_a_disk_that_hangs_holds_up_only_the_transactions_of_its_own_partitions(
    start_broker: Callable[..., BrokerThread],
    catalog: Catalog,
    catalog_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ends, checks and aborts of transactions go on in the partitions of the other disk."""
    monkeypatch.setattr(marker_writer, "_CHECK_SECONDS", 0.0)
    disks = (tmp_path / "one", tmp_path / "two")
    disk, real = HangingDisk(), RealFileSystem()
    files = Disks({disks[0]: SteppedFileSystem(real, disk), disks[1]: real})
    monkeypatch.setattr("agent.local_topics.disks.storage.RealFileSystem", lambda: files)
    broker = start_broker(local_directories=disks)
    broker.create_topic(_TOPIC, 2, storage_mode="local")
    scene = Scene(lambda: broker, catalog, broker, Table(catalog))
    with scene.wire() as wire:
        producer, other = init(wire), init(wire, name="other")
        add(wire, producer, 0, 1)
        produce(wire, producer, 0, b"a")
        produce(wire, producer, 0, b"a", index=1)
        (hung,) = [each for each in (0, 1) if (disks[0] / f"{_TOPIC}-{each}").exists()]
        works = 1 - hung
        disk.hang()
        end(wire, producer, commits=True)
        until(lambda: disk.waiting > 0)
        until(lambda: [each.partition.partition for each in scene.pending()] == [hung])
        assert offsets(wire, _READ_COMMITTED, index=works) == 2
        assert offsets(wire, _READ_COMMITTED, index=hung) == 0
        add(wire, other, works, name="other")
        produce(wire, other, 0, b"b", index=works, name="other")
        end(wire, other, commits=False, name="other")
        until(lambda: offsets(wire, _READ_COMMITTED, index=works) == 4)
        # Not before the marker is complete in the catalog, too.
        until(lambda: add(wire, other, works, name="other") == [ErrorCode.none])
        assert produce(wire, other, 1, b"c", index=works, name="other").base_offset == 4
        with psycopg.connect(catalog_url) as connection:
            connection.execute(
                "DELETE FROM siltstone.local_transaction_partitions WHERE partition = %s", [works]
            )
        scene.check_again()
        until(lambda: offsets(wire, _READ_COMMITTED, index=works) == 6)
        assert scene.markers.aborted_unknown == 1
        assert len(scene.pending()) == 1
        disk.work()
        until(lambda: not scene.pending())
        assert offsets(wire, _READ_COMMITTED, index=hung) == 2
        assert scene.markers.written_markers == 3


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_transaction_whose_first_batch_was_deleted_is_aborted_if_the_catalog_has_lost_it(
    scene: Scene, catalog_url: str, monkeypatch: pytest.MonkeyPatch, *, is_lost: bool
) -> None:
    monkeypatch.setattr(marker_writer, "_CHECK_SECONDS", 0.0)
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        produce(wire, producer, 1, b"b")
        topics = scene.broker.agent.data.local_logs._local
        assert topics is not None
        scene.broker.run(topics.delete_records([(scene.catalog.topics.get(_TOPIC), 0, 1)]))
        if is_lost:
            with psycopg.connect(catalog_url) as connection:
                connection.execute("DELETE FROM siltstone.local_transaction_partitions")
        scene.check_again()
        if is_lost:
            until(lambda: offsets(wire, _READ_COMMITTED) == 3)
            assert scene.markers.aborted_unknown == 1
            return
        assert produce(wire, producer, 2, b"c").base_offset == 2  # verified again, with this batch
        scene.check_again()
        assert produce(wire, producer, 3, b"d").base_offset == 3
        assert end(wire, producer, commits=True).error_code == ErrorCode.none
        until(lambda: offsets(wire, _READ_COMMITTED) == 5)
        assert scene.markers.aborted_unknown == 0
        assert not fetch(wire, 1).aborted_transactions


def test_a_log_that_is_opened_again_voids_only_the_verifications_of_its_partition(scene: Scene) -> None:
    topic_id, loop = scene.catalog.topics.get(_TOPIC).topic_id, scene.broker.agent._loop
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        assert produce(wire, producer, 0, b"a").error_code == ErrorCode.none
        scene.table.verifies = False
        loop.call_soon_threadsafe(scene.markers.reopened, PartitionId(topic_id, 1))
        assert produce(wire, producer, 1, b"b").error_code == ErrorCode.none
        loop.call_soon_threadsafe(scene.markers.reopened, PartitionId(topic_id, 0))
        assert produce(wire, producer, 2, b"c").error_code == ErrorCode.request_timed_out


def test_a_batch_does_not_pass_an_earlier_one_whose_verification_failed(scene: Scene) -> None:
    """The log would take it: it knows nothing of the producer yet."""
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        scene.table.verifies = False
        assert produce(wire, producer, 0, b"a").error_code == ErrorCode.request_timed_out
        scene.table.verifies = True
        behind = produce(wire, producer, 1, b"b")
        assert behind.error_code == ErrorCode.not_enough_replicas
        assert behind.error_message == FOLLOWS_FAILED_DETAIL
        assert offsets(wire, _READ_UNCOMMITTED) == 0
        assert produce(wire, producer, 0, b"a").base_offset == 0
        assert produce(wire, producer, 1, b"b").base_offset == 1
        end(wire, producer, commits=True)
        until(lambda: offsets(wire, _READ_COMMITTED) == 3)


def test_a_batch_behind_a_failed_one_is_out_of_order_after_a_minute(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that has dropped the failed batch learns so that the next one is never appended."""
    monkeypatch.setattr("agent.write.failed_producers.WAIT_SECONDS", 0)
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        scene.table.verifies = False
        produce(wire, producer, 0, b"a")
        scene.table.verifies = True
        behind = produce(wire, producer, 1, b"b")
        assert behind.error_code == ErrorCode.out_of_order_sequence_number
        assert behind.error_message == FOLLOWS_FAILED_DETAIL
        assert offsets(wire, _READ_UNCOMMITTED) == 0
        assert produce(wire, producer, 0, b"a").base_offset == 0
        assert produce(wire, producer, 1, b"b").base_offset == 1


def test_a_batch_does_not_pass_an_earlier_one_that_found_no_space(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(budget: ByteBudget, size: int) -> None:  # noqa: ARG001
        raise BusyError("the buffer is full", remedy="retry")

    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        with monkeypatch.context() as patch:
            patch.setattr(ByteBudget, "reserve", refuse)
            assert produce(wire, producer, 0, b"a").error_code != ErrorCode.none
        assert produce(wire, producer, 1, b"b").error_code == ErrorCode.not_enough_replicas
        assert produce(wire, producer, 0, b"a").base_offset == 0
        assert produce(wire, producer, 1, b"b").base_offset == 1


def test_a_pass_over_markers_ends_with_a_page_that_is_not_full(scene: Scene) -> None:
    """Otherwise it would go on for ever while producers end transactions."""
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        produce(wire, producer, 0, b"a")
        scene.table.finds_markers = False
        end(wire, producer, commits=True)
        assert len(scene.pending()) == 1
        scene.table.finds_markers = True
        assert scene.broker.run(_count_looks_of_a_pass(scene)) == 1
        assert not scene.pending()


async def _count_looks_of_a_pass(scene: Scene) -> int:
    async with scene.markers._passing:  # the writer's own passes wait
        scene.table.looks = 0
        await scene.markers._write_all()
        return scene.table.looks


def test_a_move_of_a_log_keeps_a_transaction_whose_first_batch_was_deleted(
    start_broker: Callable[..., BrokerThread],
    catalog: Catalog,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The copy knows the transaction from its first remaining batch on."""
    monkeypatch.setattr(marker_writer, "_CHECK_SECONDS", 0.0)
    disks = (tmp_path / "one", tmp_path / "two")
    broker = start_broker(local_directories=disks)
    topic = broker.create_topic(_TOPIC, 1, storage_mode="local")
    scene = Scene(lambda: broker, catalog, broker, Table(catalog))
    local = broker.agent.data.local_logs._local
    assert local is not None
    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        for sequence in range(3):
            produce(wire, producer, sequence, b"%d" % sequence)
        broker.run(local.delete_records([(topic, 0, 1)]))
        (target,) = [each for each in disks if not (each / f"{_TOPIC}-0").exists()]
        broker.run(local.move(topic, 0, target))
        until(lambda: not local.mover.running)
        assert (target / f"{_TOPIC}-0").exists()
        scene.check_again()
        assert produce(wire, producer, 3, b"3").base_offset == 3
        scene.check_again()
        assert end(wire, producer, commits=True).error_code == ErrorCode.none
        until(lambda: offsets(wire, _READ_COMMITTED) == 5)
        assert not fetch(wire, 1).aborted_transactions
        assert scene.markers.aborted_unknown == 0


def test_a_transaction_whose_first_flush_has_failed_stays_watched(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is in the log, so its marker must be looked for."""

    def fail(log: UnifiedLog, end_offset: int | None = None) -> None:  # noqa: ARG001
        raise RetryableError("the disk is busy", remedy="retry")

    with scene.wire() as wire:
        producer = init(wire)
        add(wire, producer, 0)
        with monkeypatch.context() as patch:
            patch.setattr(UnifiedLog, "flush_appended", fail)
            assert produce(wire, producer, 0, b"a").error_code != ErrorCode.none
        partition = PartitionId(scene.catalog.topics.get(_TOPIC).topic_id, 0)
        assert (partition, producer.producer_id) in scene.markers._verifier.open_transactions()
        assert produce(wire, producer, 0, b"a").error_code == ErrorCode.none  # the repeated batch
        assert (partition, producer.producer_id) in scene.markers._verifier.open_transactions()
        scene.catalog.transactions.end("t", ProducerIdentity(producer.producer_id, 0), commits=True)
        until(lambda: offsets(wire, _READ_COMMITTED) == 2)  # without an announcement
